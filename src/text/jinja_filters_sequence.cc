// Filters over sequences as they stand.
#include "text/jinja_filters.h"
#include "text/jinja_unicode.h"

namespace atom::jinja {
namespace {

Value reversed(Runtime& runtime, const Value& value) {
  return get_slice(runtime, value, Value(), Value(), Value::integer(-1));
}

}  // namespace

ATOM_JINJA_FILTER(attr) {
  const Bound bound = bind("attr", args, {"name"}, 1);
  if (!bound[0]->is_string()) fail("attr: the name must be a string");
  require_defined(self);
  // Unlike the dot, it does not fall back to an item.
  return get_attribute(
      runtime, self.is_dict() && find_method(self, bound[0]->text()) == nullptr ? runtime.dict({}) : self,
      bound[0]->text());
}

ATOM_JINJA_FILTER(default) {
  const Bound bound = bind("default", args, {"default_value", "boolean"}, 0);
  const bool missing = self.is_undefined() || (bool_argument(bound[1], false) && !truthy(self));
  if (!missing) return self;
  return bound[0] == nullptr ? runtime.string("") : *bound[0];
}

ATOM_JINJA_FILTER(length) {
  bind("length", args, {}, 0);
  runtime.charge(1);
  const auto length = length_of(self);
  if (!length) fail("object of type '{}' has no len()", type_name(self));
  return Value::integer(*length);
}

ATOM_JINJA_FILTER(list) {
  bind("list", args, {}, 0);
  const auto items = items_of(runtime, self);
  runtime.charge(static_cast<int64_t>(items->items.size()));
  return items->type == List::Type::list ? Value(items) : runtime.list(items->items);
}

ATOM_JINJA_FILTER(first) {
  bind("first", args, {}, 0);
  if (auto* generator = self.as<Generator>()) {
    if (auto value = generator->next(runtime)) return *std::move(value);
    return runtime.undefined("no first item, sequence was empty");
  }
  const auto items = items_of(runtime, self);
  return items->items.empty() ? runtime.undefined("no first item, sequence was empty") : items->items.front();
}

ATOM_JINJA_FILTER(last) {
  bind("last", args, {}, 0);
  if (self.as<Generator>() != nullptr) fail("last: a generator cannot be reversed; make a list of it");
  const auto items = items_of(runtime, self);
  return items->items.empty() ? runtime.undefined("no last item, sequence was empty") : items->items.back();
}

ATOM_JINJA_FILTER(reverse) {
  bind("reverse", args, {}, 0);
  if (self.is_string()) return reversed(runtime, self);
  const auto items = items_of(runtime, self);
  const Value result = reversed(runtime, Value(items));
  if (self.as<Generator>() != nullptr || self.is_undefined()) return runtime.list(result.as_list().items);
  return make_generator(runtime, result.as_list().items);
}

ATOM_JINJA_FILTER(items) {
  bind("items", args, {}, 0);
  std::vector<Value> pairs;
  if (!self.is_undefined()) {
    if (!self.is_dict()) fail("items: can only get item pairs from a mapping, not {}", type_name(self));
    for (const auto& [key, value] : self.as_dict().items) pairs.push_back(runtime.tuple({key, value}));
  }
  return make_generator(runtime, std::move(pairs));
}

ATOM_JINJA_FILTER(join) {
  const Bound bound = bind("join", args, {"d", "attribute"}, 0);
  const std::string separator = bound[0] == nullptr ? "" : to_str(runtime, *bound[0]);
  const bool by_attribute = bound[1] != nullptr && !bound[1]->is_none();
  std::string out;
  bool first = true;
  const auto sequence = items_of(runtime, self);
  for (const Value& item : sequence->items) {
    runtime.charge(1);
    if (!first) out += separator;
    first = false;
    out += to_str(runtime, by_attribute ? follow_path(runtime, item, *bound[1]) : item);
    Runtime::check_size(static_cast<int64_t>(out.size()));
  }
  runtime.charge_scan(out.size());
  return runtime.string(std::move(out));
}

ATOM_JINJA_FILTER(sum) {
  const Bound bound = bind("sum", args, {"attribute", "start"}, 0);
  const bool by_attribute = bound[0] != nullptr && !bound[0]->is_none();
  Value total = bound[1] == nullptr ? Value::integer(0) : *bound[1];
  if (total.is_string()) fail("sum() can't sum strings");
  const auto sequence = items_of(runtime, self);
  for (const Value& item : sequence->items) {
    runtime.charge(1);
    total = arithmetic(runtime, BinaryOp::add, total,
                       by_attribute ? follow_path(runtime, item, *bound[0]) : item);
  }
  return total;
}

ATOM_JINJA_FILTER(batch) {
  const Bound bound = bind("batch", args, {"linecount", "fill_with"}, 1);
  const int64_t size = int_argument(bound[0], 0, "batch: linecount");
  const bool fills = bound[1] != nullptr && !bound[1]->is_none();
  std::vector<Value> rows, row;
  bool started = false;
  const auto sequence = items_of(runtime, self);
  for (const Value& item : sequence->items) {
    runtime.charge(1);
    if (static_cast<int64_t>(row.size()) == size) {
      rows.push_back(runtime.list(std::exchange(row, {})));
    }
    row.push_back(item);
    started = true;
  }
  if (started) {
    const int64_t missing = fills ? size - static_cast<int64_t>(row.size()) : 0;
    runtime.charge(std::max<int64_t>(missing, 0));
    for (int64_t i = 0; i < missing; ++i) row.push_back(*bound[1]);
    rows.push_back(runtime.list(std::move(row)));
  }
  return make_generator(runtime, std::move(rows));
}

ATOM_JINJA_FILTER(slice) {
  const Bound bound = bind("slice", args, {"slices", "fill_with"}, 1);
  const int64_t slices = int_argument(bound[0], 0, "slice: slices");
  if (slices == 0) fail("slice: integer division or modulo by zero");
  const bool fills = bound[1] != nullptr && !bound[1]->is_none();
  const auto all = items_of(runtime, self);
  const auto count = static_cast<int64_t>(all->items.size());
  std::vector<Value> columns;
  int64_t at = 0;
  for (int64_t i = 0; i < slices; ++i) {
    runtime.charge(1);
    const int64_t size = count / slices + (i < count % slices);
    std::vector<Value> column(all->items.begin() + at, all->items.begin() + at + size);
    at += size;
    if (fills && i >= count % slices) column.push_back(*bound[1]);
    columns.push_back(runtime.list(std::move(column)));
  }
  return make_generator(runtime, std::move(columns));
}

}  // namespace atom::jinja
