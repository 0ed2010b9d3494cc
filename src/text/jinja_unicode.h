// Python's view of text over UTF-8: code points, white space, case. All text given here is well-formed UTF-8.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace atom::jinja {

int64_t count_code_points(std::string_view text);
// The code point that starts at `at`, which moves behind it.
char32_t next_code_point(std::string_view text, size_t& at);
void append_code_point(std::string& out, char32_t code_point);
// Where code point `index` starts; the end of the text for an index past it.
size_t byte_offset(std::string_view text, int64_t index);
std::u32string decode(std::string_view text);
std::string encode(std::u32string_view text);

bool is_space(char32_t c);       // str.isspace
bool is_printable(char32_t c);   // repr() keeps it
bool is_word(char32_t c);        // \w
bool is_line_break(char32_t c);  // str.splitlines splits there

std::string_view strip(std::string_view text, bool left, bool right);  // white space
std::string to_upper(std::string_view text);
std::string to_lower(std::string_view text);
std::string case_fold(std::string_view text);
std::string swap_case(std::string_view text);
std::string capitalize(std::string_view text);
std::string title_case(std::string_view text);  // str.title

// str.isalpha() and its like by name; false for the empty string except "isascii" and "isprintable".
bool text_is(std::string_view predicate, std::string_view text);

// The first `needle` at or after `from`, in linear time; npos where there is none.
size_t find_text(std::string_view text, std::string_view needle, size_t from = 0);
size_t rfind_text(std::string_view text, std::string_view needle);
std::string replace_text(std::string_view text, std::string_view from, std::string_view to, int64_t count,
                         int64_t max_bytes);

}  // namespace atom::jinja
