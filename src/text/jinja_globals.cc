// The functions that every template can call.
#include <locale.h>
#include <ctime>

#include <fmt/format.h>

#include "text/jinja_objects.h"
#include "text/jinja_operators.h"

namespace atom::jinja {
namespace {

#define GLOBAL(name) Value global_##name(Runtime& runtime, const Value&, const Args& args)

GLOBAL(range) {
  const Bound bound = bind("range", args, {"start", "stop", "step"}, 1);
  const auto number = [](const Value* value) {
    require_defined(*value);
    if (!value->is_integral()) fail("range() needs integers, not {}", type_name(*value));
    return value->as_integer();
  };
  if (!args.named.empty()) fail("range() takes no keyword arguments");
  const bool single = bound[1] == nullptr;
  const Int start = single ? 0 : number(bound[0]), stop = number(bound[single ? 0 : 1]);
  const Int step = bound[2] == nullptr ? 1 : number(bound[2]);
  if (step == 0) fail("range() arg 3 must not be zero");
  constexpr Int kBound = Int{1} << 100;  // so that the difference does not overflow
  for (const Int value : {start, stop, step})
    if (value > kBound || value < -kBound) fail("range() of {} is too large", int_to_str(value));
  const Int span = step > 0 ? stop - start : start - stop, stride = step > 0 ? step : -step;
  const Int count = span > 0 ? (span + stride - 1) / stride : 0;
  if (count > kMaxRange) fail("range() is too big: {} elements, at most {}", int_to_str(count), kMaxRange);
  return Value(runtime.make<Range>(start, stop, step, static_cast<int64_t>(count)));
}

// dict(mapping or pairs, **named), as the items of a new dict.
Dict dict_from(Runtime& runtime, std::string_view name, const Args& args) {
  if (args.positional.size() > 1) fail("{}() takes at most one positional argument", name);
  Dict result;
  if (!args.positional.empty()) {
    const Value& source = args.positional[0];
    if (source.is_dict()) {
      result.items = source.as_dict().items;
    } else {
      const auto sequence = items_of(runtime, source);
      for (const Value& pair : sequence->items) {
        const auto both = items_of(runtime, pair);
        if (both->items.size() != 2) fail("{}() needs pairs", name);
        dict_set(runtime, result, both->items[0], both->items[1]);
      }
    }
  }
  for (const auto& [key, value] : args.named) dict_set(runtime, result, runtime.string(key), value);
  return result;
}

GLOBAL(dict) { return runtime.dict(dict_from(runtime, "dict", args)); }

GLOBAL(namespace) {
  auto* result = runtime.make<Namespace>();
  result->values = dict_from(runtime, "namespace", args);
  for (const auto& [key, value] : result->values.items)
    if (!key.is_string()) fail("namespace() needs strings as names");
  return Value(result);
}

GLOBAL(cycler) {
  if (args.positional.empty() || !args.named.empty()) fail("cycler() needs at least one item");
  return Value(runtime.make<Cycler>(args.positional));
}

GLOBAL(joiner) {
  const Bound bound = bind("joiner", args, {"sep"}, 0);
  return Value(runtime.make<Joiner>(bound[0] == nullptr ? runtime.string(", ") : *bound[0]));
}

GLOBAL(lipsum) {
  static_cast<void>(runtime);
  static_cast<void>(args);
  fail("the function 'lipsum' is not supported");
}

GLOBAL(raise_exception) {
  throw TemplateError(to_str(runtime, *bind("raise_exception", args, {"message"}, 1)[0]), true);
}

GLOBAL(strftime_now) {
  const Value& format = *bind("strftime_now", args, {"format"}, 1)[0];
  if (!format.is_string()) fail("strftime_now() needs a string, not {}", type_name(format));
  if (format.text().size() > 1024) fail("the format of strftime_now() is longer than 1024 bytes");
  const std::tm now = runtime.now();
  // What the C library has no notion of, or only with a time zone, is filled in first.
  std::string pattern;
  const std::string& text = format.text();
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%' || i + 1 == text.size()) {
      pattern += text[i] == '%' ? std::string("%%") : std::string(1, text[i]);
      continue;
    }
    const char directive = text[++i];
    if (directive >= '0' && directive <= '9') fail("strftime_now(): widths are not supported");
    if (directive == 'f') {
      pattern += "000000";
    } else if (directive != 'z' && directive != 'Z') {
      pattern += '%';
      pattern += directive;
    }
  }
  static const locale_t kEnglish = newlocale(LC_ALL_MASK, "C", nullptr);
  pattern += '.';  // so that an empty result differs from a buffer too small
  char buffer[16384];
  const size_t size = strftime_l(buffer, sizeof(buffer), pattern.c_str(), &now, kEnglish);
  if (size == 0) fail("strftime_now(): the result is too long");
  return runtime.string(std::string(buffer, size - 1));
}

constexpr NamedNative kGlobals[] = {
    {"cycler", global_cycler},       {"dict", global_dict},
    {"joiner", global_joiner},       {"lipsum", global_lipsum},
    {"namespace", global_namespace}, {"raise_exception", global_raise_exception},
    {"range", global_range},         {"strftime_now", global_strftime_now},
};

}  // namespace

const NamedNative* find_global(std::string_view name) { return find_native(kGlobals, name); }

}  // namespace atom::jinja
