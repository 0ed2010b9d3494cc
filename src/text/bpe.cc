// Byte-pair encoding.
#include "text/bpe.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <functional>
#include <map>

#include "base/check.h"
#include "text/bpe_bytes.h"
#include "text/unicode.h"

namespace atom::text {

namespace {

constexpr std::string_view kMark = "\u2581";  // SentencePiece's space
constexpr size_t kShortWord = 40;             // symbols up to which scanning beats a queue

// Pairs that may merge, by rank and then by position. Pairs of one rank come nearly always in the order of
// the text, so that long runs walk through memory; what comes out of order goes to a heap.
class PairQueue {
 public:
  struct Pair {
    uint32_t rank;
    int32_t position;
  };
  bool empty() const { return ranks_.empty(); }

  void push(uint32_t rank, int32_t position) {
    Positions& positions = ranks_[rank];
    if (positions.run.empty() || position >= positions.run.back()) {
      positions.run.push_back(position);
    } else {
      positions.strays.push_back(position);
      std::push_heap(positions.strays.begin(), positions.strays.end(), std::greater<>());
    }
  }

  Pair pop() {
    auto& [rank, positions] = *ranks_.begin();
    auto& [run, strays] = positions;
    Pair pair{rank, 0};
    if (run.empty() || (!strays.empty() && strays.front() < run.front())) {
      pair.position = strays.front();
      std::pop_heap(strays.begin(), strays.end(), std::greater<>());
      strays.pop_back();
    } else {
      pair.position = run.front();
      run.pop_front();
    }
    if (run.empty() && strays.empty()) ranks_.erase(ranks_.begin());
    return pair;
  }

 private:
  struct Positions {
    std::deque<int32_t> run;  // ascending; a deque gives back what is done
    std::vector<int32_t> strays;
  };
  std::map<uint32_t, Positions> ranks_;
};

}  // namespace

Bpe::Bpe(Vocab vocab, std::vector<Merge> merges, BpeOptions options, const std::vector<int32_t>& excluded)
    : vocab_(std::move(vocab)), options_(std::move(options)) {
  excluded_.resize(static_cast<size_t>(vocab_.size()));
  for (const int32_t id : excluded) excluded_[static_cast<size_t>(id)] = true;
  std::erase_if(merges, [&](const Merge& m) { return excluded_[static_cast<size_t>(m.merged)]; });
  merges_.build(merges);

  has_all_bytes_ = true;
  for (int byte = 0; byte < 256; ++byte) {
    std::string text;
    if (options_.reads_bytes) {
      append_utf8(kByteAlphabet.to_char[static_cast<size_t>(byte)], text);
    } else {
      text = fmt::format("<0x{:02X}>", byte);
    }
    byte_ids_[static_cast<size_t>(byte)] = vocab_.find(text);
    has_all_bytes_ &= byte_ids_[static_cast<size_t>(byte)] != kNoToken;
  }
  cuts_at_marks_ = merges_never_cross_marks(merges);
}

// Many SentencePiece models get the whole text as one word, yet no token has a mark behind another character.
// The words between marks are then independent, and short enough for the cache.
bool Bpe::merges_never_cross_marks(const std::vector<Merge>& merges) const {
  if (options_.reads_bytes || options_.ignore_merges || vocab_.find(kMark) == kNoToken) {
    return false;
  }
  return std::none_of(merges.begin(), merges.end(), [&](const Merge& m) {
    return !vocab_.text(m.left).ends_with(kMark) && vocab_.text(m.right).starts_with(kMark);
  });
}

void BpeScratch::trim() {
  const auto trim_one = [](auto& buffer) {
    if (buffer.capacity() > kKeptItems) buffer = {};
  };
  trim_one(ids_);
  trim_one(symbols_);
  trim_one(chars_);
}

void Bpe::encode(std::string_view piece, std::vector<int32_t>& out, BpeScratch& scratch) const {
  if (cuts_at_marks_) {
    size_t begin = 0;
    for (size_t at = piece.find(kMark); at != std::string_view::npos;
         at = piece.find(kMark, at + kMark.size())) {
      const bool behind_mark = at >= kMark.size() && piece.substr(at - kMark.size(), kMark.size()) == kMark;
      if (at == begin || behind_mark) continue;
      encode_word(piece.substr(begin, at - begin), out, scratch);
      begin = at;
    }
    piece.remove_prefix(begin);
  }
  encode_word(piece, out, scratch);
}

void Bpe::encode_word(std::string_view word, std::vector<int32_t>& out, BpeScratch& scratch) const {
  if (word.size() > sizeof(BpeScratch::Word::text)) return encode_new_word(word, out, scratch);
  BpeScratch::Word& cached = scratch.words_[hash_bytes(word) >> 32 & (BpeScratch::kWords - 1)];
  if (cached.bytes == word.size() && std::memcmp(cached.text, word.data(), word.size()) == 0) {
    out.insert(out.end(), cached.id, cached.id + cached.ids);
    return;
  }
  const size_t before = out.size();
  encode_new_word(word, out, scratch);
  const size_t ids = out.size() - before;
  if (word.empty() || ids > std::size(cached.id)) return;
  cached.bytes = static_cast<uint8_t>(word.size());
  cached.ids = static_cast<uint8_t>(ids);
  std::copy(word.begin(), word.end(), cached.text);
  std::copy(out.begin() + static_cast<std::ptrdiff_t>(before), out.end(), cached.id);
}

void Bpe::encode_new_word(std::string_view word, std::vector<int32_t>& out, BpeScratch& scratch) const {
  const bool raw_bytes = options_.reads_bytes && has_all_bytes_;
  std::string_view text = word;
  if (options_.reads_bytes && (options_.ignore_merges || !raw_bytes)) {
    scratch.chars_.clear();
    append_byte_chars(word, scratch.chars_);
    text = scratch.chars_;
  }
  if (options_.ignore_merges) {
    if (const int32_t id = find_token(text); id != kNoToken) return out.push_back(id);
  }
  std::vector<int32_t>& ids = scratch.ids_;
  ids.clear();
  if (raw_bytes) {
    for (const char byte : word) ids.push_back(byte_ids_[static_cast<uint8_t>(byte)]);
  } else {
    characters_to_ids(text, ids);
  }
  if (ids.size() <= kShortWord) {
    merge_short(ids);
  } else {
    merge_long(ids, scratch);
  }
  out.insert(out.end(), ids.begin(), ids.end());
}

int32_t Bpe::find_token(std::string_view text) const {
  const int32_t id = vocab_.find(text);
  return id == kNoToken || excluded_[static_cast<size_t>(id)] ? kNoToken : id;
}

void Bpe::characters_to_ids(std::string_view word, std::vector<int32_t>& ids) const {
  bool unknown = false;  // an unknown token waits for what follows
  for (size_t pos = 0; pos < word.size();) {
    const size_t begin = pos;
    read_utf8(word, pos);
    const std::string_view character = word.substr(begin, pos - begin);
    if (const int32_t id = find_token(character); id != kNoToken) {
      if (unknown) ids.push_back(options_.unk_id);
      unknown = false;
      ids.push_back(id);
      continue;
    }
    const auto byte_id = [&](char byte) {
      return options_.reads_bytes ? kNoToken : byte_ids_[static_cast<uint8_t>(byte)];
    };
    if (options_.byte_fallback && std::all_of(character.begin(), character.end(),
                                              [&](char byte) { return byte_id(byte) != kNoToken; })) {
      for (const char byte : character) ids.push_back(byte_id(byte));
    } else if (options_.unk_id != kNoToken) {
      if (unknown && !options_.fuse_unk) ids.push_back(options_.unk_id);
      unknown = true;
    }
  }
  if (unknown) ids.push_back(options_.unk_id);
}

void Bpe::merge_short(std::vector<int32_t>& ids) const {
  DCHECK(ids.size() <= kShortWord);
  // Pair i is symbols i and i + 1.
  uint32_t ranks[kShortWord];
  int32_t merged[kShortWord];
  size_t n = ids.size();
  const auto look_up = [&](size_t i) {
    const MergeTable::Target target = merges_.find(ids[i], ids[i + 1]);
    ranks[i] = target.rank;
    merged[i] = target.merged;
  };
  for (size_t i = 0; i + 1 < n; ++i) look_up(i);
  while (n > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < n; ++i) {
      if (ranks[i] < ranks[best]) best = i;
    }
    if (ranks[best] == UINT32_MAX) break;
    ids[best] = merged[best];
    for (size_t i = best + 1; i + 2 < n; ++i) {
      ids[i] = ids[i + 1];
      ranks[i] = ranks[i + 1];
      merged[i] = merged[i + 1];
    }
    --n;
    if (best + 1 < n) ids[n - 1] = ids[n];
    if (best > 0) look_up(best - 1);
    if (best + 1 < n) look_up(best);
  }
  ids.resize(n);
}

void Bpe::merge_long(std::vector<int32_t>& ids, BpeScratch& scratch) const {
  auto& symbols = scratch.symbols_;
  symbols.clear();
  const auto n = static_cast<int32_t>(ids.size());
  symbols.reserve(ids.size());
  for (int32_t i = 0; i < n; ++i) {
    symbols.push_back({ids[static_cast<size_t>(i)], i - 1, i + 1 < n ? i + 1 : -1, {}});
  }
  const auto at = [&](int32_t i) -> BpeScratch::Symbol& { return symbols[static_cast<size_t>(i)]; };
  PairQueue queue;
  const auto push = [&](int32_t i) {
    BpeScratch::Symbol& symbol = at(i);
    symbol.target = symbol.next < 0 ? MergeTable::Target{} : merges_.find(symbol.id, at(symbol.next).id);
    if (symbol.target.rank != UINT32_MAX) queue.push(symbol.target.rank, i);
  };
  for (int32_t i = 0; i < n; ++i) push(i);
  while (!queue.empty()) {
    const auto [rank, i] = queue.pop();
    BpeScratch::Symbol& left = at(i);
    if (left.target.rank != rank) continue;  // the pair has changed since
    BpeScratch::Symbol& right = at(left.next);
    left.id = left.target.merged;
    left.next = right.next;
    right.target = {};
    if (left.next >= 0) at(left.next).previous = i;
    if (left.previous >= 0) push(left.previous);
    push(i);
  }
  ids.clear();
  for (int32_t i = 0; i >= 0; i = at(i).next) ids.push_back(at(i).id);
}

}  // namespace atom::text
