// Values from JSON, and json.dumps with its arguments ensure_ascii, indent, separators and sort_keys.
#include "text/jinja_json.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "base/text_util.h"
#include "text/jinja_filters.h"
#include "text/jinja_operators.h"
#include "text/jinja_unicode.h"

namespace atom::jinja {
namespace {

class Writer {
 public:
  Writer(Runtime& runtime, const JsonStyle& style) : runtime_(runtime), style_(style) {}

  void write(const Value& value, int depth) {
    runtime_.charge(1);
    Runtime::check_size(static_cast<int64_t>(out_.size()));
    switch (value.kind()) {
      case Kind::none:
        out_ += "null";
        return;
      case Kind::boolean:
        out_ += value.as_boolean() ? "true" : "false";
        return;
      case Kind::integer:
        out_ += int_to_str(value.as_integer());
        return;
      case Kind::real:
        out_ += real_text(value.as_real());
        return;
      case Kind::string:
        write_string(value.text());
        return;
      case Kind::list:
        write_list(value.as_list(), depth);
        return;
      case Kind::dict:
        write_dict(value.as_dict(), depth);
        return;
      default:
        fail("object of type {} is not JSON serializable", type_name(value));
    }
  }
  std::string take() { return std::move(out_); }

 private:
  static std::string real_text(double value) {
    if (std::isnan(value)) return "NaN";
    if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
    return real_to_str(value);
  }

  void write_string(std::string_view text) {
    runtime_.charge_scan(text.size());
    out_ += '"';
    for (size_t at = 0; at < text.size();) {
      const size_t start = at;
      const char32_t c = next_code_point(text, at);
      switch (c) {
        case '"':
          out_ += "\\\"";
          break;
        case '\\':
          out_ += "\\\\";
          break;
        case '\n':
          out_ += "\\n";
          break;
        case '\r':
          out_ += "\\r";
          break;
        case '\t':
          out_ += "\\t";
          break;
        case '\b':
          out_ += "\\b";
          break;
        case '\f':
          out_ += "\\f";
          break;
        default:
          if (c < 0x20 || (style_.ensure_ascii && c >= 0x7F)) {
            write_escape(c);
          } else {
            out_ += text.substr(start, at - start);
          }
      }
    }
    out_ += '"';
  }

  void write_escape(char32_t c) {
    if (c < 0x10000) {
      out_ += fmt::format("\\u{:04x}", static_cast<uint32_t>(c));
      return;
    }
    const auto rest = static_cast<uint32_t>(c) - 0x10000;
    out_ += fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + (rest >> 10), 0xDC00 + (rest & 0x3FF));
  }

  void new_line(int depth) {
    if (!style_.indent) return;
    Runtime::check_size(
        static_cast<int64_t>(out_.size() + style_.indent->size() * static_cast<size_t>(depth)));
    out_ += '\n';
    for (int i = 0; i < depth; ++i) out_ += *style_.indent;
  }

  void write_list(const List& list, int depth) {
    out_ += '[';
    for (size_t i = 0; i < list.items.size(); ++i) {
      if (i > 0) out_ += style_.item_separator;
      new_line(depth + 1);
      write(list.items[i], depth + 1);
    }
    if (!list.items.empty()) new_line(depth);
    out_ += ']';
  }

  std::string key_text(const Value& key) {
    switch (key.kind()) {
      case Kind::string:
        return key.text();
      case Kind::none:
        return "null";
      case Kind::boolean:
        return key.as_boolean() ? "true" : "false";
      case Kind::integer:
        return int_to_str(key.as_integer());
      case Kind::real:
        return real_text(key.as_real());
      default:
        fail("keys must be str, int, float, bool or None, not {}", type_name(key));
    }
  }

  void write_dict(const Dict& dict, int depth) {
    std::vector<const std::pair<Value, Value>*> items;
    items.reserve(dict.items.size());
    for (const auto& item : dict.items) items.push_back(&item);
    if (style_.sort_keys)
      std::stable_sort(items.begin(), items.end(),
                       [&](const auto* a, const auto* b) { return less(runtime_, a->first, b->first); });
    out_ += '{';
    bool first = true;
    for (const auto* item : items) {
      if (!first) out_ += style_.item_separator;
      first = false;
      new_line(depth + 1);
      write_string(key_text(item->first));
      out_ += style_.key_separator;
      write(item->second, depth + 1);
    }
    if (!items.empty()) new_line(depth);
    out_ += '}';
  }

  Runtime& runtime_;
  const JsonStyle& style_;
  std::string out_;
};

Value from_json_at(Runtime& runtime, const Json& json, int depth) {
  if (depth > kMaxContainerDepth) fail("the input is nested more than {} deep", kMaxContainerDepth);
  switch (json.type()) {
    case Json::value_t::null:
      return Value();
    case Json::value_t::boolean:
      return Value::boolean(json.get<bool>());
    case Json::value_t::number_integer:
      return Value::integer(json.get<int64_t>());
    case Json::value_t::number_unsigned:
      return Value::integer(json.get<uint64_t>());
    case Json::value_t::number_float:
      return Value::real(json.get<double>());
    case Json::value_t::string: {
      const auto& text = json.get_ref<const std::string&>();
      if (!is_valid_utf8(text)) fail("the input holds a string that is not UTF-8");
      return runtime.string(text);
    }
    case Json::value_t::array: {
      std::vector<Value> items;
      items.reserve(json.size());
      for (const Json& item : json) items.push_back(from_json_at(runtime, item, depth + 1));
      return runtime.list(std::move(items));
    }
    case Json::value_t::object: {
      Dict result;
      result.items.reserve(json.size());
      for (const auto& [key, item] : json.items()) {
        if (!is_valid_utf8(key)) fail("the input holds a key that is not UTF-8");
        result.items.emplace_back(runtime.string(key), from_json_at(runtime, item, depth + 1));
      }
      return runtime.dict(std::move(result));
    }
    default:
      fail("the input holds a JSON value of an unknown type");
  }
}

}  // namespace

Value from_json(Runtime& runtime, const Json& json) { return from_json_at(runtime, json, 0); }

std::string dump_json(Runtime& runtime, const Value& value, const JsonStyle& style) {
  Writer writer(runtime, style);
  writer.write(value, 0);
  return writer.take();
}

std::string json_text(const Json& json) {
  Runtime runtime({});
  return dump_json(runtime, from_json(runtime, json), {});
}

ATOM_JINJA_FILTER(tojson) {
  const Bound bound = bind("tojson", args, {"ensure_ascii", "indent", "separators", "sort_keys"}, 0);
  JsonStyle style;
  style.ensure_ascii = bool_argument(bound[0], false);
  style.sort_keys = bool_argument(bound[3], false);
  if (bound[1] != nullptr && !bound[1]->is_none()) {
    if (bound[1]->is_string()) {
      style.indent = bound[1]->text();
    } else {
      const int64_t width = std::max<int64_t>(int_argument(bound[1], 0, "indent"), 0);
      Runtime::check_size(width);
      style.indent = std::string(static_cast<size_t>(width), ' ');
    }
    style.item_separator = ",";
  }
  if (bound[2] != nullptr && !bound[2]->is_none()) {
    const auto pair = items_of(runtime, *bound[2]);
    if (pair->items.size() != 2 || !pair->items[0].is_string() || !pair->items[1].is_string())
      fail("tojson: separators must be two strings");
    style.item_separator = pair->items[0].text();
    style.key_separator = pair->items[1].text();
  }
  return runtime.string(dump_json(runtime, self, style));
}

}  // namespace atom::jinja
