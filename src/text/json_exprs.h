// The parts that grammars of JSON are made of.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/grammar.h"
#include "text/regex_grammar.h"

namespace atom::text {

class JsonExprs {
 public:
  using Expr = GrammarBuilder::Expr;
  explicit JsonExprs(GrammarBuilder& builder);

  Expr space() const { return space_; }          // where JSON allows white space; may be empty
  Expr string() const { return string_; }        // with its quotes
  Expr character() const { return character_; }  // one character of a string, possibly escaped
  Expr integer() const { return integer_; }
  Expr number() const { return number_; }
  Expr boolean() const { return boolean_; }
  Expr null() const { return null_; }
  Expr value() const { return value_; }
  Expr object() const { return object_; }
  Expr array() const { return array_; }

  Expr quoted(Expr inside) const;
  // Characters of a string's value as they are written: raw where JSON allows it, else escaped.
  Expr characters(const CodePoints& ranges) const;
  // `open` item (, item)* `close`, with white space; between min and max items.
  Expr list(std::string_view open, Expr item, std::string_view close, int64_t min, int64_t max) const;
  Expr pair(Expr key, Expr value) const;  // key : value
  // Keys of an object that are none of `names`.
  Expr other_keys(const std::vector<std::string>& names) const;
  // Whole numbers between two bounds; min <= max.
  Expr integer_between(std::optional<int64_t> min, std::optional<int64_t> max) const;
  // Numbers between two whole bounds, without exponents; `open` leaves the bound itself out.
  Expr number_between(std::optional<int64_t> min, bool min_open, std::optional<int64_t> max,
                      bool max_open) const;

 private:
  Expr digits_between(std::string_view low, std::string_view high) const;
  Expr whole_between(int64_t low, std::optional<int64_t> high) const;
  Expr fraction_between(int64_t low, bool low_open, std::optional<int64_t> high, bool high_open) const;
  Expr digit(char first, char last) const;

  GrammarBuilder& b_;
  Expr space_, string_, character_, integer_, number_, boolean_, null_, value_, object_, array_;
};

}  // namespace atom::text
