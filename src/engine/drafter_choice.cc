#include "engine/drafter_choice.h"

#include <algorithm>
#include <cstring>
#include <map>

#include "base/error.h"
#include "base/log.h"
#include "models/registry.h"
#include "runtime/account.h"

namespace atom {
namespace {

bool same_content(const Checkpoint& checkpoint, const StoredTensor& a, const StoredTensor& b) {
  constexpr int64_t kChunk = 4 << 20;
  if (a.shape != b.shape || a.dtype_name != b.dtype_name || a.bytes != b.bytes) return false;
  std::vector<std::byte> x(std::min(kChunk, a.bytes)), y(x.size());
  for (int64_t at = 0; at < a.bytes; at += kChunk) {
    const auto n = static_cast<size_t>(std::min(kChunk, a.bytes - at));
    checkpoint.read(a, at, {x.data(), n});
    checkpoint.read(b, at, {y.data(), n});
    if (std::memcmp(x.data(), y.data(), n) != 0) return false;
  }
  return true;
}

bool has_any(const Checkpoint& checkpoint, const std::string& scope) {
  return std::ranges::any_of(checkpoint.tensors(),
                             [&](const StoredTensor& t) { return t.name.starts_with(scope + "."); });
}

}  // namespace

ModelDeclaration::ModelDeclaration(const ModelFiles& files, const DrafterOptions& drafter, Device device) {
  tables_.device = device;
  tables_.drafter.wanted = drafter.wanted;
  tables_.drafter.stores_own = drafter.stores_own;
  model_ = make_model(Scope(tables_), ConfigReader(files.config));
}

DrafterOptions wanted_drafter(const Checkpoint* checkpoint) {
  if (checkpoint == nullptr) return {.wanted = true};
  // Every rank asks; the files are compared once.
  auto answers = std::make_shared<std::map<std::string, bool>>();
  return {
      .wanted = true, .stores_own = [checkpoint, answers](const std::string& own, const std::string& shared) {
        const auto [answer, fresh] = answers->try_emplace(own, false);
        if (!fresh) return answer->second;
        const StoredTensor* mine = checkpoint->find(own);
        const StoredTensor* theirs = checkpoint->find(shared);
        answer->second = mine != nullptr && (theirs == nullptr || !same_content(*checkpoint, *mine, *theirs));
        return answer->second;
      }};
}

DrafterChoice choose_drafter(const ModelFiles& files, const Checkpoint* checkpoint,
                             std::optional<int> asked) {
  if (asked == 0 || (!asked && checkpoint == nullptr)) return {};
  const std::string scope = ModelDeclaration(files).tables().drafter.scope;
  const bool stored = checkpoint == nullptr || (!scope.empty() && has_any(*checkpoint, scope));
  if (!asked && !stored) return {};
  if (!stored) {
    const std::string what =
        scope.empty()
            ? "the model has no layer that drafts tokens, or several of a kind of which one is supported "
              "(mtp_num_hidden_layers)"
            : "the checkpoint has none of the drafter's tensors, " + scope + ".*";
    throw invalid("--num-speculative-tokens {}: {}: {}; use 0", *asked, files.root.string(), what);
  }
  DrafterChoice choice{
      .drafts = asked ? *asked : kAdaptiveDrafts, .adaptive = !asked, .drafter = wanted_drafter(checkpoint)};
  const ModelDeclaration declaration(files, choice.drafter);
  if (checkpoint == nullptr) return choice;
  const Account account = atom::account(declaration.tables(), *checkpoint);
  const std::vector<std::string> problems = account.problems();
  if (problems.empty()) return choice;
  if (asked) require_complete(account, files.root.string());
  log_warning("{}: no speculation, for the drafter does not fit the model: {}", files.root.string(),
              problems.front());
  return {};
}

}  // namespace atom
