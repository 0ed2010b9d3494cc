// atom tokenize and atom detokenize: standard input to ids and back, as JSON.
#include <filesystem>

#include "base/error.h"
#include "base/text_util.h"
#include "cli/command.h"

namespace atom::cli {
namespace {

struct Flags {
  std::string model;
  bool no_special_tokens = false;
  bool batch = false;
};

// The tokenizer of a model, or of a folder that holds nothing but a tokenizer.json.
class TokenizerOnly {
 public:
  explicit TokenizerOnly(const std::string& model) {
    const std::filesystem::path path = locate_model(model);
    const std::filesystem::path file = path / "tokenizer.json";
    if (std::filesystem::exists(file) && !std::filesystem::exists(path / "config.json")) {
      alone_ = text::Tokenizer::from_file(file);
    } else {
      model_.emplace(open_model_files(path));
    }
  }
  const text::Tokenizer& tokenizer() const { return alone_ != nullptr ? *alone_ : model_->tokenizer(); }

 private:
  std::unique_ptr<text::Tokenizer> alone_;
  std::optional<TextModel> model_;
};

void tokenize(const Flags& f) {
  const TokenizerOnly model(f.model);
  auto encode = [&](const std::string& text) {
    return model.tokenizer().encode(text, {.add_special_tokens = !f.no_special_tokens});
  };
  const std::string input = read_stdin();
  if (!f.batch) return print_line(Json(encode(input)).dump());
  const Json texts = parse_json(input, "standard input");
  if (!texts.is_array()) throw invalid("standard input: with --batch, a JSON array of strings");
  Json result = Json::array();
  for (const Json& text : texts) {
    if (!text.is_string()) throw invalid("standard input: element {} is not a string", result.size());
    result.push_back(encode(text.get_ref<const std::string&>()));
  }
  print_line(result.dump());
}

std::vector<int32_t> ids_of(const Json& value, const std::string& where) {
  if (!value.is_array()) throw invalid("{}: not an array of ids", where);
  std::vector<int32_t> ids;
  for (const Json& id : value) {
    if (!id.is_number_integer() || id.get<int64_t>() < 0 || id.get<int64_t>() > INT32_MAX) {
      throw invalid("{}: element {} is not a token id", where, ids.size());
    }
    ids.push_back(id.get<int32_t>());
  }
  return ids;
}

void detokenize(const Flags& f) {
  const TokenizerOnly model(f.model);
  auto decode = [&](const Json& ids, const std::string& where) {
    return model.tokenizer().decode(ids_of(ids, where), f.no_special_tokens).take();
  };
  const Json input = parse_json(read_stdin(), "standard input");
  if (!f.batch) return print_line(Json(decode(input, "standard input")).dump());
  if (!input.is_array()) throw invalid("standard input: with --batch, a JSON array of arrays of ids");
  Json result = Json::array();
  for (const Json& ids : input)
    result.push_back(decode(ids, fmt::format("standard input: element {}", result.size())));
  print_line(result.dump());
}

}  // namespace

void add_tokenize(CLI::App& app) {
  for (const bool forward : {true, false}) {
    auto f = std::make_shared<Flags>();
    CLI::App* verb =
        forward ? app.add_subcommand("tokenize", "standard input to token ids, as JSON")
                : app.add_subcommand("detokenize", "JSON token ids on standard input to text, as JSON");
    add_model_flag(verb, f->model);
    verb->add_flag(
        "--no-special-tokens", f->no_special_tokens,
        forward ? "put no BOS or the like around the text" : "leave special tokens out of the text");
    verb->add_flag("--batch", f->batch, "standard input and output are JSON arrays");
    verb->callback([f, forward] { forward ? tokenize(*f) : detokenize(*f); });
  }
}

}  // namespace atom::cli
