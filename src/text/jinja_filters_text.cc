// Filters that make strings.
#include <cmath>

#include <fmt/format.h>

#include "text/jinja_filters.h"
#include "text/jinja_format.h"
#include "text/jinja_methods.h"
#include "text/jinja_unicode.h"

namespace atom::jinja {
namespace {

// The value as a string that stays markup if it was.
Value soft_string(Runtime& runtime, const Value& value) {
  return value.is_string() ? value : runtime.string(to_str(runtime, value));
}

bool is_markup(const Value& value) { return value.is_string() && value.as_str().markup; }

Value same_markup(Runtime& runtime, const Value& like, std::string text) {
  runtime.charge_scan(text.size());
  return runtime.string(std::move(text), is_markup(like));
}

std::string percent_encode(std::string_view text, bool keep_slash, bool plus_for_space) {
  std::string out;
  for (const char c : text) {
    const bool plain = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                       c == '_' || c == '.' || c == '-' || c == '~' || (keep_slash && c == '/');
    if (plain) {
      out += c;
    } else if (c == ' ' && plus_for_space) {
      out += '+';
    } else {
      out += fmt::format("%{:02X}", static_cast<unsigned char>(c));
    }
  }
  return out;
}

// White space becomes one blank between words.
std::string collapse_space(std::string_view text) {
  std::string out;
  bool gap = false;
  for (size_t at = 0; at < text.size();) {
    const char32_t c = next_code_point(text, at);
    if (is_space(c)) {
      gap = !out.empty();
      continue;
    }
    if (std::exchange(gap, false)) out += ' ';
    append_code_point(out, c);
  }
  return out;
}

}  // namespace

ATOM_JINJA_FILTER(capitalize) {
  bind("capitalize", args, {}, 0);
  return same_markup(runtime, self, capitalize(to_str(runtime, self)));
}

ATOM_JINJA_FILTER(center) {
  const Bound bound = bind("center", args, {"width"}, 0);
  const Value text = soft_string(runtime, self);
  const int64_t width = int_argument(bound[0], 80, "center: width");
  return runtime.string(center_text(text.text(), text.as_str().length, width, " "), is_markup(text));
}

ATOM_JINJA_FILTER(escape) {
  bind("escape", args, {}, 0);
  return runtime.string(escaped(runtime, self), true);
}

ATOM_JINJA_FILTER(forceescape) {
  bind("forceescape", args, {}, 0);
  const std::string text = to_str(runtime, self);
  runtime.charge_scan(text.size());
  return runtime.string(escape_html(text), true);
}

ATOM_JINJA_FILTER(safe) {
  bind("safe", args, {}, 0);
  return runtime.string(to_str(runtime, self), true);
}

ATOM_JINJA_FILTER(string) {
  bind("string", args, {}, 0);
  return soft_string(runtime, self);
}

ATOM_JINJA_FILTER(lower) {
  bind("lower", args, {}, 0);
  return same_markup(runtime, self, to_lower(to_str(runtime, self)));
}

ATOM_JINJA_FILTER(upper) {
  bind("upper", args, {}, 0);
  return same_markup(runtime, self, to_upper(to_str(runtime, self)));
}

ATOM_JINJA_FILTER(title) {
  bind("title", args, {}, 0);
  const std::string text = to_str(runtime, self);
  std::string out, word;
  // Words begin after white space and after - ( { [ <.
  const auto flush = [&] {
    if (word.empty()) return;
    size_t first = 0;
    next_code_point(word, first);
    out += to_upper(std::string_view(word).substr(0, first)) + to_lower(std::string_view(word).substr(first));
    word.clear();
  };
  for (size_t at = 0; at < text.size();) {
    const char32_t c = next_code_point(text, at);
    if (is_space(c) || c == '-' || c == '(' || c == '{' || c == '[' || c == '<') {
      flush();
      append_code_point(out, c);
    } else {
      append_code_point(word, c);
    }
  }
  flush();
  runtime.charge_scan(out.size());
  return runtime.string(std::move(out));
}

ATOM_JINJA_FILTER(trim) {
  const Bound bound = bind("trim", args, {"chars"}, 0);
  const Value text = soft_string(runtime, self);
  return strip_text(runtime, text, bound[0], true, true);
}

ATOM_JINJA_FILTER(replace) {
  const Bound bound = bind("replace", args, {"old", "new", "count"}, 2);
  const std::string text = to_str(runtime, self), from = to_str(runtime, *bound[0]),
                    to = to_str(runtime, *bound[1]);
  const int64_t count =
      bound[2] == nullptr || bound[2]->is_none() ? -1 : int_argument(bound[2], -1, "replace: count");
  runtime.charge(static_cast<int64_t>(text.size() / 16));
  std::string out = replace_text(text, from, to, count, kMaxStringBytes);
  runtime.charge_scan(out.size());
  return runtime.string(std::move(out));
}

ATOM_JINJA_FILTER(format) {
  if (!args.positional.empty() && !args.named.empty())
    fail("format: cannot handle positional and keyword arguments at the same time");
  const Value text = soft_string(runtime, self);
  if (args.named.empty()) return percent_format(runtime, text, runtime.tuple(args.positional));
  Dict values;
  for (const auto& [name, value] : args.named) values.items.emplace_back(runtime.string(name), value);
  return percent_format(runtime, text, runtime.dict(std::move(values)));
}

ATOM_JINJA_FILTER(indent) {
  const Bound bound = bind("indent", args, {"width", "first", "blank"}, 0);
  require_defined(self);
  if (!self.is_string()) fail("indent: expected a string, not {}", type_name(self));
  std::string indent;
  if (bound[0] != nullptr && bound[0]->is_string()) {
    indent = bound[0]->text();
  } else {
    const int64_t width = std::max<int64_t>(int_argument(bound[0], 4, "indent: width"), 0);
    Runtime::check_size(width);
    indent.assign(static_cast<size_t>(width), ' ');
  }
  const bool first = bool_argument(bound[1], false), blank = bool_argument(bound[2], false);
  // Line ends of all kinds become \n; the one added here keeps a trailing line end.
  const std::vector<std::string_view> lines = split_lines(self.text(), false);
  const bool ends_with_break = !self.text().empty() && is_line_break(decode(self.text()).back());
  std::string out;
  const size_t count = lines.size() + (ends_with_break || lines.empty() ? 1 : 0);
  for (size_t i = 0; i < count; ++i) {
    const std::string_view line = i < lines.size() ? lines[i] : std::string_view();
    if (i > 0) out += '\n';
    if (i == 0 ? first : blank || !line.empty()) out += indent;
    out += line;
    Runtime::check_size(static_cast<int64_t>(out.size()));
  }
  runtime.charge_scan(out.size());
  return runtime.string(std::move(out), is_markup(self));
}

ATOM_JINJA_FILTER(truncate) {
  const Bound bound = bind("truncate", args, {"length", "killwords", "end", "leeway"}, 0);
  require_defined(self);
  if (!self.is_string()) fail("truncate: expected a string, not {}", type_name(self));
  const std::string end = bound[2] == nullptr ? "..." : to_str(runtime, *bound[2]);
  const int64_t length = int_argument(bound[0], 255, "truncate: length");
  const int64_t leeway =
      bound[3] == nullptr || bound[3]->is_none() ? 5 : int_argument(bound[3], 5, "truncate: leeway");
  const int64_t kept = length - count_code_points(end);
  if (kept < 0) fail("truncate: expected a length of at least {}, got {}", count_code_points(end), length);
  if (leeway < 0) fail("truncate: expected a leeway of at least 0, got {}", leeway);
  runtime.charge_scan(self.text().size());
  if (self.as_str().length <= length + leeway) return self;
  std::string text = self.text().substr(0, byte_offset(self.text(), kept));
  if (!bool_argument(bound[1], false)) {
    const size_t blank = text.rfind(' ');
    if (blank != std::string::npos) text.resize(blank);
  }
  return runtime.string(text + end, is_markup(self));
}

ATOM_JINJA_FILTER(wordcount) {
  bind("wordcount", args, {}, 0);
  const std::string text = to_str(runtime, self);
  runtime.charge(static_cast<int64_t>(text.size() / 8));
  int64_t count = 0;
  bool inside = false;
  for (size_t at = 0; at < text.size();) {
    const bool word = is_word(next_code_point(text, at));
    count += word && !inside;
    inside = word;
  }
  return Value::integer(count);
}

ATOM_JINJA_FILTER(striptags) {
  bind("striptags", args, {}, 0);
  const std::string text = to_str(runtime, self);
  runtime.charge_scan(text.size());
  std::string kept;
  size_t done = 0;
  for (size_t open; (open = text.find('<', done)) != std::string::npos;) {
    const bool comment = text.compare(open, 4, "<!--") == 0;
    const size_t close = comment ? text.find("-->", open + 4) : text.find('>', open);
    if (close == std::string::npos) break;
    kept += text.substr(done, open - done);
    done = close + (comment ? 3 : 1);
  }
  kept += std::string_view(text).substr(done);
  if (kept.find('&') != std::string::npos) fail("striptags of text with HTML entities is not supported");
  return runtime.string(collapse_space(kept));
}

ATOM_JINJA_FILTER(urlencode) {
  bind("urlencode", args, {}, 0);
  if (self.is_string() || !is_iterable(self)) {
    const std::string text = to_str(runtime, self);
    runtime.charge_scan(text.size());
    Runtime::check_size(static_cast<int64_t>(text.size()) * 3);
    return runtime.string(percent_encode(text, true, false));
  }
  std::string out;
  const auto append = [&](const Value& key, const Value& value) {
    if (!out.empty()) out += '&';
    out += percent_encode(to_str(runtime, key), false, true) + "=" +
           percent_encode(to_str(runtime, value), false, true);
    Runtime::check_size(static_cast<int64_t>(out.size()));
  };
  if (self.is_dict()) {
    for (const auto& [key, value] : self.as_dict().items) append(key, value);
  } else {
    const auto sequence = items_of(runtime, self);
    for (const Value& pair : sequence->items) {
      const auto both = items_of(runtime, pair);
      if (both->items.size() != 2) fail("urlencode: expected pairs");
      append(both->items[0], both->items[1]);
    }
  }
  return runtime.string(std::move(out));
}

ATOM_JINJA_FILTER(xmlattr) {
  const Bound bound = bind("xmlattr", args, {"autospace"}, 0);
  require_defined(self);
  if (!self.is_dict()) fail("xmlattr: expected a mapping, not {}", type_name(self));
  std::string out;
  for (const auto& [key, value] : self.as_dict().items) {
    if (value.is_none() || value.is_undefined()) continue;
    if (!key.is_string() || key.text().find_first_of(" \t\n\r\f\v/>=") != std::string::npos)
      fail("xmlattr: invalid character in the attribute name {}", to_repr(runtime, key));
    if (!out.empty()) out += ' ';
    out += escaped(runtime, key) + "=\"" + escaped(runtime, value) + "\"";
    Runtime::check_size(static_cast<int64_t>(out.size()));
  }
  if (!out.empty() && bool_argument(bound[0], true)) out.insert(0, 1, ' ');
  return runtime.string(std::move(out));
}

ATOM_JINJA_FILTER(filesizeformat) {
  const Bound bound = bind("filesizeformat", args, {"binary"}, 0);
  const bool binary = bool_argument(bound[0], false);
  const double bytes = filter_float(runtime, self, {}).as_real();
  const double base = binary ? 1024 : 1000;
  if (bytes == 1) return runtime.string("1 Byte");
  if (bytes < base) return runtime.string(fmt::format("{} Bytes", int_to_str(real_to_int(bytes))));
  constexpr std::string_view kDecimal[] = {"kB", "MB", "GB", "TB", "PB", "EB", "ZB", "YB"};
  constexpr std::string_view kBinary[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB", "ZiB", "YiB"};
  double unit = base;
  size_t i = 0;
  for (unit *= base; i < 7 && bytes >= unit; ++i) unit *= base;
  return runtime.string(fmt::format("{:.1f} {}", base * bytes / unit, (binary ? kBinary : kDecimal)[i]));
}

}  // namespace atom::jinja
