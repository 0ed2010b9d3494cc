// atom quantize: writes a checkpoint whose matrices are quantised, as publishers of such checkpoints store
// them.
#include <algorithm>
#include <fstream>
#include <unordered_map>

#include "base/error.h"
#include "base/text_util.h"
#include "checkpoint/json_file.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/shard_index.h"
#include "cli/command.h"
#include "engine/drafter_choice.h"
#include "engine/quantise_option.h"
#include "runtime/account.h"
#include "tensor/buffer.h"

namespace atom::cli {
namespace fs = std::filesystem;
namespace {

struct Flags {
  ModelOptions model;
  std::string out;
};

void make_empty_folder(const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error || !fs::is_directory(folder, error))
    throw failed("--out {}: cannot be created: {}", folder.string(), error.message());
  if (!fs::is_empty(folder, error) || error)
    throw invalid("--out {}: holds files already; give a folder that is empty or does not exist",
                  folder.string());
}

void write_json(const fs::path& path, const Json& json) {
  const std::string text = json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
  std::ofstream file(path, std::ios::binary);
  file.write(text.data(), static_cast<std::streamsize>(text.size()));
  file.close();
  if (!file) throw failed("{}: cannot be written", path.string());
}

// Tokenizer, templates and whatever else lies beside the weights, but no weights in other formats.
void copy_other_files(const fs::path& from, const fs::path& to) {
  constexpr std::string_view kWeights[] = {".safetensors", ".bin", ".pt",      ".pth",
                                           ".gguf",        ".h5",  ".msgpack", ".onnx"};
  for (const fs::directory_entry& entry : fs::directory_iterator(from)) {
    const std::string name = entry.path().filename().string();
    if (!entry.is_regular_file() || name == "config.json" || name.ends_with(".index.json")) continue;
    if (std::ranges::any_of(kWeights, [&](std::string_view ending) { return name.ends_with(ending); }))
      continue;
    std::error_code error;
    fs::copy_file(entry.path(), to / name, error);
    if (error) throw failed("{}: cannot be copied: {}", entry.path().string(), error.message());
  }
}

// Writes the checkpoint's files with the quantised tensors in the place of the plain ones, under the same
// names.
class Writer {
 public:
  Writer(const Checkpoint& checkpoint, const Quantisation& quantisation, fs::path out, int threads)
      : checkpoint_(checkpoint), out_(std::move(out)), threads_(threads) {
    for (const QuantisedMatrix& m : quantisation.matrices) {
      matrices_.emplace(m.plain.name, &m);
      left_ += m.plain.bytes;
    }
  }

  void write() {
    const std::vector<CheckpointFile>& files = checkpoint_.files();
    Json weight_map = Json::object();
    for (size_t i = 0; i < files.size(); ++i) {
      const std::string name = files[i].path.filename().string();
      for (const NamedTensor& tensor : write_file(static_cast<int>(i), name)) {
        weight_map[tensor.name] = name;
        bytes_ += tensor.tensor.bytes();
      }
    }
    if (files.size() == 1) return;
    write_json(out_ / kIndexFileName,
               {{"metadata", {{"total_size", bytes_}}}, {"weight_map", std::move(weight_map)}});
  }
  int64_t bytes() const { return bytes_; }

 private:
  std::vector<NamedTensor> write_file(int index, const std::string& name) {
    std::vector<Buffer> buffers;
    Slabs slabs(buffers);
    std::vector<NamedTensor> tensors;
    std::vector<QuantisedBytes> quantised;
    for (const StoredTensor& stored : checkpoint_.tensors()) {
      if (stored.file != index) continue;
      const auto it = matrices_.find(stored.name);
      if (it == matrices_.end()) {
        tensors.push_back(named(stored, const_cast<std::byte*>(checkpoint_.mapped(stored))));
        continue;
      }
      const QuantisedMatrix& m = *it->second;
      quantised.push_back({&m, slabs.take(m.elements.bytes), slabs.take(m.scales.bytes)});
      tensors.push_back(named(m.elements, quantised.back().elements));
      tensors.push_back(named(m.scales, quantised.back().scales));
    }
    int64_t here = 0;
    for (const QuantisedBytes& q : quantised) here += q.matrix->plain.bytes;
    quantise(checkpoint_, quantised, threads_,
             [&](int64_t done, int64_t) { progress_("quantise", done_ + done, left_); });
    done_ += here;
    write_safetensors(out_ / name, tensors, {{"format", "pt"}});
    return tensors;
  }

  static NamedTensor named(const StoredTensor& stored, std::byte* data) {
    return {stored.name, make_tensor(data, usable_dtype(stored), stored.shape)};
  }

  const Checkpoint& checkpoint_;
  const fs::path out_;
  const int threads_;
  std::unordered_map<std::string_view, const QuantisedMatrix*> matrices_;  // by the plain tensor's name
  int64_t bytes_ = 0, done_ = 0, left_ = 0;
  ProgressLine progress_;
};

void run(const Flags& f) {
  const ModelFiles files = open_model_files(locate_model(f.model.model));
  if (files.is_gguf) plan_quantisation(files, nullptr, f.model.quantize);  // says why not
  const Checkpoint checkpoint = Checkpoint::open(files.root);
  require_complete(account(ModelDeclaration(files).tables(), checkpoint), files.root.string());
  const Quantisation quantisation = plan_quantisation(files, &checkpoint, f.model.quantize);
  const fs::path out = f.out;
  make_empty_folder(out);
  Writer writer(checkpoint, quantisation, out, f.model.thread_count());
  writer.write();
  copy_other_files(files.root, out);
  // At last: a folder without it is no model.
  Json config = read_checkpoint_json(files.root / "config.json");
  config["quantization_config"] = quantisation.config;
  write_json(out / "config.json", config);
  int64_t before = 0;
  for (const StoredTensor& tensor : checkpoint.tensors()) before += tensor.bytes;
  print_line(fmt::format("{}: {} of {} tensors in {}, {} instead of {}", out.string(),
                         quantisation.matrices.size(), checkpoint.tensors().size(), f.model.quantize,
                         format_bytes(writer.bytes()), format_bytes(before)));
}

}  // namespace

void add_quantize(CLI::App& app) {
  auto f = std::make_shared<Flags>();
  CLI::App* verb = app.add_subcommand("quantize", "write a checkpoint with quantised weights");
  add_model_flag(verb, f->model.model);
  add_quantize_flag(verb, "--to", f->model)->required();
  verb->add_option("--out", f->out, "folder to write, which is empty or does not exist")
      ->required()
      ->check(not_empty());
  verb->add_option("--threads", f->model.threads, "threads in all; default: one per core")
      ->check(CLI::Range(1, 4096));
  verb->callback([f] { run(*f); });
}

}  // namespace atom::cli
