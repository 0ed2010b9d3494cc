// A Tokenizer from a tokenizer.json. The vocabulary and the merges, which make up nearly all of the file, go
// from simdjson's parser straight into flat tables; the small components become ordinary JSON values.
#include <simdjson.h>

#include "base/file.h"
#include "text/tokenizer_component.h"
#include "text/tokenizer_impl.h"

namespace atom::text {

namespace {

using simdjson::ondemand::array;
using simdjson::ondemand::object;
using simdjson::ondemand::value;

constexpr int64_t kMaxFileBytes = 256 << 20;
constexpr size_t kMaxAddedTokens = 1 << 20;
constexpr size_t kMaxAddedBytes = 64 << 10;  // of one added token

class JsonLoader {
 public:
  JsonLoader(simdjson::padded_string_view json, std::string_view name) : json_(json), name_(name) {}

  std::unique_ptr<Tokenizer> load() {
    simdjson::ondemand::document document = parser_.iterate(json_);
    object root = document.get_object();
    bool has_model = false;
    for (auto field : root) {
      const std::string key(std::string_view(field.unescaped_key()));
      value member = field.value();
      if (key == "model") {
        if (has_model) throw invalid("{}: \"model\" is given twice", name_);
        has_model = true;
        load_model(member);
      } else if (key == "normalizer" || key == "pre_tokenizer" || key == "post_processor" ||
                 key == "decoder" || key == "added_tokens") {
        small_[key] = small_json(member, key);
      }
    }
    if (document.current_location().error() != simdjson::OUT_OF_BOUNDS) {
      throw invalid("{}: text follows the JSON value", name_);
    }
    if (!has_model) throw invalid("{}: \"model\" is missing: this is not a tokenizer.json", name_);
    load_components();
    return std::move(parts_).assemble(name_);
  }

 private:
  std::string place(std::string_view path) const { return fmt::format("{}: {}", name_, path); }

  Json small_json(value& member, std::string_view path) {
    const std::string_view raw = simdjson::to_json_string(member);
    return parse_json(raw, place(path));
  }

  void load_model(value& member) {
    object model;
    if (member.get_object().get(model)) throw invalid("{}: model: expected an object", name_);
    std::string_view type;
    if (model["type"].get_string().get(type) == simdjson::SUCCESS && type != "BPE") {
      throw invalid("{}: model.type: \"{}\" is not supported; only BPE is", name_, type);
    }
    if (model.reset().error()) throw invalid("{}: model: expected an object", name_);
    Json settings = Json::object();
    std::string_view late_merges;
    bool has_vocab = false, has_merges = false;
    for (auto field : model) {
      const std::string key(std::string_view(field.unescaped_key()));
      value entry = field.value();
      if (key == "vocab") {
        if (has_vocab) throw invalid("{}: model.vocab is given twice", name_);
        has_vocab = true;
        load_vocab(entry);
      } else if (key == "merges") {
        if (has_merges) throw invalid("{}: model.merges is given twice", name_);
        has_merges = true;
        if (has_vocab) {
          load_merges(entry);
        } else {
          late_merges = simdjson::to_json_string(entry);
        }
      } else {
        settings[key] = small_json(entry, "model." + key);
      }
    }
    if (!has_vocab) throw invalid("{}: model.vocab is missing", name_);
    if (!has_merges) throw invalid("{}: model.merges is missing", name_);
    if (!late_merges.empty()) {
      simdjson::ondemand::parser parser;
      const simdjson::padded_string copy(late_merges);
      simdjson::ondemand::document document = parser.iterate(copy);
      value merges = document.get_value();
      load_merges(merges);
    }
    load_settings(Component(settings, place("model")));
  }

  void load_vocab(value& member) {
    object vocab;
    if (member.get_object().get(vocab)) throw invalid("{}: model.vocab: expected an object", name_);
    const auto bytes = static_cast<int64_t>(json_.size());
    parts_.vocab.reserve(std::min<int64_t>(bytes / 128, kMaxTokens), bytes / 16);
    for (auto field : vocab) {
      const std::string_view token = field.unescaped_key();
      int64_t id = 0;
      if (field.value().get_int64().get(id) || id < 0 || id >= kMaxTokens) {
        throw invalid("{}: model.vocab[\"{}\"]: expected an id from 0 to {}", name_, token, kMaxTokens - 1);
      }
      switch (parts_.vocab.add(token, static_cast<int32_t>(id))) {
        case Vocab::Added::ok:
          break;
        case Vocab::Added::id_taken:
          throw invalid("{}: model.vocab: id {} is given to \"{}\" and to \"{}\"", name_, id,
                        parts_.vocab.text(static_cast<int32_t>(id)), token);
        case Vocab::Added::text_taken:
          throw invalid("{}: model.vocab: \"{}\" is listed twice", name_, token);
      }
    }
  }

  void load_merges(value& member) {
    array merges;
    if (member.get_array().get(merges)) throw invalid("{}: model.merges: expected an array", name_);
    for (auto element : merges) {
      value merge = element.value();
      std::string_view left, right;
      if (merge.type() == simdjson::ondemand::json_type::string) {
        const std::string_view line = merge.get_string();
        const size_t space = line.find(' ');
        if (space == std::string_view::npos || line.find(' ', space + 1) != std::string_view::npos) {
          throw bad_merge(fmt::format("\"{}\" is not two tokens with a space between", line));
        }
        left = line.substr(0, space);
        right = line.substr(space + 1);
      } else {
        array pair;
        if (merge.get_array().get(pair)) throw bad_merge("expected a string or an array");
        int parts = 0;
        for (auto part : pair) {
          const std::string_view text = part.get_string();
          (parts == 0 ? left : right) = text;
          ++parts;
        }
        if (parts != 2) throw bad_merge("expected two tokens");
      }
      pending_.push_back({left, right});
      if (pending_.size() == kBatch) resolve_merges();
    }
    resolve_merges();
  }

  Error bad_merge(std::string_view why) const {
    return invalid("{}: model.merges[{}]: {}", name_, parts_.merges.size() + pending_.size(), why);
  }

  // Looks the tokens up a batch at a time, so that the cache misses of a big vocabulary overlap.
  void resolve_merges() {
    const Vocab& vocab = parts_.vocab;
    uint64_t hashes[kBatch][3];
    whole_.clear();
    size_t begins[kBatch + 1] = {};
    for (size_t i = 0; i < pending_.size(); ++i) {
      whole_.append(pending_[i].left).append(pending_[i].right);
      begins[i + 1] = whole_.size();
      hashes[i][0] = hash_bytes(pending_[i].left);
      hashes[i][1] = hash_bytes(pending_[i].right);
      hashes[i][2] = hash_bytes(std::string_view(whole_).substr(begins[i]));
      for (const uint64_t hash : hashes[i]) vocab.prefetch(hash);
    }
    for (size_t i = 0; i < pending_.size(); ++i) {
      for (const uint64_t hash : hashes[i]) vocab.prefetch_text(hash);
    }
    for (size_t i = 0; i < pending_.size(); ++i) {
      const std::string_view whole = std::string_view(whole_).substr(begins[i], begins[i + 1] - begins[i]);
      const Merge merge{vocab.find(pending_[i].left, hashes[i][0]),
                        vocab.find(pending_[i].right, hashes[i][1]), vocab.find(whole, hashes[i][2]),
                        static_cast<uint32_t>(parts_.merges.size())};
      if (merge.left < 0 || merge.right < 0 || merge.merged < 0) {
        throw invalid("{}: model.merges[{}]: \"{}\" is not in the vocabulary", name_, parts_.merges.size(),
                      merge.left < 0    ? pending_[i].left
                      : merge.right < 0 ? pending_[i].right
                                        : whole);
      }
      parts_.merges.push_back(merge);
    }
    pending_.clear();
  }

  void load_settings(const Component& model) {
    BpeOptions& bpe = parts_.bpe;
    bpe.ignore_merges = model.flag("ignore_merges", false);
    bpe.byte_fallback = model.flag("byte_fallback", false);
    bpe.fuse_unk = model.flag("fuse_unk", false);
    for (const std::string_view key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
      if (model.has(key) && !model.text(key).empty()) {
        throw invalid("{}.{}: only null or an empty text is supported", model.place(), key);
      }
    }
    if (model.has("dropout")) {
      const Json& dropout = model.member("dropout");
      if (!dropout.is_number() || dropout.get<double>() != 0) {
        throw invalid("{}.dropout: {} is not supported; use null", model.place(),
                      dropout.dump().substr(0, 40));
      }
    }
    if (model.has("unk_token")) bpe.unk_id = parts_.vocab.find(model.text("unk_token"));
  }

  void load_components() {
    const auto given = [&](std::string_view key) { return small_.contains(key) && !small_[key].is_null(); };
    const auto component = [&](std::string_view key) { return Component(small_[key], place(key)); };
    if (given("normalizer")) parts_.normalizer = Normalizer(component("normalizer"));
    if (given("pre_tokenizer")) parts_.pre_tokenizer = PreTokenizer(component("pre_tokenizer"));
    if (given("post_processor")) parts_.post_processor = PostProcessor(component("post_processor"));
    if (given("decoder")) parts_.decoder = Decoder(component("decoder"));
    if (given("added_tokens")) load_added_tokens();
  }

  void load_added_tokens() {
    const Json& tokens = small_["added_tokens"];
    if (!tokens.is_array() || tokens.size() > kMaxAddedTokens) {
      throw invalid("{}: added_tokens: expected an array of at most {} tokens", name_, kMaxAddedTokens);
    }
    for (size_t i = 0; i < tokens.size(); ++i) {
      const Component entry(tokens[i], fmt::format("{}: added_tokens[{}]", name_, i));
      AddedToken token;
      const int64_t id = entry.number("id");
      if (id < 0 || id >= kMaxTokens)
        throw invalid("{}.id: {} is not between 0 and {}", entry.place(), id, kMaxTokens - 1);
      token.id = static_cast<int32_t>(id);
      token.content = entry.text("content");
      if (token.content.size() > kMaxAddedBytes) throw invalid("{}.content is too long", entry.place());
      token.single_word = entry.flag("single_word", false);
      token.lstrip = entry.flag("lstrip", false);
      token.rstrip = entry.flag("rstrip", false);
      token.special = entry.flag("special", false);
      token.normalized = entry.flag("normalized", !token.special);
      if (!token.content.empty()) parts_.added.push_back(std::move(token));
    }
  }

  static constexpr size_t kBatch = 32;
  struct Pair {
    std::string_view left, right;
  };

  simdjson::padded_string_view json_;
  std::string_view name_;
  simdjson::ondemand::parser parser_;
  TokenizerParts parts_;
  Json small_ = Json::object();
  std::vector<Pair> pending_;  // merges that wait for resolve_merges()
  std::string whole_;          // their joint texts
};

std::unique_ptr<Tokenizer> load(simdjson::padded_string_view json, std::string_view name) {
  try {
    return JsonLoader(json, name).load();
  } catch (const simdjson::simdjson_error& e) {
    throw invalid("{}: not a valid tokenizer.json: {}", name, e.what());
  }
}

}  // namespace

std::unique_ptr<Tokenizer> Tokenizer::from_file(const std::filesystem::path& tokenizer_json) {
  const File file(tokenizer_json);
  if (file.size() > kMaxFileBytes) {
    throw invalid("{}: {} bytes are too many for a tokenizer.json (at most {})", tokenizer_json.string(),
                  file.size(), kMaxFileBytes);
  }
  simdjson::padded_string json(static_cast<size_t>(file.size()));
  file.read_at(0, std::as_writable_bytes(std::span(json.data(), json.size())));
  return load(json, tokenizer_json.string());
}

std::unique_ptr<Tokenizer> Tokenizer::from_json(std::string_view json, std::string_view name) {
  return load(simdjson::padded_string(json), name);
}

}  // namespace atom::text
