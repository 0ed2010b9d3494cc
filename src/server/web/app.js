// The chat page. What a model writes reaches the page as text nodes only: nothing here sets innerHTML.
'use strict';

const $ = (id) => document.getElementById(id);

function element(tag, properties, ...children) {
  const node = document.createElement(tag);
  Object.assign(node, properties);
  node.append(...children);
  return node;
}

// ---- Markdown to DOM nodes ----

const INLINE = /(`+)([^`]|[^`][\s\S]*?[^`])\1(?!`)|\*\*(\S|\S[\s\S]*?\S)\*\*|\*(\S|\S[^*]*?\S)\*|\[([^\]\n]*)\]\(([^)\s]+)\)/;

function inline(text, parent, depth = 0) {
  while (text) {
    const match = depth < 8 ? INLINE.exec(text) : null;
    if (!match) {
      parent.append(text);
      return;
    }
    parent.append(text.slice(0, match.index));
    if (match[1]) {
      parent.append(element('code', {textContent: match[2]}));
    } else if (match[3] !== undefined) {
      const strong = element('strong');
      inline(match[3], strong, depth + 1);
      parent.append(strong);
    } else if (match[4] !== undefined) {
      const emphasis = element('em');
      inline(match[4], emphasis, depth + 1);
      parent.append(emphasis);
    } else if (/^(https?:|mailto:)/i.test(match[6])) {
      parent.append(element('a', {href: match[6], textContent: match[5] || match[6], rel: 'noopener noreferrer', target: '_blank'}));
    } else {
      parent.append(match[0]);  // an address that is not for following
    }
    text = text.slice(match.index + match[0].length);
  }
}

const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/;

function isRow(line) {
  return line !== undefined && line.trim().startsWith('|') && line.trim().length > 1;
}

function cells(line) {
  return line.trim().replace(/^\||\|$/g, '').split('|').map((cell) => cell.trim());
}

function table(lines, start, parent) {
  const node = element('table');
  const row = (line, tag) => {
    const tr = element('tr');
    for (const cell of cells(line)) {
      const td = element(tag);
      inline(cell, td);
      tr.append(td);
    }
    return tr;
  };
  node.append(element('thead', {}, row(lines[start], 'th')));
  const body = element('tbody');
  let i = start + 2;
  for (; isRow(lines[i]); i++) body.append(row(lines[i], 'td'));
  node.append(body);
  parent.append(node);
  return i;
}

function list(lines, start, parent) {
  const first = ITEM.exec(lines[start]);
  const ordered = /\d/.test(first[2]);
  const node = element(ordered ? 'ol' : 'ul');
  if (ordered) node.start = parseInt(first[2], 10);
  let i = start;
  while (i < lines.length) {
    const match = ITEM.exec(lines[i]);
    if (!match || match[1].length < first[1].length) break;
    if (match[1].length === first[1].length && /\d/.test(match[2]) !== ordered) break;
    if (match[1].length > first[1].length + 1 && node.lastChild) {
      i = list(lines, i, node.lastChild);
      continue;
    }
    const item = element('li');
    inline(match[3], item);
    node.append(item);
    i++;
    while (i < lines.length && lines[i].trim() && /^\s{2,}/.test(lines[i]) && !ITEM.test(lines[i])) {
      item.append(' ');
      inline(lines[i++].trim(), item);
    }
    if (lines[i] === '' && ITEM.test(lines[i + 1] || '')) i++;
  }
  parent.append(node);
  return i;
}

function markdown(text, parent) {
  const lines = text.split('\n');
  let paragraph = [];
  const flush = () => {
    if (!paragraph.length) return;
    const node = element('p');
    inline(paragraph.join('\n'), node);
    parent.append(node);
    paragraph = [];
  };
  for (let i = 0; i < lines.length;) {
    const line = lines[i];
    const fence = /^\s*(```+|~~~+)\s*([\w+#.-]*)/.exec(line);
    const heading = /^(#{1,6})\s+(.*)$/.exec(line);
    if (fence) {
      flush();
      const code = [];
      for (i++; i < lines.length && !lines[i].trim().startsWith(fence[1]); i++) code.push(lines[i]);
      i++;
      const node = element('code', {textContent: code.join('\n')});
      if (fence[2]) node.dataset.language = fence[2];
      parent.append(element('pre', {tabIndex: 0}, node));
    } else if (heading) {
      flush();
      const node = element('h' + Math.min(heading[1].length + 1, 6));
      inline(heading[2], node);
      parent.append(node);
      i++;
    } else if (ITEM.test(line)) {
      flush();
      i = list(lines, i, parent);
    } else if (isRow(line) && /^\s*\|?\s*:?-+/.test(lines[i + 1] || '')) {
      flush();
      i = table(lines, i, parent);
    } else if (/^\s*>/.test(line)) {
      flush();
      const quoted = [];
      for (; i < lines.length && /^\s*>/.test(lines[i]); i++) quoted.push(lines[i].replace(/^\s*> ?/, ''));
      const node = element('blockquote');
      inline(quoted.join('\n'), node);
      parent.append(node);
    } else if (/^\s*([-*_])(\s*\1){2,}\s*$/.test(line)) {
      flush();
      parent.append(element('hr'));
      i++;
    } else if (!line.trim()) {
      flush();
      i++;
    } else {
      paragraph.push(line);
      i++;
    }
  }
  flush();
}

// ---- the server ----

const settings = ['system', 'temperature', 'top_p', 'top_k', 'seed', 'max_tokens'];
let model = null;     // an entry of /v1/models
let messages = [];    // {role, content, reasoning, tools, error, node}
let running = null;   // AbortController of the answer under way

function headers() {
  const result = {'Content-Type': 'application/json'};
  if ($('key').value) result.Authorization = 'Bearer ' + $('key').value;
  return result;
}

function setState(text, bad = false) {
  $('state').textContent = text;
  $('state').classList.toggle('bad', bad);
}

function showLoading(report) {
  $('loading').hidden = false;
  $('progress').value = report.progress || 0;
  $('loading-text').textContent = report.message || report.status;
  setState(report.status === 'loading' ? 'loading ' + Math.round((report.progress || 0) * 100) + ' %' : report.status);
}

function waitForModel() {
  const source = new EventSource('load');
  source.onmessage = (event) => {
    const report = JSON.parse(event.data);
    if (report.status === 'starting' || report.status === 'loading') return showLoading(report);
    source.close();
    $('loading').hidden = true;
    if (report.status === 'failed') return setState(report.message, true);
    findModel();
  };
  source.onerror = () => {
    source.close();
    setState('the server does not answer', true);
    setTimeout(waitForModel, 2000);
  };
}

function bytes(n) {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let i = 0;
  for (; n >= 1024 && i < 4; i++) n /= 1024;
  return n.toFixed(n < 10 && i ? 2 : 0) + ' ' + units[i];
}

function showAnatomy() {
  const list = $('anatomy');
  list.replaceChildren();
  for (const [key, value] of Object.entries({...model.about, longest_sequence: model.max_model_len})) {
    if (value === null) continue;
    const shown = key.includes('bytes') ? bytes(value) : Array.isArray(value) ? value.join(', ') : String(value);
    list.append(element('dt', {textContent: key.replaceAll('_', ' ')}), element('dd', {textContent: shown}));
  }
}

function count(n) {
  const units = ['', ' K', ' M', ' B'];
  let i = 0;
  for (; n >= 1000 && i < 3; i++) n /= 1000;
  return (i ? n.toPrecision(3) : String(n)) + units[i];
}

// The schedule: one letter per layer, by what its attention and its MLP are.
function layerStrip(layers) {
  const letters = new Map();
  const strip = element('p', {className: 'strip'});
  for (const layer of layers) {
    const kind = [layer.attention, layer.window && 'window ' + layer.window, layer.mlp, layer.indexer && layer.indexer + ' indexer']
      .filter(Boolean).join(', ');
    if (!letters.has(kind)) letters.set(kind, String.fromCharCode(65 + letters.size % 26));
    strip.append(element('span', {textContent: letters.get(kind), title: 'layer ' + layer.index + ': ' + kind}));
  }
  const legend = [...letters].map(([kind, letter]) => letter + ': ' + kind).join(' · ');
  return [element('h3', {textContent: layers.length + ' layers'}), strip, element('p', {className: 'legend', textContent: legend})];
}

function partsTable(parameters) {
  const caption = count(parameters.total) + ' parameters, ' + count(parameters.active_per_token) + ' of them touched by a token';
  const table = element('table', {}, element('caption', {textContent: caption}));
  for (const [part, n] of Object.entries(parameters.by_part)) {
    const share = element('meter', {max: parameters.total, value: n, ariaLabel: 'share of ' + part});
    table.append(element('tr', {}, element('th', {scope: 'row', textContent: part.replaceAll('_', ' ')}),
      element('td', {textContent: count(n)}), element('td', {}, share)));
  }
  return table;
}

// What the model is made of; asked for when somebody looks.
async function showInspection() {
  const place = $('inspection');
  if (!$('model-details').open || place.childElementCount || !model) return;
  try {
    const answer = await fetch('inspect', {headers: headers()});
    const body = await answer.json();
    if (!answer.ok) throw new Error(body.error.message);
    const cache = Object.entries(body.cache).filter(([, value]) => value)
      .map(([key, value]) => bytes(value) + ' of ' + key.replace('_bytes', '').replaceAll('_', ' '));
    place.replaceChildren(partsTable(body.parameters), ...layerStrip(body.layers),
      element('p', {className: 'legend', textContent: 'Cache: ' + cache.join(' · ')}));
  } catch (error) {
    place.replaceChildren(element('p', {className: 'error', role: 'alert', textContent: error.message}));
  }
}

async function findModel() {
  try {
    const answer = await fetch('v1/models', {headers: headers()});
    const body = await answer.json();
    if (!answer.ok) throw new Error(body.error.message);
    model = body.data[0];
    $('model').textContent = model.id;
    document.title = model.id + ' – atom';
    showAnatomy();
    showInspection();
    setState(model.about.chat ? 'ready' : 'this model has no chat template', !model.about.chat);
    $('send').disabled = !model.about.chat;
  } catch (error) {
    setState(error.message, true);
  }
}

function requestBody() {
  const history = messages.filter((m) => !m.error || m.content).map((m) => ({role: m.role, content: m.content}));
  if ($('system').value.trim()) history.unshift({role: 'system', content: $('system').value});
  const body = {model: model.id, messages: history, stream: true, stream_options: {include_usage: true}};
  for (const name of settings.slice(1)) {
    if ($(name).value !== '') body[name] = Number($(name).value);
  }
  return body;
}

// The data of a stream's events, as they come.
async function* eventsOf(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = '';
  for (;;) {
    const {done, value} = await reader.read();
    if (done) return;
    text += value;
    for (let end; (end = text.indexOf('\n\n')) >= 0; text = text.slice(end + 2)) {
      for (const line of text.slice(0, end).split('\n')) {
        if (line.startsWith('data: ')) yield line.slice(6);
      }
    }
  }
}

function take(message, chunk) {
  if (chunk.error) throw new Error(chunk.error.message);
  if (chunk.usage) message.usage = chunk.usage;
  for (const choice of chunk.choices) {
    const delta = choice.delta;
    message.content += delta.content || '';
    message.reasoning += delta.reasoning_content || '';
    for (const call of delta.tool_calls || []) {
      const known = message.tools[call.index] ||= {name: '', arguments: ''};
      known.name += call.function.name || '';
      known.arguments += call.function.arguments || '';
    }
    if (choice.finish_reason) message.finish = choice.finish_reason;
  }
}

function showSpeed(message, started, first, chunks) {
  const seconds = (performance.now() - first) / 1000;
  const count = message.usage ? message.usage.completion_tokens : chunks;
  const rate = seconds > 0.05 && count > 1 ? (count - 1) / seconds : 0;
  const parts = [count + ' tokens', 'first after ' + ((first - started) / 1000).toFixed(2) + ' s'];
  if (rate) {
    parts.push(rate.toFixed(1) + ' tokens/s');
    const read = model.about.weight_bytes_per_step;
    if (read) parts.push(bytes(rate * read) + '/s of weights');
    const bound = model.about.memory_bytes_per_second;
    if (read && bound) parts.push(Math.round(rate * read / bound * 100) + ' % of the memory bound');
  }
  if (message.usage) {
    const cached = message.usage.prompt_tokens_details.cached_tokens;
    parts.push(message.usage.prompt_tokens + ' prompt tokens, ' + cached + ' reused');
  }
  if (message.finish === 'length') parts.push('cut at the length limit');
  $('speed').textContent = parts.join(' · ');
}

async function answer() {
  const body = requestBody();
  const message = {role: 'assistant', content: '', reasoning: '', tools: []};
  messages.push(message);
  running = new AbortController();
  busy(true);
  const started = performance.now();
  let first = 0, chunks = 0, planned = false;
  render(message, true);
  try {
    const response = await fetch('v1/chat/completions', {method: 'POST', headers: headers(), body: JSON.stringify(body), signal: running.signal});
    if (!response.ok) throw new Error((await response.json()).error.message);
    for await (const data of eventsOf(response)) {
      if (data === '[DONE]') break;
      take(message, JSON.parse(data));
      if (!first && (message.content || message.reasoning || message.tools.length)) first = performance.now();
      chunks += first ? 1 : 0;
      if (planned) continue;
      planned = true;
      requestAnimationFrame(() => {
        planned = false;
        if (!running) return;
        render(message, true);
        if (first) showSpeed(message, started, first, chunks);
      });
    }
    if (!message.finish) throw new Error('the stream ended early');
    showSpeed(message, started, first || performance.now(), chunks);
    setState('ready');
  } catch (error) {
    if (error.name === 'AbortError') {
      setState('stopped');
    } else {
      message.error = error.message;
      setState('the answer failed', true);
    }
  }
  running = null;
  busy(false);
  render(message, false);
  save();
}

// ---- the page ----

function busy(on) {
  $('send').hidden = on;
  $('stop').hidden = !on;
  $('log').setAttribute('aria-busy', String(on));
  if (on) setState('answering');
}

function render(message, growing) {
  const main = document.querySelector('main');
  const follow = main.scrollHeight - main.scrollTop - main.clientHeight < 80;
  const open = message.node && message.node.querySelector('details.reasoning[open]') !== null;
  const node = element('article', {className: 'message ' + message.role});
  node.append(element('p', {className: 'who', textContent: message.role === 'user' ? 'You' : 'Model'}));
  if (message.reasoning) {
    const details = element('details', {className: 'reasoning', open});
    details.append(element('summary', {textContent: growing && !message.content ? 'Reasoning…' : 'Reasoning'}),
                   element('div', {textContent: message.reasoning}));
    node.append(details);
  }
  const body = element('div', {className: 'body'});
  if (message.role === 'user') {
    body.textContent = message.content;
  } else {
    markdown(message.content, body);
    if (growing && !message.content) body.append('…');
  }
  node.append(body);
  for (const call of (message.tools || []).filter(Boolean)) {
    node.append(element('details', {className: 'tool', open: true}, element('summary', {textContent: 'Calls ' + call.name}),
                        element('pre', {}, element('code', {textContent: call.arguments}))));
  }
  if (message.error) node.append(element('p', {className: 'error', role: 'alert', textContent: message.error}));
  if (!growing && message.role === 'assistant') {
    const copy = element('button', {type: 'button', textContent: 'Copy'});
    copy.addEventListener('click', () => navigator.clipboard.writeText(message.content));
    node.append(element('div', {className: 'actions'}, copy));
    if (message === messages.at(-1)) {
      const again = element('button', {type: 'button', textContent: 'Regenerate', className: 'regenerate'});
      again.addEventListener('click', regenerate);
      node.lastChild.append(again);
    }
  }
  if (message.node) {
    message.node.replaceWith(node);
  } else {
    $('log').append(node);
  }
  message.node = node;
  if (follow) main.scrollTop = main.scrollHeight;
}

function renderAll() {
  $('log').replaceChildren();
  for (const message of messages) {
    message.node = null;
    render(message, false);
  }
}

function regenerate() {
  if (running) return;
  messages.pop();
  renderAll();
  answer();
}

function send(event) {
  event.preventDefault();
  const text = $('prompt').value;
  if (!text.trim() || running || !model) return;
  $('prompt').value = '';
  fit();
  document.querySelector('.regenerate')?.remove();
  const message = {role: 'user', content: text};
  messages.push(message);
  render(message, false);
  document.querySelector('main').scrollTop = 1e9;
  answer();
}

function fit() {
  const box = $('prompt');
  box.style.height = 'auto';
  box.style.height = Math.min(box.scrollHeight + 2, window.innerHeight * 0.4) + 'px';
}

// The conversation outlives a reload of this tab; the settings outlive the tab; the key does not.
function save() {
  const kept = messages.map(({role, content, reasoning, tools, error}) => ({role, content, reasoning, tools, error}));
  try {
    sessionStorage.setItem('messages', JSON.stringify(kept));
    localStorage.setItem('settings', JSON.stringify(Object.fromEntries(settings.map((name) => [name, $(name).value]))));
  } catch {
    // Storage may be full or forbidden; the page works without.
  }
}

function restore() {
  try {
    const known = JSON.parse(localStorage.getItem('settings') || '{}');
    for (const name of settings) $(name).value = known[name] || '';
    messages = JSON.parse(sessionStorage.getItem('messages') || '[]');
  } catch {
    messages = [];
  }
  renderAll();
}

$('form').addEventListener('submit', send);
$('prompt').addEventListener('input', fit);
$('prompt').addEventListener('keydown', (event) => {
  if (event.key === 'Enter' && !event.shiftKey && !event.isComposing) send(event);
});
$('stop').addEventListener('click', () => running?.abort());
document.addEventListener('keydown', (event) => {
  if (event.key === 'Escape') running?.abort();
});
$('new').addEventListener('click', () => {
  running?.abort();
  messages = [];
  renderAll();
  $('speed').textContent = '';
  save();
  $('prompt').focus();
});
$('model-details').addEventListener('toggle', showInspection);
$('toggle-settings').addEventListener('click', () => {
  const hidden = $('settings').toggleAttribute('hidden');
  $('toggle-settings').setAttribute('aria-expanded', String(!hidden));
});
for (const name of settings) $(name).addEventListener('change', save);
$('key').addEventListener('change', findModel);
restore();
waitForModel();
