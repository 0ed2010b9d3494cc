// str() and repr().
#include <cmath>

#include <fmt/format.h>

#include "text/jinja_operators.h"
#include "text/jinja_unicode.h"

namespace atom::jinja {
namespace {

constexpr int kMaxReprDepth = kMaxContainerDepth + 50;  // namespaces may hold each other in a ring

void append_repr(Runtime& runtime, const Value& value, int depth, std::string& out);

void append_items(Runtime& runtime, const List& list, int depth, std::string& out) {
  const bool tuple = list.type != List::Type::list;
  out += tuple ? '(' : '[';
  for (size_t i = 0; i < list.items.size(); ++i) {
    if (i > 0) out += ", ";
    append_repr(runtime, list.items[i], depth + 1, out);
  }
  if (tuple && list.items.size() == 1) out += ',';
  out += tuple ? ')' : ']';
}

void append_dict(Runtime& runtime, const Dict& dict, int depth, std::string& out) {
  out += '{';
  bool first = true;
  for (const auto& [key, value] : dict.items) {
    if (!first) out += ", ";
    first = false;
    append_repr(runtime, key, depth + 1, out);
    out += ": ";
    append_repr(runtime, value, depth + 1, out);
  }
  out += '}';
}

void append_repr(Runtime& runtime, const Value& value, int depth, std::string& out) {
  runtime.charge(1);
  Runtime::check_size(static_cast<int64_t>(out.size()));
  if (depth > kMaxReprDepth) fail("cannot print a value that holds itself");
  switch (value.kind()) {
    case Kind::none:
      out += "None";
      break;
    case Kind::boolean:
      out += value.as_boolean() ? "True" : "False";
      break;
    case Kind::integer:
      out += int_to_str(value.as_integer());
      break;
    case Kind::real:
      out += real_to_str(value.as_real());
      break;
    case Kind::string:
      runtime.charge_scan(value.text().size());
      if (value.as_str().markup) {
        out += "Markup(" + quote(value.text()) + ")";
      } else {
        out += quote(value.text());
      }
      break;
    case Kind::list:
      append_items(runtime, value.as_list(), depth, out);
      break;
    case Kind::dict:
      append_dict(runtime, value.as_dict(), depth, out);
      break;
    case Kind::undefined:
      out += "Undefined";
      break;
    case Kind::object:
      out += value.as_object()->repr(runtime, depth);
      break;
  }
}

}  // namespace

std::string quote(std::string_view text) {
  const bool has_single = text.find('\'') != std::string_view::npos;
  const char mark = has_single && text.find('"') == std::string_view::npos ? '"' : '\'';
  std::string out(1, mark);
  for (size_t at = 0; at < text.size();) {
    const char32_t c = next_code_point(text, at);
    if (c == '\\' || c == static_cast<unsigned char>(mark)) {
      out += '\\';
      out += static_cast<char>(c);
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\r') {
      out += "\\r";
    } else if (c == '\t') {
      out += "\\t";
    } else if (is_printable(c)) {
      append_code_point(out, c);
    } else if (c < 0x100) {
      out += fmt::format("\\x{:02x}", static_cast<uint32_t>(c));
    } else if (c < 0x10000) {
      out += fmt::format("\\u{:04x}", static_cast<uint32_t>(c));
    } else {
      out += fmt::format("\\U{:08x}", static_cast<uint32_t>(c));
    }
  }
  return out += mark;
}

std::string int_to_str(Int value) { return fmt::format("{}", value); }

std::string real_to_str(double value) {
  if (std::isnan(value)) return "nan";
  std::string text = fmt::format("{}", value);  // the shortest digits that read back the same
  if (text.find_first_not_of("-0123456789") == std::string::npos) text += ".0";
  return text;
}

std::string to_repr(Runtime& runtime, const Value& value, int depth) {
  std::string out;
  append_repr(runtime, value, depth, out);
  return out;
}

std::string to_str(Runtime& runtime, const Value& value) {
  if (value.is_string()) return value.text();
  if (value.is_undefined()) return {};
  return to_repr(runtime, value);
}

}  // namespace atom::jinja
