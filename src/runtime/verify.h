// How many drafted tokens are right.
//
// The sampler is a function of logits, parameters, seed and place. A draft is right if it is the token that
// the sampler chooses there, so what a request is given does not depend on drafts: neither at temperature 0
// nor above. Drafts are chosen by the same sampler with the same noise from the drafter's logits: where the
// two distributions agree, so do the choices. See docs/decisions/2026-11-30-speculation.md.
#pragma once
#include <functional>
#include <span>
#include <vector>

#include "runtime/sampler.h"
#include "tensor/tensor.h"

namespace atom {

// A sequence as the sampler sees it while tokens are appended to it within a step. They are appended to the
// request's constraint too, if there is one, whose owner keeps those that stay.
class SampledSequence {
 public:
  explicit SampledSequence(const SampleRequest& request) : request_(request) {
    if (request.counts != nullptr) counts_ = *request.counts;
  }
  // The next token by these logits, which are changed.
  SampledToken sample(std::span<float> logits) const { return atom::sample(logits, now()); }
  int32_t choose(std::span<float> logits) const { return choose_token(logits, now()); }
  // Nothing, or how a device chooses it; see there.
  std::optional<ops::TokenChoice> device_choice(int64_t choosable) const {
    return atom::device_choice(now(), choosable);
  }
  // False, and nothing changes, if the constraint cannot take the token.
  bool append(int32_t token);
  // Whether the token, the last one appended, ends it.
  bool ends_with(int32_t token) const;

 private:
  bool is_stop(int32_t token) const;
  SampleRequest now() const;

  SampleRequest request_;
  TokenCounts counts_;  // if the request has any
};

// What `sequence` is given if choose(i) is the sampler's token after i drafts: the drafts that are right and
// one token more, or up to the token that ends the sequence. All are appended to it. A token of -1 (logits
// that are not finite, or a token that cannot be appended) ends the list before it; if it is the first, it is
// the only one.
std::vector<SampledToken> verify(SampledSequence& sequence, const std::function<SampledToken(size_t)>& choose,
                                 std::span<const int32_t> drafts);
// The same by `logits` [drafts + 1, vocab], whose row i is that after i drafts.
std::vector<SampledToken> verify(SampledSequence& sequence, Tensor logits, std::span<const int32_t> drafts);

}  // namespace atom
