// Choosing the token of every row by chance, where the logits are; and taking chosen tokens into a step.
//
// Every candidate draws its own noise from (place, id), and the first in an exponential race at the rates of
// the probabilities wins: it is each one with its probability. A small change of the distribution seldom
// changes the winner, whatever order it puts the candidates in, and what cannot win need not be left out
// before.
#pragma once
#include <vector>

#include "ops/op.h"

namespace atom::ops {

// How the token of one row is chosen. All four filters keep the most likely tokens, ties by the lower id.
struct TokenChoice {
  uint64_t place = 0;     // of the draw, see draw_place()
  float temperature = 0;  // below kGreedy: the largest logit
  float top_p = 1;        // smallest set of most likely tokens whose mass, after top_k, reaches top_p
  float min_p = 0;        // tokens with at least min_p times the best probability
  int32_t top_k = 0;      // 0: off
};

inline constexpr float kGreedy = 1e-5f;
// What a GPU takes for top_k.
inline constexpr int32_t kMostTopK = 1024;

#if defined(__CUDACC__) || defined(__HIPCC__)
#define ATOM_HOST_DEVICE __host__ __device__
#else
#define ATOM_HOST_DEVICE
#endif

ATOM_HOST_DEVICE inline uint64_t mix_bits(uint64_t x) {  // the finaliser of splitmix64
  x ^= x >> 30;
  x *= 0xBF58476D1CE4E5B9ull;
  x ^= x >> 27;
  x *= 0x94D049BB133111EBull;
  return x ^ x >> 31;
}
// 64 random bits from a counter: they depend on the arguments alone.
ATOM_HOST_DEVICE inline uint64_t mixed_seed(uint64_t seed) { return mix_bits(seed + 0x9E3779B97F4A7C15ull); }
ATOM_HOST_DEVICE inline uint64_t counter_bits(uint64_t mixed_seed, uint64_t counter) {
  return mix_bits(mixed_seed + counter * 0xD1B54A32D192ED03ull);
}
// Uniform in [0, 1).
ATOM_HOST_DEVICE inline double uniform_of(uint64_t bits) {
  return static_cast<double>(bits >> 11) * 0x1.0p-53;
}
inline double counter_uniform(uint64_t seed, uint64_t counter) {
  return uniform_of(counter_bits(mixed_seed(seed), counter));
}
// Of the token that `index` others stand before, in a sequence with this seed.
inline uint64_t draw_place(uint64_t seed, int64_t index) {
  return counter_bits(mixed_seed(seed), static_cast<uint64_t>(index));
}

// A candidate with its probability.
struct TokenProbability {
  int32_t id;
  double p;
};

// The distribution of one row: after temperature and filters, renormalised. Greedy choices give one
// candidate. Empty if a logit is NaN or +inf, or all are -inf.
std::vector<TokenProbability> token_distribution(std::span<const float> logits, const TokenChoice& choice);
// The token; -1 if there is no distribution.
int32_t draw_token(std::span<const float> logits, const TokenChoice& choice);

// out[t] = draw_token(logits[t], choices[t]), given out[t] as ArgMax leaves it.
struct DrawTokens {
  Tensor out;     // [rows] i32
  Tensor logits;  // [rows, n] f32
  std::span<const TokenChoice> choices;
};

// ids[t] = chosen[-1 - ids[t]] for negative ids.
struct TakeChosen {
  std::span<int32_t> ids;
  Tensor chosen;  // [n] i32
};

void check(const DrawTokens& op);
inline Device device_of(const DrawTokens& op) { return op.out.device; }
void check(const TakeChosen& op);
inline Device device_of(const TakeChosen& op) { return op.chosen.device; }

template <>
std::span<const Impl<DrawTokens>> gpu_impls<DrawTokens>();
template <>
std::span<const Impl<TakeChosen>> gpu_impls<TakeChosen>();

}  // namespace atom::ops
