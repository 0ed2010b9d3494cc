// The anatomy of a checkpoint as one HTML page that needs nothing else.
#include <fmt/format.h>

#include <algorithm>

#include "base/text_util.h"
#include "cli/inspection.h"

namespace atom::cli {
namespace {

constexpr const char* kStyle = R"(
:root { color-scheme: light dark; --ink: #1c2330; --dim: #6a7386; --paper: #fbfbf9; --line: #dfe2e8;
  --bar: #3b6fb6; --hot: #e08a2e; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ef; --dim: #98a2b5; --paper: #14171c; --line:
  #2b313b; --bar: #6ba0e8; --hot: #f0a552; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width:
  60rem; margin: 2.5rem auto; padding: 0 1.25rem; }
h1 { font-size: 1.7rem; margin: 0; } h2 { font-size: 1.05rem; margin: 2.2rem 0 .6rem; } p { color:
  var(--dim); margin: .2rem 0; }
.tiles { display: flex; flex-wrap: wrap; gap: .8rem; margin-top: 1.4rem; }
.tile { border: 1px solid var(--line); border-radius: .6rem; padding: .6rem 1rem; flex: 1 1 9rem; }
.tile b { display: block; font-size: 1.35rem; } .tile span { color: var(--dim); font-size: .85rem; }
table { border-collapse: collapse; width: 100%; } td, th { padding: .25rem .6rem .25rem 0; border-bottom:
  1px solid var(--line); text-align: left; font-weight: normal; }
th { color: var(--dim); font-size: .85rem; } .n { text-align: right; font-variant-numeric: tabular-nums;
  white-space: nowrap; }
.bar { position: relative; height: .8rem; background: var(--line); border-radius: .2rem; min-width: 8rem;
  }
.bar i { position: absolute; inset: 0 auto 0 0; background: var(--bar); border-radius: .2rem; } .bar i + i
  { background: var(--hot); }
code { font: .9em ui-monospace, monospace; } .strip { display: flex; flex-wrap: wrap; gap: 3px; }
.layer { width: 1.35rem; border-radius: .25rem; overflow: hidden; font: .7rem/1.25rem ui-monospace,
  monospace; text-align: center; color: #fff; }
.layer b { display: block; font-weight: normal; } .legend span { margin-right: 1.2rem; white-space:
  nowrap; } .legend i { display: inline-block; width: .8rem; height: .8rem; border-radius: .2rem;
  margin-right: .35rem; vertical-align: -1px; }
.F { background: #3b6fb6; } .w { background: #7aa5dc; } .L { background: #6a5acd; } .t { background:
  #2f9e8f; } .d { background: #8a93a5; } .E { background: #e08a2e; } .I { background: #c0392b; } .s {
  background: #e6b0aa; } .x { background: var(--line); }
)";

std::string escape(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

// The CSS class of a letter of the strip.
const char* css_class(char letter) {
  switch (letter) {
    case 'F':
      return "F";
    case 'w':
      return "w";
    case 'L':
      return "L";
    case '~':
      return "t";
    case 'd':
      return "d";
    case 'E':
      return "E";
    case 'I':
      return "I";
    case '.':
      return "s";
    default:
      return "x";
  }
}

double percent(int64_t count, int64_t of) {
  return of > 0 ? 100.0 * static_cast<double>(count) / static_cast<double>(of) : 0;
}

void tile(std::string& out, const std::string& value, const std::string& what) {
  out += fmt::format("<div class=tile><b>{}</b><span>{}</span></div>\n", escape(value), escape(what));
}

void tiles(std::string& out, const Anatomy& a) {
  const ParameterCount all = a.parameters();
  out += "<div class=tiles>\n";
  tile(out, format_count(all.total), "parameters");
  tile(out, format_count(all.active),
       fmt::format("touched per token, {:.1f} %", percent(all.active, all.total)));
  tile(out,
       fmt::format("{}{}", a.layers.size(), a.draft_layers > 0 ? fmt::format(" + {}", a.draft_layers) : ""),
       a.draft_layers > 0 ? "layers, and those that draft" : "layers");
  tile(out, format_bytes(a.cache.kv_per_token), "of keys and values per token, bf16");
  if (a.cache.index_per_token > 0)
    tile(out, format_bytes(a.cache.index_per_token), "of index keys per token");
  if (a.cache.state_per_request > 0)
    tile(out, format_bytes(a.cache.state_per_request), "of state per request");
  out += "</div>\n";
}

void components(std::string& out, const Anatomy& a) {
  const ParameterCount all = a.parameters();
  int64_t largest = 1;
  for (const ParameterCount& count : a.components) largest = std::max(largest, count.total);
  out +=
      "<h2>Where the parameters are</h2>\n<table><tr><th>part<th><th class=n>all<th class=n>share"
      "<th class=n>per token</tr>\n";
  for (int p = 0; p < kComponents; ++p) {
    const ParameterCount& count = a.components[p];
    if (count.total == 0) continue;
    out += fmt::format(
        "<tr><td>{}<td><div class=bar><i style=\"width:{:.2f}%\"></i><i style=\"width:{:.2f}%\"></i></div>"
        "<td class=n>{}<td class=n>{:.2f} %<td class=n>{}</tr>\n",
        component_name(static_cast<Component>(p)), percent(count.total, largest),
        percent(count.active, largest), format_count(count.total), percent(count.total, all.total),
        count.active > 0 ? format_count(count.active) : "–");
  }
  out += "</table>\n";
}

void strip(std::string& out, const Anatomy& a) {
  const Strip strip = layer_strip(a);
  out += "<h2>Layers</h2>\n<div class=strip>\n";
  for (size_t i = 0; i < a.layers.size(); ++i) {
    out += fmt::format("<div class=layer title=\"layer {}: {}\">", i,
                       format_count(a.layers[i].parameters.total));
    for (const Strip::Row& row : strip.rows) {
      const char letter = row.letters[i];
      out += fmt::format("<b class={}>{}</b>", css_class(letter),
                         letter == ' ' ? "&nbsp;" : std::string(1, letter));
    }
    out += "</div>\n";
  }
  out += "</div>\n<p class=legend>";
  for (const Strip::Row& row : strip.rows) {
    for (const auto& [letter, meaning] : row.legend)
      out += fmt::format("<span><i class={}></i>{} {}: {}</span>", css_class(letter), letter, row.title,
                         escape(meaning));
  }
  out += "</p>\n";
}

void unfolded(std::string& out, const Inspection& inspection) {
  const LayerAnatomy& l = inspection.anatomy.layers[inspection.unfolded_layer];
  out += fmt::format("<h2>Layer {} unfolded</h2>\n<p>{} parameters, {} per token</p>\n",
                     inspection.unfolded_layer, format_count(l.parameters.total),
                     format_count(l.parameters.active));
  out += "<table><tr><th>tensor<th>shape<th class=n>tensors<th class=n>parameters<th>stored as</tr>\n";
  for (const TensorLine& t : inspection.unfolded) {
    const std::string shape = t.cols > 1 ? fmt::format("{} × {}", t.rows, t.cols) : fmt::format("{}", t.rows);
    out +=
        fmt::format("<tr><td><code>{}</code><td>{}<td class=n>{}<td class=n>{}<td>{}</tr>\n", escape(t.name),
                    shape, t.count, format_count(t.rows * t.cols * t.count), escape(t.stored));
  }
  out += "</table>\n";
}

void stored(std::string& out, const Inspection& inspection) {
  const StoredTotals& s = inspection.stored;
  out += "<h2>Stored</h2>\n";
  if (s.from_headers) {
    out += fmt::format("<p>{} tensors in {} files, {}</p>\n", *s.count, s.files, format_bytes(*s.bytes));
    out += "<table><tr><th>type<th class=n>tensors<th class=n>bytes</tr>\n";
    for (const auto& [name, kind] : s.by_dtype) {
      out += fmt::format("<tr><td>{}<td class=n>{}<td class=n>{}</tr>\n", escape(name), kind.count,
                         format_bytes(kind.bytes));
    }
    out += "</table>\n";
  } else {
    out += "<p>No weights were there: this page is made from the config.</p>\n";
  }
  if (!inspection.quantization.is_null()) {
    out += fmt::format("<p>Quantization: <code>{}</code></p>\n", escape(inspection.quantization.dump()));
  }
}

}  // namespace

std::string to_html(const Inspection& inspection) {
  const Anatomy& a = inspection.anatomy;
  const std::string name = escape(inspection.name);
  std::string out = fmt::format(
      "<!doctype html>\n<html lang=en><meta charset=utf-8><meta name=viewport "
      "content=\"width=device-width\">\n"
      "<title>{0}</title><style>{1}</style>\n<h1>{0}</h1>\n<p>{2}, hidden {3}, vocabulary {4}</p>\n",
      name, kStyle, escape(a.architecture), a.hidden, a.vocab);
  if (!a.supported)
    out += "<p><strong>atom cannot run this architecture; its shapes are known.</strong></p>\n";
  tiles(out, a);
  components(out, a);
  strip(out, a);
  unfolded(out, inspection);
  stored(out, inspection);
  return out + "</html>\n";
}

}  // namespace atom::cli
