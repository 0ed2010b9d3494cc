#include "runtime/verify.h"

#include <algorithm>

namespace atom {

SampleRequest SampledSequence::now() const {
  SampleRequest request = request_;
  if (request.counts != nullptr) request.counts = &counts_;
  return request;
}

bool SampledSequence::append(int32_t token) {
  if (request_.constraint != nullptr && !request_.constraint->append(token, is_stop(token))) return false;
  ++request_.output_index;
  if (request_.counts != nullptr) counts_.add_output(token);
  return true;
}

bool SampledSequence::is_stop(int32_t token) const {
  return std::ranges::find(request_.stop_ids, token) != request_.stop_ids.end();
}

bool SampledSequence::ends_with(int32_t token) const {
  return is_stop(token) || (request_.constraint != nullptr && request_.constraint->must_end());
}

std::vector<SampledToken> verify(SampledSequence& sequence, const std::function<SampledToken(size_t)>& choose,
                                 std::span<const int32_t> drafts) {
  std::vector<SampledToken> tokens;
  for (size_t i = 0; i <= drafts.size(); ++i) {
    SampledToken token = choose(i);
    if (token.id >= 0 && !sequence.append(token.id)) token = {};
    const int32_t id = token.id;
    if (id >= 0 || tokens.empty()) tokens.push_back(std::move(token));
    if (id < 0 || i == drafts.size() || id != drafts[i] || sequence.ends_with(id)) break;
  }
  return tokens;
}

std::vector<SampledToken> verify(SampledSequence& sequence, Tensor logits, std::span<const int32_t> drafts) {
  CHECK(logits.dim(0) == static_cast<int64_t>(drafts.size()) + 1);
  const auto choose = [&](size_t i) {
    return sequence.sample({logits.row<float>(static_cast<int64_t>(i)), static_cast<size_t>(logits.dim(1))});
  };
  return verify(sequence, choose, drafts);
}

}  // namespace atom
