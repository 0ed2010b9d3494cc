// Filters that look into the elements: mapping, selecting, ordering, grouping.
#include <algorithm>

#include <fmt/format.h>

#include "text/jinja_filters.h"
#include "text/jinja_unicode.h"

namespace atom::jinja {
namespace {

bool is_missing(const Value* value) { return value == nullptr || value->is_none(); }

Value lower_case(Runtime& runtime, const Value& value) {
  return value.is_string() ? runtime.string(to_lower(value.text())) : value;
}

// What sort, unique, min, max and groupby compare: the attribute if one is named, in lower case unless told
// not to.
struct Key {
  const Value* attribute;
  bool case_sensitive;
  const Value* otherwise = nullptr;

  Value of(Runtime& runtime, const Value& item) const {
    runtime.charge(1);
    const Value value = is_missing(attribute) ? item : follow_path(runtime, item, *attribute, otherwise);
    return case_sensitive ? value : lower_case(runtime, value);
  }
};

// sort() takes several attributes with commas between.
Value sort_key(Runtime& runtime, const Value& item, const Value* attribute, bool case_sensitive) {
  if (is_missing(attribute) || !attribute->is_string() || attribute->text().find(',') == std::string::npos)
    return Key{attribute, case_sensitive}.of(runtime, item);
  std::vector<Value> keys;
  const std::string_view all = attribute->text();
  for (size_t at = 0; at <= all.size();) {
    const size_t comma = std::min(all.find(',', at), all.size());
    const Value path = runtime.string(std::string(all.substr(at, comma - at)));
    keys.push_back(Key{&path, case_sensitive}.of(runtime, item));
    at = comma + 1;
  }
  return runtime.tuple(std::move(keys));
}

using Keyed = std::vector<std::pair<Value, Value>>;  // key and element

// A stable sort; in reverse, equal elements keep their order too.
void sort_by_key(Runtime& runtime, Keyed& items, bool reverse) {
  std::stable_sort(items.begin(), items.end(), [&](const auto& a, const auto& b) {
    return reverse ? less(runtime, b.first, a.first) : less(runtime, a.first, b.first);
  });
}

std::vector<Value> elements(Keyed items) {
  std::vector<Value> out;
  out.reserve(items.size());
  for (auto& [key, item] : items) out.push_back(std::move(item));
  return out;
}

Value extreme(Runtime& runtime, std::string_view name, const Value& self, const Args& args, bool largest) {
  const Bound bound = bind(name, args, {"case_sensitive", "attribute"}, 0);
  const Key key{bound[1], bool_argument(bound[0], false)};
  const auto items = items_of(runtime, self);
  if (items->items.empty()) return runtime.undefined("no aggregated item, sequence was empty");
  Value best = items->items[0], best_key = key.of(runtime, best);
  for (size_t i = 1; i < items->items.size(); ++i) {
    Value candidate = key.of(runtime, items->items[i]);
    if (largest ? less(runtime, best_key, candidate) : less(runtime, candidate, best_key)) {
      best = items->items[i];
      best_key = std::move(candidate);
    }
  }
  return best;
}

// The arguments behind the first `skip` positional ones.
Args rest_of(const Args& args, size_t skip) {
  return {{args.positional.begin() + static_cast<ptrdiff_t>(skip), args.positional.end()}, args.named};
}

const NamedNative& named_argument(const Args& args, size_t place,
                                  const NamedNative* (*find)(std::string_view), std::string_view what) {
  if (!args.positional[place].is_string()) fail("the name of a {} must be a string", what);
  const std::string& name = args.positional[place].text();
  const NamedNative* native = find(name);
  if (native == nullptr) fail("no {} named '{}'", what, name);
  return *native;
}

Value select(Runtime& runtime, std::string_view name, const Value& self, const Args& args, bool keep,
             bool by_attribute) {
  std::vector<Value> kept;
  if (!truthy(self)) return make_generator(runtime, std::move(kept));
  const size_t skip = by_attribute ? 1 : 0;
  if (args.positional.size() < skip) fail("{}: the name of the attribute is missing", name);
  const bool tested = args.positional.size() > skip;
  const NamedNative* test = tested ? &named_argument(args, skip, find_test, "test") : nullptr;
  const Args test_args = tested ? rest_of(args, skip + 1) : Args{};
  const auto sequence = items_of(runtime, self);
  for (const Value& item : sequence->items) {
    runtime.charge(1);
    const Value value = by_attribute ? follow_path(runtime, item, args.positional[0]) : item;
    const bool passes = truthy(test != nullptr ? test->native(runtime, value, test_args) : value);
    if (passes == keep) kept.push_back(item);
  }
  return make_generator(runtime, std::move(kept));
}

}  // namespace

Value follow_path(Runtime& runtime, const Value& item, const Value& path, const Value* otherwise) {
  Value value = item;
  const auto step = [&](const Value& key) {
    value = get_item(runtime, value, key);
    if (value.is_undefined() && !is_missing(otherwise)) value = *otherwise;
  };
  if (!path.is_string()) {
    step(path);
    return value;
  }
  const std::string_view text = path.text();
  for (size_t at = 0; at <= text.size();) {
    const size_t dot = std::min(text.find('.', at), text.size());
    const std::string_view part = text.substr(at, dot - at);
    const bool index =
        !part.empty() && part.size() < 10 && part.find_first_not_of("0123456789") == std::string_view::npos;
    step(index ? Value::integer(std::stoi(std::string(part))) : runtime.string(std::string(part)));
    at = dot + 1;
  }
  return value;
}

ATOM_JINJA_FILTER(map) {
  std::vector<Value> mapped;
  if (!truthy(self)) return make_generator(runtime, std::move(mapped));
  if (args.positional.empty()) {
    const Bound bound = bind("map", args, {"attribute", "default"}, 1);
    const auto sequence = items_of(runtime, self);
    for (const Value& item : sequence->items) {
      runtime.charge(1);
      mapped.push_back(follow_path(runtime, item, *bound[0], bound[1]));
    }
  } else {
    const NamedNative& filter = named_argument(args, 0, find_filter, "filter");
    const Args rest = rest_of(args, 1);
    runtime.check_stack();
    const auto sequence = items_of(runtime, self);
    for (const Value& item : sequence->items) {
      runtime.charge(1);
      mapped.push_back(filter.native(runtime, item, rest));
    }
  }
  return make_generator(runtime, std::move(mapped));
}

ATOM_JINJA_FILTER(select) { return select(runtime, "select", self, args, true, false); }
ATOM_JINJA_FILTER(reject) { return select(runtime, "reject", self, args, false, false); }
ATOM_JINJA_FILTER(selectattr) { return select(runtime, "selectattr", self, args, true, true); }
ATOM_JINJA_FILTER(rejectattr) { return select(runtime, "rejectattr", self, args, false, true); }
ATOM_JINJA_FILTER(max) { return extreme(runtime, "max", self, args, true); }
ATOM_JINJA_FILTER(min) { return extreme(runtime, "min", self, args, false); }

ATOM_JINJA_FILTER(sort) {
  const Bound bound = bind("sort", args, {"reverse", "case_sensitive", "attribute"}, 0);
  const bool case_sensitive = bool_argument(bound[1], false);
  Keyed items;
  const auto sequence = items_of(runtime, self);
  for (const Value& item : sequence->items)
    items.emplace_back(sort_key(runtime, item, bound[2], case_sensitive), item);
  sort_by_key(runtime, items, bool_argument(bound[0], false));
  return runtime.list(elements(std::move(items)));
}

ATOM_JINJA_FILTER(dictsort) {
  const Bound bound = bind("dictsort", args, {"case_sensitive", "by", "reverse"}, 0);
  const bool case_sensitive = bool_argument(bound[0], false);
  const std::string by = bound[1] == nullptr ? "key" : to_str(runtime, *bound[1]);
  if (by != "key" && by != "value") fail("dictsort: you can only sort by either \"key\" or \"value\"");
  require_defined(self);
  if (!self.is_dict()) fail("dictsort: expected a mapping, not {}", type_name(self));
  Keyed items;
  for (const auto& [key, value] : self.as_dict().items) {
    const Value& chosen = by == "key" ? key : value;
    items.emplace_back(case_sensitive ? chosen : lower_case(runtime, chosen), runtime.tuple({key, value}));
  }
  sort_by_key(runtime, items, bool_argument(bound[2], false));
  return runtime.list(elements(std::move(items)));
}

ATOM_JINJA_FILTER(unique) {
  const Bound bound = bind("unique", args, {"case_sensitive", "attribute"}, 0);
  const Key key{bound[1], bool_argument(bound[0], false)};
  std::vector<Value> kept;
  Dict seen;
  const auto sequence = items_of(runtime, self);
  for (const Value& item : sequence->items) {
    const Value value = key.of(runtime, item);
    if (!hashable(value)) fail("unhashable type: '{}'", type_name(value));
    if (dict_find(runtime, seen, value) != nullptr) continue;
    seen.items.emplace_back(value, Value());
    kept.push_back(item);
  }
  return make_generator(runtime, std::move(kept));
}

ATOM_JINJA_FILTER(groupby) {
  const Bound bound = bind("groupby", args, {"attribute", "default", "case_sensitive"}, 1);
  const Key key{bound[0], bool_argument(bound[2], false), bound[1]};
  Keyed items;
  const auto sequence = items_of(runtime, self);
  for (const Value& item : sequence->items) items.emplace_back(key.of(runtime, item), item);
  sort_by_key(runtime, items, false);
  std::vector<Value> groups;
  for (size_t at = 0; at < items.size();) {
    size_t end = at + 1;
    while (end < items.size() && equals(runtime, items[end].first, items[at].first)) ++end;
    std::vector<Value> members;
    for (size_t i = at; i < end; ++i) members.push_back(items[i].second);
    // The group bears its first member's own spelling of the key.
    const Value name = Key{bound[0], true, bound[1]}.of(runtime, members[0]);
    groups.push_back(runtime.list({name, runtime.list(std::move(members))}, List::Type::group));
    at = end;
  }
  return runtime.list(std::move(groups));
}

}  // namespace atom::jinja
