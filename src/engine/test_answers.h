// What came of requests that ran together. For tests only.
#pragma once
#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/test_requests.h"

namespace atom {

struct Answer {
  std::vector<int32_t> ids;
  std::vector<std::vector<TokenLogprob>> logprobs;
  std::string text, error;
  std::optional<FinishReason> finish;
  Usage usage;
};

// Runs the requests together, some arriving while others run, and gives the answers of all samples in order.
inline std::vector<Answer> answers(Engine& engine, const std::vector<Request>& requests) {
  std::map<std::pair<size_t, int32_t>, Answer> found;
  for (size_t i = 0; i < requests.size(); ++i) {
    engine
        .submit(requests[i],
                [&found, i](OutputDelta&& d) {
                  Answer& a = found[{i, d.index}];
                  a.ids.insert(a.ids.end(), d.token_ids.begin(), d.token_ids.end());
                  a.logprobs.insert(a.logprobs.end(), d.logprobs.begin(), d.logprobs.end());
                  a.text += d.text;
                  if (d.finish) a.finish = d.finish;
                  if (d.finish) a.usage = d.usage;
                  a.error += d.error;
                })
        .take();
    if (i % 2 == 1) engine.step();
  }
  for (int steps = 0; engine.step(); ++steps) {
    if (steps > 10000) {
      ADD_FAILURE() << "no end";
      break;
    }
  }
  std::vector<Answer> all;
  for (auto& [key, answer] : found) all.push_back(std::move(answer));
  return all;
}

inline std::vector<Answer> answers(const ModelOptions& options, const std::vector<Request>& requests) {
  LoadedModel model(options);
  return answers(model.engine(), requests);
}

inline void expect_same(const std::vector<Answer>& got, const std::vector<Answer>& want,
                        const std::string& what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(got[i].ids, want[i].ids) << what << ", sample " << i;
    EXPECT_EQ(got[i].finish, want[i].finish) << what << ", sample " << i;
    EXPECT_EQ(got[i].text, want[i].text) << what << ", sample " << i;
    ASSERT_EQ(got[i].logprobs.size(), want[i].logprobs.size()) << what << ", sample " << i;
    for (size_t t = 0; t < got[i].logprobs.size(); ++t) {
      ASSERT_EQ(got[i].logprobs[t].size(), want[i].logprobs[t].size());
      EXPECT_EQ(got[i].logprobs[t].front().id, want[i].logprobs[t].front().id);
      EXPECT_NEAR(got[i].logprobs[t].front().logprob, want[i].logprobs[t].front().logprob, 1e-4);
    }
  }
}

}  // namespace atom
