// Every supported architecture has a golden checkpoint, and reuses prefixes on it.
// tests/architecture_table.py reads the properties that these tests record.
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "engine/test_requests.h"
#include "models/registry.h"

namespace atom {
namespace {

// One golden folder of each architecture: the one with the most cases, of equals the first by name.
const std::map<std::string, std::string>& goldens() {
  static const std::map<std::string, std::string> chosen = [] {
    std::map<std::string, std::set<std::pair<int64_t, std::string>>> found;  // by minus the number of files
    for (const auto& folder : std::filesystem::directory_iterator(std::string(ATOM_TEST_DATA) + "/golden")) {
      const std::filesystem::path config = folder.path() / "config.json";
      if (!std::filesystem::exists(config)) continue;
      const std::filesystem::directory_iterator files(folder.path());
      found[ConfigReader(read_json_file(config)).texts("architectures").front()].emplace(
          -std::distance(begin(files), end(files)), folder.path().filename().string());
    }
    std::map<std::string, std::string> first;
    for (const auto& [architecture, folders] : found) first[architecture] = folders.begin()->second;
    return first;
  }();
  return chosen;
}

TEST(Architectures, EachHasAGolden) {
  for (const std::string& architecture : supported_architectures())
    EXPECT_TRUE(goldens().contains(architecture)) << architecture;
}

class Architecture : public testing::TestWithParam<std::string> {};

struct Answer {
  std::vector<int32_t> ids;
  int64_t cached = 0;
};

Answer answer(LoadedModel& model, std::vector<int32_t> prompt, bool reuse) {
  Request request = request_of(std::move(prompt), 8);
  request.reuse_prefix = reuse;
  Answer result;
  model.engine()
      .submit(std::move(request),
              [&](OutputDelta&& delta) {
                result.ids.insert(result.ids.end(), delta.token_ids.begin(), delta.token_ids.end());
                result.cached = delta.usage.cached_tokens;
              })
      .take();
  while (model.engine().step()) {
  }
  return result;
}

// A second turn: the first prompt, what came of it, and a little more.
TEST_P(Architecture, ReusesThePrefixOfASecondTurn) {
  const auto golden = goldens().find(GetParam());
  if (golden == goldens().end()) GTEST_SKIP() << "no golden";
  const std::vector<int32_t> first = prompt_of(33, 0);
  LoadedModel model(golden_model(golden->second, 80));
  std::vector<int32_t> second = first;
  const Answer one = answer(model, first, true);
  second.insert(second.end(), one.ids.begin(), one.ids.end());
  for (const int32_t id : prompt_of(5, 3)) second.push_back(id);
  const Answer reused = answer(model, second, true);
  const Answer computed = answer(model, second, false);
  EXPECT_EQ(one.cached, 0);
  EXPECT_EQ(computed.cached, 0);
  EXPECT_GT(reused.cached, 0);
  EXPECT_LT(reused.cached, static_cast<int64_t>(second.size()));
  EXPECT_EQ(reused.ids, computed.ids);
  RecordProperty("architecture", GetParam());
  RecordProperty("golden", golden->second);
  RecordProperty("prompt_tokens", static_cast<int>(second.size()));
  RecordProperty("cached_tokens", static_cast<int>(reused.cached));
}

INSTANTIATE_TEST_SUITE_P(All, Architecture, testing::ValuesIn(supported_architectures()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace atom
