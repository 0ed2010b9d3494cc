// Methods of strings. Positions are in code points.
#include <algorithm>

#include "text/jinja_format.h"
#include "text/jinja_methods.h"
#include "text/jinja_operators.h"
#include "text/jinja_unicode.h"

namespace atom::jinja {
namespace {

#define METHOD(name) Value name(Runtime& runtime, const Value& self, const Args& args)

Value like(Runtime& runtime, const Value& self, std::string text) {
  runtime.charge_scan(text.size());
  return runtime.string(std::move(text), self.as_str().markup);
}

const std::string& text_argument(const Value& value, std::string_view method) {
  require_defined(value);
  if (!value.is_string()) fail("{}(): expected a string, not {}", method, type_name(value));
  return value.text();
}

// Text that goes into the result: escaped if the result is markup.
std::string inserted(const Value& self, const Value& value, std::string_view method) {
  const std::string& text = text_argument(value, method);
  return self.as_str().markup && !value.as_str().markup ? escape_html(text) : text;
}

// Methods without arguments.
#define SIMPLE(name, function)                         \
  METHOD(name) {                                       \
    bind(#name, args, {}, 0);                          \
    return like(runtime, self, function(self.text())); \
  }
SIMPLE(str_upper, to_upper)
SIMPLE(str_lower, to_lower)
SIMPLE(str_casefold, case_fold)
SIMPLE(str_swapcase, swap_case)
SIMPLE(str_title, title_case)
SIMPLE(str_capitalize, capitalize)
#undef SIMPLE

#define PREDICATE(name)                                 \
  METHOD(str_##name) {                                  \
    bind(#name, args, {}, 0);                           \
    runtime.charge_scan(self.text().size());            \
    return Value::boolean(text_is(#name, self.text())); \
  }
PREDICATE(isalnum)
PREDICATE(isalpha)
PREDICATE(isascii)
PREDICATE(isdecimal)
PREDICATE(isdigit)
PREDICATE(isidentifier)
PREDICATE(islower)
PREDICATE(isnumeric)
PREDICATE(isprintable)
PREDICATE(isspace)
PREDICATE(istitle)
PREDICATE(isupper)
#undef PREDICATE

// ---- stripping ----

Value strip_method(Runtime& runtime, const Value& self, const Args& args, const char* name, bool left,
                   bool right) {
  return strip_text(runtime, self, bind(name, args, {"chars"}, 0)[0], left, right);
}
METHOD(str_strip) { return strip_method(runtime, self, args, "strip", true, true); }
METHOD(str_lstrip) { return strip_method(runtime, self, args, "lstrip", true, false); }
METHOD(str_rstrip) { return strip_method(runtime, self, args, "rstrip", false, true); }

METHOD(str_removeprefix) {
  const std::string& prefix = text_argument(*bind("removeprefix", args, {"prefix"}, 1)[0], "removeprefix");
  const std::string_view text = self.text();
  const bool found = text.substr(0, prefix.size()) == prefix;
  return like(runtime, self, std::string(text.substr(found ? prefix.size() : 0)));
}

METHOD(str_removesuffix) {
  const std::string& suffix = text_argument(*bind("removesuffix", args, {"suffix"}, 1)[0], "removesuffix");
  const std::string_view text = self.text();
  const bool found = text.size() >= suffix.size() && text.substr(text.size() - suffix.size()) == suffix;
  return like(runtime, self, std::string(text.substr(0, text.size() - (found ? suffix.size() : 0))));
}

// ---- searching ----

// The part of the text between the arguments start and end.
struct Window {
  std::string_view text;
  int64_t start;  // in code points
  bool valid;     // false: start lies behind the end of the text, where not even "" is found
};

Window window(Runtime& runtime, const Value& self, const Value* start, const Value* end) {
  const Str& str = self.as_str();
  runtime.charge_scan(str.text.size());
  if (start == nullptr && end == nullptr) return {str.text, 0, true};
  const Value from = start == nullptr ? Value() : *start, to = end == nullptr ? Value() : *end;
  const SliceRange range = resolve_slice(str.length, from, to, Value());
  const bool valid = int_argument(from.is_none() ? nullptr : &from, 0, "start") <= str.length &&
                     (range.count > 0 || range.stop >= range.start);
  const size_t begin = byte_offset(str.text, range.start);
  const std::string_view tail = std::string_view(str.text).substr(begin);
  return {tail.substr(0, byte_offset(tail, range.count)), range.start, valid};
}

int64_t position(Runtime& runtime, const Value& self, const Args& args, const char* name, bool last) {
  const Bound bound = bind(name, args, {"sub", "start", "end"}, 1);
  const std::string& needle = text_argument(*bound[0], name);
  const Window where = window(runtime, self, bound[1], bound[2]);
  if (!where.valid) return -1;
  const size_t at = last ? rfind_text(where.text, needle) : find_text(where.text, needle);
  if (at == std::string_view::npos) return -1;
  return where.start + count_code_points(where.text.substr(0, at));
}
METHOD(str_find) { return Value::integer(position(runtime, self, args, "find", false)); }
METHOD(str_rfind) { return Value::integer(position(runtime, self, args, "rfind", true)); }

Value index_method(Runtime& runtime, const Value& self, const Args& args, const char* name, bool last) {
  const int64_t at = position(runtime, self, args, name, last);
  if (at < 0) fail("{}(): substring not found", name);
  return Value::integer(at);
}
METHOD(str_index) { return index_method(runtime, self, args, "index", false); }
METHOD(str_rindex) { return index_method(runtime, self, args, "rindex", true); }

METHOD(str_count) {
  const Bound bound = bind("count", args, {"sub", "start", "end"}, 1);
  const std::string& needle = text_argument(*bound[0], "count");
  const Window where = window(runtime, self, bound[1], bound[2]);
  if (!where.valid) return Value::integer(0);
  if (needle.empty()) return Value::integer(count_code_points(where.text) + 1);
  int64_t count = 0;
  for (size_t at = 0; (at = find_text(where.text, needle, at)) != std::string_view::npos; at += needle.size())
    ++count;
  runtime.charge(count / 8);
  return Value::integer(count);
}

Value affix_method(Runtime& runtime, const Value& self, const Args& args, const char* name, bool suffix) {
  const Bound bound = bind(name, args, {"affix", "start", "end"}, 1);
  const Window where = window(runtime, self, bound[1], bound[2]);
  const auto matches = [&](const Value& value) {
    const std::string& affix = text_argument(value, name);
    if (!where.valid || affix.size() > where.text.size()) return false;
    return where.text.substr(suffix ? where.text.size() - affix.size() : 0, affix.size()) == affix;
  };
  const Value& affix = *bound[0];
  if (!affix.is_list() || affix.as_list().type == List::Type::list) return Value::boolean(matches(affix));
  const auto& all = affix.as_list().items;
  return Value::boolean(std::any_of(all.begin(), all.end(), matches));
}
METHOD(str_startswith) { return affix_method(runtime, self, args, "startswith", false); }
METHOD(str_endswith) { return affix_method(runtime, self, args, "endswith", true); }

// ---- splitting and joining ----

Value pieces(Runtime& runtime, const Value& self, const std::vector<std::string_view>& parts) {
  runtime.charge(static_cast<int64_t>(parts.size()));
  runtime.charge_scan(self.text().size());
  std::vector<Value> items;
  items.reserve(parts.size());
  for (const std::string_view part : parts)
    items.push_back(runtime.string(std::string(part), self.as_str().markup));
  return runtime.list(std::move(items));
}

std::vector<std::string_view> split_space(std::string_view text, int64_t limit) {
  std::vector<std::string_view> parts;
  for (;;) {
    text = strip(text, true, false);
    if (text.empty()) return parts;
    if (limit >= 0 && static_cast<int64_t>(parts.size()) == limit) {
      parts.push_back(text);
      return parts;
    }
    size_t end = 0;
    for (size_t next = 0; next < text.size(); end = next)
      if (is_space(next_code_point(text, next))) break;
    parts.push_back(text.substr(0, end));
    text.remove_prefix(end);
  }
}

std::vector<std::string_view> split_by(std::string_view text, std::string_view separator, int64_t limit) {
  std::vector<std::string_view> parts;
  size_t done = 0;
  while (limit < 0 || static_cast<int64_t>(parts.size()) < limit) {
    const size_t at = find_text(text, separator, done);
    if (at == std::string_view::npos) break;
    parts.push_back(text.substr(done, at - done));
    done = at + separator.size();
  }
  parts.push_back(text.substr(done));
  return parts;
}

Value split_method(Runtime& runtime, const Value& self, const Args& args, const char* name, bool from_right) {
  const Bound bound = bind(name, args, {"sep", "maxsplit"}, 0);
  const int64_t limit = int_argument(bound[1], -1, "maxsplit");
  const bool by_space = bound[0] == nullptr || bound[0]->is_none();
  const std::string separator = by_space ? "" : text_argument(*bound[0], name);
  if (!by_space && separator.empty()) fail("{}(): empty separator", name);
  if (!from_right || limit < 0) {
    return pieces(runtime, self,
                  by_space ? split_space(self.text(), limit) : split_by(self.text(), separator, limit));
  }
  // From the right: split the reversed text and turn the parts round. Code points are reversed, not bytes.
  std::u32string points = decode(self.text());
  std::reverse(points.begin(), points.end());
  std::u32string mark = decode(separator);
  std::reverse(mark.begin(), mark.end());
  const std::string text = encode(points);
  std::vector<Value> items;
  for (const std::string_view part :
       by_space ? split_space(text, limit) : split_by(text, encode(mark), limit)) {
    std::u32string piece = decode(part);
    std::reverse(piece.begin(), piece.end());
    items.push_back(runtime.string(encode(piece), self.as_str().markup));
  }
  std::reverse(items.begin(), items.end());
  runtime.charge(static_cast<int64_t>(text.size() / 8 + items.size()));
  return runtime.list(std::move(items));
}
METHOD(str_split) { return split_method(runtime, self, args, "split", false); }
METHOD(str_rsplit) { return split_method(runtime, self, args, "rsplit", true); }

METHOD(str_splitlines) {
  const Bound bound = bind("splitlines", args, {"keepends"}, 0);
  return pieces(runtime, self, split_lines(self.text(), bool_argument(bound[0], false)));
}

Value partition_method(Runtime& runtime, const Value& self, const Args& args, const char* name, bool last) {
  const std::string& separator = text_argument(*bind(name, args, {"sep"}, 1)[0], name);
  if (separator.empty()) fail("{}(): empty separator", name);
  const std::string_view text = self.text();
  const size_t at = last ? rfind_text(text, separator) : find_text(text, separator);
  std::string_view parts[3] = {text, {}, {}};
  if (at != std::string_view::npos) {
    parts[0] = text.substr(0, at);
    parts[1] = text.substr(at, separator.size());
    parts[2] = text.substr(at + separator.size());
  } else if (last) {
    std::swap(parts[0], parts[2]);
  }
  std::vector<Value> items;
  for (const std::string_view part : parts) items.push_back(like(runtime, self, std::string(part)));
  return runtime.tuple(std::move(items));
}
METHOD(str_partition) { return partition_method(runtime, self, args, "partition", false); }
METHOD(str_rpartition) { return partition_method(runtime, self, args, "rpartition", true); }

METHOD(str_join) {
  const Bound bound = bind("join", args, {"iterable"}, 1);
  std::string out;
  bool first = true;
  const auto sequence = items_of(runtime, *bound[0]);
  for (const Value& item : sequence->items) {
    if (!first) out += self.text();
    first = false;
    if (!item.is_string()) fail("join(): sequence item: expected a string, {} found", type_name(item));
    out += inserted(self, item, "join");
    Runtime::check_size(static_cast<int64_t>(out.size()));
    runtime.charge(1);
  }
  return like(runtime, self, std::move(out));
}

METHOD(str_replace) {
  const Bound bound = bind("replace", args, {"old", "new", "count"}, 2);
  const std::string& from = text_argument(*bound[0], "replace");
  const std::string to = inserted(self, *bound[1], "replace");
  runtime.charge(static_cast<int64_t>(self.text().size() / 16));
  return like(
      runtime, self,
      replace_text(self.text(), from, to, int_argument(bound[2], -1, "replace(): count"), kMaxStringBytes));
}

// ---- padding ----

Value justify(Runtime& runtime, const Value& self, const Args& args, const char* name, char align) {
  const Bound bound = bind(name, args, {"width", "fillchar"}, 1);
  const std::string fill = bound[1] == nullptr ? " " : text_argument(*bound[1], name);
  if (count_code_points(fill) != 1) fail("{}(): the fill character must be exactly one character long", name);
  const int64_t width = int_argument(bound[0], 0, "width"), length = self.as_str().length;
  if (align == '^') return like(runtime, self, center_text(self.text(), length, width, fill));
  if (width <= length) return self;
  Runtime::check_size((width - length) * static_cast<int64_t>(fill.size()));
  std::string padding;
  for (int64_t i = length; i < width; ++i) padding += fill;
  return like(runtime, self, align == '<' ? self.text() + padding : padding + self.text());
}
METHOD(str_center) { return justify(runtime, self, args, "center", '^'); }
METHOD(str_ljust) { return justify(runtime, self, args, "ljust", '<'); }
METHOD(str_rjust) { return justify(runtime, self, args, "rjust", '>'); }

METHOD(str_zfill) {
  const int64_t width = int_argument(bind("zfill", args, {"width"}, 1)[0], 0, "width");
  const int64_t missing = width - self.as_str().length;
  if (missing <= 0) return self;
  Runtime::check_size(missing);
  std::string text = self.text();
  const size_t sign = !text.empty() && (text[0] == '-' || text[0] == '+') ? 1 : 0;
  return like(runtime, self, text.insert(sign, static_cast<size_t>(missing), '0'));
}

METHOD(str_expandtabs) {
  const int64_t size = int_argument(bind("expandtabs", args, {"tabsize"}, 0)[0], 8, "tabsize");
  std::string out;
  int64_t column = 0;
  const std::string_view text = self.text();
  for (size_t at = 0; at < text.size();) {
    const char32_t c = next_code_point(text, at);
    if (c == '\t') {
      const int64_t blanks = size > 0 ? size - column % size : 0;
      Runtime::check_size(static_cast<int64_t>(out.size()) + blanks);
      out.append(static_cast<size_t>(blanks), ' ');
      column += blanks;
    } else {
      append_code_point(out, c);
      column = c == '\n' || c == '\r' ? 0 : column + 1;
    }
  }
  return like(runtime, self, std::move(out));
}

// ---- formatting ----

METHOD(str_format) { return brace_format(runtime, self, args); }

METHOD(str_format_map) {
  const Value& mapping = *bind("format_map", args, {"mapping"}, 1)[0];
  if (!mapping.is_dict()) fail("format_map(): expected a mapping, not {}", type_name(mapping));
  Args named;
  for (const auto& [key, value] : mapping.as_dict().items)
    if (key.is_string()) named.named.emplace_back(key.text(), value);
  return brace_format(runtime, self, named);
}

#define REFUSED(name) \
  [](Runtime&, const Value&, const Args&) -> Value { fail("the string method '" name "' is not supported"); }

constexpr NamedNative kMethods[] = {
    {"capitalize", str_capitalize},
    {"casefold", str_casefold},
    {"center", str_center},
    {"count", str_count},
    {"encode", REFUSED("encode")},
    {"endswith", str_endswith},
    {"expandtabs", str_expandtabs},
    {"find", str_find},
    {"format", str_format},
    {"format_map", str_format_map},
    {"index", str_index},
    {"isalnum", str_isalnum},
    {"isalpha", str_isalpha},
    {"isascii", str_isascii},
    {"isdecimal", str_isdecimal},
    {"isdigit", str_isdigit},
    {"isidentifier", str_isidentifier},
    {"islower", str_islower},
    {"isnumeric", str_isnumeric},
    {"isprintable", str_isprintable},
    {"isspace", str_isspace},
    {"istitle", str_istitle},
    {"isupper", str_isupper},
    {"join", str_join},
    {"ljust", str_ljust},
    {"lower", str_lower},
    {"lstrip", str_lstrip},
    {"maketrans", REFUSED("maketrans")},
    {"partition", str_partition},
    {"removeprefix", str_removeprefix},
    {"removesuffix", str_removesuffix},
    {"replace", str_replace},
    {"rfind", str_rfind},
    {"rindex", str_rindex},
    {"rjust", str_rjust},
    {"rpartition", str_rpartition},
    {"rsplit", str_rsplit},
    {"rstrip", str_rstrip},
    {"split", str_split},
    {"splitlines", str_splitlines},
    {"startswith", str_startswith},
    {"strip", str_strip},
    {"swapcase", str_swapcase},
    {"title", str_title},
    {"translate", REFUSED("translate")},
    {"upper", str_upper},
    {"zfill", str_zfill},
};

}  // namespace

const NamedNative* find_string_method(std::string_view name) { return find_native(kMethods, name); }

std::string center_text(std::string_view text, int64_t length, int64_t width, std::string_view fill) {
  const int64_t missing = width - length;
  if (missing <= 0) return std::string(text);
  Runtime::check_size(missing * static_cast<int64_t>(fill.size()));
  const int64_t left = missing / 2 + (missing & width & 1);  // the odd blank goes where CPython puts it
  std::string out;
  for (int64_t i = 0; i < left; ++i) out += fill;
  out += text;
  for (int64_t i = left; i < missing; ++i) out += fill;
  return out;
}

Value strip_text(Runtime& runtime, const Value& value, const Value* chars, bool left, bool right) {
  const std::string_view text = value.text();
  if (chars == nullptr || chars->is_none())
    return like(runtime, value, std::string(strip(text, left, right)));
  const std::u32string set = decode(text_argument(*chars, "strip"));
  runtime.charge(static_cast<int64_t>(set.size()));
  const std::u32string points = decode(text);
  size_t begin = 0, end = points.size();
  const auto listed = [&](char32_t c) {
    runtime.charge_scan(set.size());
    return set.find(c) != std::u32string::npos;
  };
  while (left && begin < end && listed(points[begin])) ++begin;
  while (right && end > begin && listed(points[end - 1])) --end;
  return like(runtime, value, encode(std::u32string_view(points).substr(begin, end - begin)));
}

std::vector<std::string_view> split_lines(std::string_view text, bool keep_ends) {
  std::vector<std::string_view> lines;
  size_t start = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t end = at;
    const char32_t c = next_code_point(text, at);
    if (!is_line_break(c)) continue;
    if (c == '\r' && at < text.size() && text[at] == '\n') ++at;
    lines.push_back(text.substr(start, (keep_ends ? at : end) - start));
    start = at;
  }
  if (start < text.size()) lines.push_back(text.substr(start));
  return lines;
}

}  // namespace atom::jinja
