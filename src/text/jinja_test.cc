// The template engine against Jinja2's own renders, and its limits.
#include <gtest/gtest.h>
#include <pthread.h>

#include <ctime>
#include <functional>

#include "base/json.h"
#include "text/chat_template.h"

namespace atom::text {
namespace {

std::tm seventh_of_march() {
  std::tm now{};
  now.tm_year = 2026 - 1900;
  now.tm_mon = 2;
  now.tm_mday = 7;
  now.tm_hour = 9;
  now.tm_min = 5;
  now.tm_sec = 3;
  return now;
}

std::string render(const std::string& source, Json variables = Json::object()) {
  ChatTemplateInputs inputs;
  inputs.kwargs = std::move(variables);
  inputs.now = seventh_of_march();
  return ChatTemplate(source, "t").render(inputs);
}

// What the error says; "" where there is none.
std::string error_of(const std::string& source, Json variables = Json::object()) {
  try {
    render(source, std::move(variables));
  } catch (const TemplateError& error) {
    return error.message();
  }
  return "";
}

// tests/make_jinja_cases.py makes the cases with Jinja2.
class JinjaCases : public testing::TestWithParam<const char*> {};

TEST_P(JinjaCases, RenderAsJinja2Does) {
  const std::string folder = ATOM_TEST_DATA "/data/jinja/";
  const Json variables = read_json_file(folder + "variables.json");
  const Json cases = read_json_file(folder + GetParam() + ".json");
  ASSERT_GT(cases.size(), 50u);
  for (const Json& test : cases) {
    const auto source = test["template"].get<std::string>();
    try {
      const std::string got = render(source, variables);
      if (test.contains("error")) {
        ADD_FAILURE() << source << "\nrenders as: " << got << "\nbut Jinja2 raises " << test["error"];
      } else {
        EXPECT_EQ(got, test["expected"].get<std::string>()) << source;
      }
    } catch (const TemplateError& error) {
      EXPECT_TRUE(test.contains("error")) << source << "\nfails: " << error.message();
      EXPECT_EQ(error.raised(), test.contains("message")) << source;
      if (test.contains("message")) {
        EXPECT_EQ(error.message(), test["message"].get<std::string>()) << source;
      }
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Files, JinjaCases,
                         testing::Values("expressions", "filters", "tests", "methods", "statements"),
                         [](const auto& info) { return std::string(info.param); });

TEST(Jinja, ErrorsNameTheTemplateAndTheLine) {
  EXPECT_EQ(error_of("a\n{% if x %}\n"),
            "t: line 2: unexpected end of template: 'if' of line 2 needs 'elif' or 'else' or 'endif'");
  EXPECT_EQ(error_of("a\n\n{{ x.y }}"), "t: line 3: 'x' is undefined");
  EXPECT_EQ(error_of("{{ 1 }}\n{{ d.a.b }}", {{"d", Json::object()}}),
            "t: line 2: 'dict object' has no attribute 'a'");
  EXPECT_EQ(error_of("{{ x|nope }}"), "t: line 1: no filter named 'nope'");
}

TEST(Jinja, RefusesByNameWhatItLacks) {
  for (const std::string tag :
       {"include 'x'", "import 'x' as y", "from 'x' import y", "extends 'x'", "block x"})
    EXPECT_NE(error_of("{% " + tag + " %}").find("is not supported"), std::string::npos) << tag;
  for (const std::string filter : {"pprint", "random", "urlize", "wordwrap"})
    EXPECT_NE(error_of("{{ 'a'|" + filter + " }}").find("'" + filter + "' is not supported"),
              std::string::npos);
  EXPECT_NE(error_of("{{ lipsum() }}").find("'lipsum' is not supported"), std::string::npos);
  EXPECT_NE(error_of("{{ 2**200 }}").find("128 bits"), std::string::npos);
}

TEST(Jinja, GenerationTagIsAScope) {
  EXPECT_EQ(render("{% generation %}a{% set x = 1 %}{{ x }}{% endgeneration %}{{ x is defined }}"),
            "a1False");
}

TEST(Jinja, KeepsIntegersBeyondInt64) {
  EXPECT_EQ(render("{{ x }} {{ x + 1 }} {{ x|tojson }}", {{"x", 18446744073709551615u}}),
            "18446744073709551615 18446744073709551616 18446744073709551615");
}

TEST(Jinja, RefusesTextThatIsNotUtf8) {
  EXPECT_NE(error_of("\xff").find("UTF-8"), std::string::npos);
  EXPECT_NE(error_of("{{ x }}", {{"x", "\xc3"}}).find("UTF-8"), std::string::npos);
}

// Runs on a thread with a stack of 512 KiB.
void on_small_stack(const std::function<void()>& work) {
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  ASSERT_EQ(pthread_attr_setstacksize(&attributes, 512 << 10), 0);
  pthread_t thread;
  const auto run = [](void* argument) -> void* {
    (*static_cast<const std::function<void()>*>(argument))();
    return nullptr;
  };
  ASSERT_EQ(pthread_create(&thread, &attributes, run, const_cast<std::function<void()>*>(&work)), 0);
  pthread_join(thread, nullptr);
  pthread_attr_destroy(&attributes);
}

std::string repeated(const std::string& text, int times) {
  std::string out;
  for (int i = 0; i < times; ++i) out += text;
  return out;
}

TEST(Jinja, DeepTemplatesFailWithoutOverflowingASmallStack) {
  on_small_stack([] {
    for (const std::string& source : std::vector<std::string>{
             "{{ " + repeated("(", 20000) + "1" + repeated(")", 20000) + " }}",
             "{{ " + repeated("[", 20000) + repeated("]", 20000) + " }}",
             "{{ " + repeated("{1:", 20000) + "1" + repeated("}", 20000) + " }}",
             "{{ " + repeated("-", 20000) + "1 }}",
             "{{ " + repeated("not ", 20000) + "1 }}",
             "{{ 1" + repeated(" + 1", 20000) + " }}",
             "{{ x" + repeated(".a", 20000) + " }}",
             "{{ x" + repeated("()", 20000) + " }}",
             "{{ x" + repeated("|e", 20000) + " }}",
             "{{ x" + repeated(" is not none", 1) + repeated(" if x else x", 20000) + " }}",
             "{{ x" + repeated("[x", 20000) + repeated("]", 20000) + " }}",
             repeated("{% if x %}", 20000) + repeated("{% endif %}", 20000),
             repeated("{% for x in y %}", 20000),
             "{% set " + repeated("(", 20000) + "a" + repeated(")", 20000) + " = 1 %}",
             "{% filter e" + repeated("|e", 20000) + " %}{% endfilter %}",
             "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
             "{% macro m(x) %}{{ m(x|map('upper')|list + [m(x)]) }}{% endmacro %}{{ m([]) }}",
             "{% macro m() %}{% call m() %}{{ caller() }}{% endcall %}{% endmacro %}{{ m() }}",
             "{% for i in [1] recursive %}{{ loop([1]) }}{% endfor %}",
             "{% set n = namespace(l=[]) %}{% for i in range(1000) %}{% set n.l = [n.l] %}{% endfor %}{{ n.l "
             "}}",
             "{% set n = namespace() %}{% set n.n = n %}{{ n }}",
             "{% set n = namespace() %}{% for i in range(5000) %}{% set m = namespace(n=n) %}"
             "{% set n.n = m %}{% endfor %}{{ n }}",
         })
      EXPECT_NE(error_of(source), "") << source.substr(0, 60);
  });
}

// What fits within the bound of the stack; a sanitizer's frames are several times larger.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int kReasonableDepth = 9, kReasonableChain = 25;
#else
constexpr int kReasonableDepth = 40, kReasonableChain = 150;
#endif

TEST(Jinja, LongChainsWithinReasonRender) {
  EXPECT_EQ(render("{{ 1" + repeated(" + 1", kReasonableChain) + " }}"),
            std::to_string(kReasonableChain + 1));
  EXPECT_EQ(render(repeated("{% if true %}", 2 * kReasonableDepth) + "x" +
                   repeated("{% endif %}", 2 * kReasonableDepth)),
            "x");
  std::string digits;
  for (int n = kReasonableDepth; n >= 0; --n) digits += std::to_string(n);
  const std::string source =
      "{% macro f(n) %}{{ n }}{% if n > 0 %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(" +
      std::to_string(kReasonableDepth) + ") }}";
  on_small_stack([&] { EXPECT_EQ(render(source), digits); });
}

TEST(Jinja, HostileTemplatesFailSoon) {
  for (const std::string& source : std::vector<std::string>{
           "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
           "{{ range(10**9) }}",
           "{{ 'a' * 10**9 }}",
           "{{ [1] * 10**9 }}",
           "{{ 'a'.ljust(10**9) }}",
           "{{ 'a'|center(10**9) }}",
           "{{ '%999999999d' % 1 }}",
           "{{ '{:999999999}'.format(1) }}",
           "{{ '%.999999999f' % 1 }}",
           "{{ [[1]]|tojson(indent=10**9) }}",
           "{{ 'a'|indent(10**9) }}",
           "{{ [1]|batch(10**9, 0)|list }}",
           "{{ [1]|slice(10**9)|list }}",
           "{{ '\t'.expandtabs(10**9) }}",
           "{{ 2**(10**9) }}",
           "{% set n = namespace(s='x') %}{% for i in range(1000) %}{% set n.s = n.s + n.s %}{% endfor %}",
           "{% set n = namespace(s='x') %}{% for i in range(1000) %}{% set n.s = n.s.replace('x', 'xx') %}{% "
           "endfor %}",
           "{% set n = namespace(l=[1]) %}{% for i in range(1000) %}{% set n.l = n.l + n.l %}{% endfor %}",
           "{% set n = namespace(l=[]) %}{% for i in range(100) %}{% set n.l = [n.l, n.l] %}{% endfor %}{{ "
           "n.l }}",
           "{% set n = namespace(l=[]) %}{% for i in range(100) %}{% set n.l = [n.l, n.l] %}{% endfor %}{{ "
           "n.l|tojson }}",
           "{% set n = namespace(a=[], b=[]) %}{% for i in range(100) %}{% set n.a = [n.a, n.a] %}"
           "{% set n.b = [n.b, n.b] %}{% endfor %}{{ n.a == n.b }}",
           "{% set s = 'a' * 10000000 %}{% for i in range(100000) %}{% if 'b' in s %}{% endif %}{% endfor %}",
           "{% set s = 'a' * 10000000 %}{% for i in range(100000) %}{{ s }}{% endfor %}",
           "{% for i in range(100000) %}{{ range(100000)|list|length }}{% endfor %}",
           "{{ strftime_now('%999999999d') }}",
           "{{ x" + repeated(" ~ x", 150) + " }}",
       }) {
    const std::clock_t start = std::clock();  // of the processor: the machine may be busy
    EXPECT_NE(error_of(source, {{"x", std::string(1 << 20, 'a')}}), "") << source.substr(0, 80);
    const double seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
    EXPECT_LT(seconds, 10) << source.substr(0, 80);  // generous, for instrumented builds
  }
}

}  // namespace
}  // namespace atom::text
