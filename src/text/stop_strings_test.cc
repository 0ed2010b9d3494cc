// Tests of stop strings in a stream.
#include "text/stop_strings.h"

#include <gtest/gtest.h>

#include <random>

namespace atom::text {
namespace {

struct Outcome {
  std::string text;
  bool stopped;
  bool operator==(const Outcome&) const = default;
};
std::ostream& operator<<(std::ostream& out, const Outcome& o) {
  return out << '"' << o.text << "\" " << o.stopped;
}

Outcome run(const std::vector<std::string>& stops, const std::vector<std::string>& deltas,
            bool include = false) {
  StopStrings matcher = StopStrings::create(stops, include).take();
  std::string text;
  for (const std::string& delta : deltas) text += matcher.feed(delta);
  text += matcher.flush();
  return {text, matcher.stopped()};
}

TEST(StopStrings, CutsWhereTheStopBegins) {
  const std::vector<std::string> stops = {"END", "\n\n"};
  EXPECT_EQ(run(stops, {"He", "llo E", "N", "D!"}), (Outcome{"Hello ", true}));
  EXPECT_EQ(run(stops, {"aEN", "x"}), (Outcome{"aENx", false}));
  EXPECT_EQ(run(stops, {"aEN"}), (Outcome{"aEN", false}));
  EXPECT_EQ(run(stops, {"a\n", "\nb"}), (Outcome{"a", true}));
  EXPECT_EQ(run(stops, {"aENEND"}), (Outcome{"aEN", true}));
  EXPECT_EQ(run({"aab"}, {"aaab"}), (Outcome{"a", true}));
  EXPECT_EQ(run(stops, {"x END y"}, true), (Outcome{"x END", true}));
}

TEST(StopStrings, TakesTheEarliestStartThenTheShortest) {
  EXPECT_EQ(run({"bc", "abcd"}, {"xabcd"}), (Outcome{"x", true}));
  EXPECT_EQ(run({"bc", "abcd"}, {"xabce"}), (Outcome{"xa", true}));
  EXPECT_EQ(run({"bc", "abcd"}, {"xabc"}), (Outcome{"xa", true}));  // decided by the end of the text
  EXPECT_EQ(run({"abc", "ab"}, {"xabc"}, true), (Outcome{"xab", true}));
  StopStrings matcher = StopStrings::create({"bc", "abcd"}, false).take();
  matcher.feed("xabcd");
  EXPECT_EQ(matcher.matched(), "abcd");
  EXPECT_EQ(matcher.match_begin(), 1);
}

TEST(StopStrings, HoldsBackExactlyWhatMayBegin) {
  StopStrings matcher = StopStrings::create({"END", "NDX"}, false).take();
  EXPECT_EQ(matcher.feed("abc"), "abc");
  EXPECT_EQ(matcher.feed("E"), "");
  EXPECT_EQ(matcher.feed("N"), "");
  EXPECT_EQ(matcher.feed("N"), "EN");
  EXPECT_EQ(matcher.feed("D"), "");
  EXPECT_EQ(matcher.feed(""), "");
  EXPECT_EQ(matcher.feed("q"), "NDq");
  EXPECT_EQ(matcher.flush(), "");
}

TEST(StopStrings, SaysNothingOnceStopped) {
  StopStrings matcher = StopStrings::create({"x"}, false).take();
  EXPECT_EQ(matcher.feed("axb"), "a");
  EXPECT_TRUE(matcher.stopped());
  EXPECT_EQ(matcher.feed("more"), "");
  EXPECT_EQ(matcher.flush(), "");
}

TEST(StopStrings, WithoutStringsLetsEverythingThrough) {
  EXPECT_EQ(run({}, {"a", "b"}), (Outcome{"ab", false}));
}

TEST(StopStrings, RefusesEmptyAndTooMany) {
  EXPECT_FALSE(StopStrings::create({"a", ""}, false).ok());
  EXPECT_FALSE(StopStrings::create(std::vector<std::string>(StopStrings::kMaxStrings + 1, "a"), false).ok());
  EXPECT_FALSE(StopStrings::create({std::string(1 << 20, 'a')}, false).ok());
  EXPECT_TRUE(StopStrings::create({std::string(StopStrings::kMaxBytes, 'a')}, false).ok());
}

// The definition, on the whole text.
Outcome naive(const std::vector<std::string>& stops, const std::string& text, bool include) {
  for (size_t begin = 0; begin < text.size(); ++begin) {
    size_t shortest = std::string::npos;
    for (const std::string& stop : stops) {
      if (text.compare(begin, stop.size(), stop) == 0) shortest = std::min(shortest, stop.size());
    }
    if (shortest != std::string::npos) return {text.substr(0, begin + (include ? shortest : 0)), true};
  }
  return {text, false};
}

TEST(StopStrings, EqualsTheDefinitionForEveryChunking) {
  std::mt19937 random(3);
  const auto word = [&](size_t size) {
    std::string out;
    while (out.size() < size) out.push_back("ab"[random() % 2]);
    return out;
  };
  for (int i = 0; i < 3000; ++i) {
    std::vector<std::string> stops;
    for (size_t n = 1 + random() % 3; n > 0; --n) stops.push_back(word(2 + random() % 6));
    const std::string text = word(random() % 30);
    std::vector<std::string> deltas;
    for (size_t at = 0; at < text.size();) {
      const size_t size = 1 + random() % 4;
      deltas.push_back(text.substr(at, size));
      at += size;
    }
    const bool include = random() % 2 == 0;
    ASSERT_EQ(run(stops, deltas, include), naive(stops, text, include)) << text;
  }
}

}  // namespace
}  // namespace atom::text
