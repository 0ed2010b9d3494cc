#include "runtime/token_constraint.h"

#include <algorithm>
#include <limits>

#include "base/check.h"
#include "scheduler/step_plan.h"

namespace atom {
namespace {

constexpr float kMasked = -std::numeric_limits<float>::infinity();

// Whatever a step appends can be taken back: verified tokens and drafts behind them.
static_assert((2 * kMaxDrafts + 1) * static_cast<int64_t>(text::TokenTrie::kMaxTokenBytes) <=
              text::GrammarMatcher::kMaxRollback);

}  // namespace

TokenConstraint::TokenConstraint(std::shared_ptr<text::GrammarMasks> masks)
    : matcher_(masks),
      masks_(std::move(masks)),
      bits_(static_cast<size_t>(masks_->trie().vocab_size() + 31) / 32) {}

void TokenConstraint::mask(std::span<float> logits, std::span<const int32_t> stop_ids) {
  if (ended_) {
    std::ranges::fill(logits, kMasked);
    return;
  }
  std::vector<std::pair<int32_t, float>> stops;
  if (matcher_.can_end()) {
    for (const int32_t id : stop_ids) {
      if (id >= 0 && id < static_cast<int64_t>(logits.size())) stops.emplace_back(id, logits[id]);
    }
  }
  matcher_.mask(bits_);
  const size_t known = std::min(logits.size(), bits_.size() * 32);
  for (size_t id = 0; id < known; ++id) {
    if ((bits_[id / 32] >> (id % 32) & 1) == 0) logits[id] = kMasked;
  }
  std::fill(logits.begin() + static_cast<std::ptrdiff_t>(known), logits.end(), kMasked);
  for (const int32_t id : stop_ids) {
    if (id >= 0 && id < static_cast<int64_t>(logits.size())) logits[id] = kMasked;
  }
  for (const auto& [id, logit] : stops) logits[id] = logit;
}

bool TokenConstraint::append(int32_t id, bool stop) {
  CHECK(!ended_);
  if (stop) {
    ended_ = true;
    appended_.push_back(0);
    return true;
  }
  const std::string_view bytes = masks_->trie().bytes(id);
  if (bytes.empty() || !matcher_.accept(bytes)) return false;
  appended_.push_back(static_cast<int64_t>(bytes.size()));
  return true;
}

void TokenConstraint::keep(size_t count) {
  int64_t back = 0;
  for (size_t i = count; i < appended_.size(); ++i) back += appended_[i];
  ended_ = ended_ && count >= appended_.size();
  matcher_.rollback(back);
  appended_.clear();
}

std::string TokenConstraint::problem(std::span<const int32_t> stop_ids) {
  if (matcher_.failed()) return "the grammar has too many readings of the text";
  matcher_.mask(bits_);
  const bool some = std::ranges::any_of(bits_, [](uint32_t word) { return word != 0; });
  if (some || (matcher_.can_end() && !stop_ids.empty())) return {};
  return "no token of the vocabulary goes on as the grammar wants";
}

}  // namespace atom
