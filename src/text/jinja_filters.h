// The builtin filters by theme. The table that find_filter() searches is in jinja_filters.cc.
#pragma once
#include "text/jinja_objects.h"
#include "text/jinja_operators.h"
#include "text/jinja_runtime.h"

namespace atom::jinja {

#define ATOM_JINJA_FILTER(name) Value filter_##name(Runtime& runtime, const Value& self, const Args& args)

// jinja_filters_text.cc
ATOM_JINJA_FILTER(capitalize);
ATOM_JINJA_FILTER(center);
ATOM_JINJA_FILTER(escape);
ATOM_JINJA_FILTER(filesizeformat);
ATOM_JINJA_FILTER(forceescape);
ATOM_JINJA_FILTER(format);
ATOM_JINJA_FILTER(indent);
ATOM_JINJA_FILTER(lower);
ATOM_JINJA_FILTER(replace);
ATOM_JINJA_FILTER(safe);
ATOM_JINJA_FILTER(string);
ATOM_JINJA_FILTER(striptags);
ATOM_JINJA_FILTER(title);
ATOM_JINJA_FILTER(trim);
ATOM_JINJA_FILTER(truncate);
ATOM_JINJA_FILTER(upper);
ATOM_JINJA_FILTER(urlencode);
ATOM_JINJA_FILTER(wordcount);
ATOM_JINJA_FILTER(xmlattr);

// jinja_filters_number.cc
ATOM_JINJA_FILTER(abs);
ATOM_JINJA_FILTER(float);
ATOM_JINJA_FILTER(int);
ATOM_JINJA_FILTER(round);

// jinja_json.cc
ATOM_JINJA_FILTER(tojson);

// jinja_filters_sequence.cc
ATOM_JINJA_FILTER(attr);
ATOM_JINJA_FILTER(batch);
ATOM_JINJA_FILTER(default);
ATOM_JINJA_FILTER(first);
ATOM_JINJA_FILTER(items);
ATOM_JINJA_FILTER(join);
ATOM_JINJA_FILTER(last);
ATOM_JINJA_FILTER(length);
ATOM_JINJA_FILTER(list);
ATOM_JINJA_FILTER(reverse);
ATOM_JINJA_FILTER(slice);
ATOM_JINJA_FILTER(sum);

// jinja_filters_select.cc
ATOM_JINJA_FILTER(dictsort);
ATOM_JINJA_FILTER(groupby);
ATOM_JINJA_FILTER(map);
ATOM_JINJA_FILTER(max);
ATOM_JINJA_FILTER(min);
ATOM_JINJA_FILTER(reject);
ATOM_JINJA_FILTER(rejectattr);
ATOM_JINJA_FILTER(select);
ATOM_JINJA_FILTER(selectattr);
ATOM_JINJA_FILTER(sort);
ATOM_JINJA_FILTER(unique);

// What a dotted attribute such as "function.name" or "0.id" or an index leads to from `item`; `otherwise`
// stands in for what is undefined, if it is not null.
Value follow_path(Runtime& runtime, const Value& item, const Value& path, const Value* otherwise = nullptr);

}  // namespace atom::jinja
