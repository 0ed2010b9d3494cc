#include "checkpoint/checkpoint.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>
#include <optional>
#include <thread>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/text_util.h"
#include "checkpoint/gguf.h"
#include "checkpoint/gguf_model.h"
#include "checkpoint/json_file.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/shard_index.h"
#include "tensor/buffer.h"

namespace atom {
namespace fs = std::filesystem;
namespace {

constexpr int kComputed = -1;
constexpr int kHeaderThreads = 16;  // headers are small: this hides latency, not work

// One file's lazily opened handles.
struct OpenFile {
  std::mutex mutex;
  std::unique_ptr<File> file;
  std::unique_ptr<FileMap> map;
};

void require_size(const File& file, int64_t expected) {
  if (file.size() == expected) return;
  throw invalid("{}: {} bytes now, {} when it was opened; the file must not change while it is in use",
                file.path().string(), file.size(), expected);
}

// The headers of all files, read by several threads; the first error by file order is thrown.
std::vector<SafetensorsHeader> read_headers(std::vector<CheckpointFile>& files) {
  std::vector<SafetensorsHeader> headers(files.size());
  std::vector<std::optional<Error>> errors(files.size());
  std::atomic<size_t> next{0};
  const auto work = [&] {
    for (size_t i; (i = next.fetch_add(1)) < files.size();) {
      try {
        const File file(files[i].path);
        files[i].bytes = file.size();
        headers[i] = read_safetensors_header(file);
      } catch (const Error& error) {
        errors[i] = error;
      } catch (const std::exception& error) {
        errors[i] = failed("{}: {}", files[i].path.string(), error.what());
      }
    }
  };
  std::vector<std::jthread> threads;
  for (size_t i = 1; i < std::min<size_t>(kHeaderThreads, files.size()); ++i) threads.emplace_back(work);
  work();
  threads.clear();  // joins
  for (std::optional<Error>& error : errors) {
    if (error) throw *std::move(error);
  }
  return headers;
}

}  // namespace

struct Checkpoint::State {
  bool gguf = false;
  std::vector<CheckpointFile> files;
  std::vector<StoredTensor> tensors;
  std::unordered_map<std::string_view, int64_t> index;  // keys point into `tensors`
  std::vector<IgnoredTensor> ignored;
  std::vector<OpenFile> open;  // one per file
  // Of computed tensors, whose `file` is kComputed and whose `offset` is an index into `memory`.
  std::vector<Buffer> slabs;
  std::vector<std::byte*> memory;

  void finish() {
    std::vector<OpenFile> handles(files.size());
    open.swap(handles);
    fill_index();
  }
  void fill_index() {
    index.clear();
    index.reserve(tensors.size());
    for (size_t i = 0; i < tensors.size(); ++i) {
      const auto [it, fresh] = index.emplace(tensors[i].name, static_cast<int64_t>(i));
      if (fresh) continue;
      CHECK(tensors[i].file != kComputed, "{} is there already", tensors[i].name);
      throw invalid("tensor {} is in two files: {} and {}; remove one or add {}", printable(tensors[i].name),
                    files[tensors[it->second].file].path.string(), files[tensors[i].file].path.string(),
                    kIndexFileName);
    }
  }

  void open_folder(const fs::path& folder);
  void open_gguf(const fs::path& path);
  void check_index(const ShardList& shards, const std::vector<SafetensorsHeader>& headers,
                   const fs::path& folder) const;
};

// Every tensor of the index must be in the file that the index says.
void Checkpoint::State::check_index(const ShardList& shards, const std::vector<SafetensorsHeader>& headers,
                                    const fs::path& folder) const {
  if (index.size() == shards.file_of.size()) return;
  for (const auto& [name, file] : shards.file_of) {
    if (index.contains(name)) continue;
    for (size_t other = 0; other < headers.size(); ++other) {
      for (const StoredTensor& tensor : headers[other].tensors) {
        if (tensor.name != name) continue;
        throw invalid("{}: tensor {} is listed in {} but is in {}", (folder / kIndexFileName).string(),
                      printable(name), shards.files[file], shards.files[other]);
      }
    }
    throw invalid("{}: tensor {} is listed in {} but is not there", (folder / kIndexFileName).string(),
                  printable(name), shards.files[file]);
  }
}

void Checkpoint::State::open_folder(const fs::path& folder) {
  const ShardList shards = list_shards(folder);
  for (const std::string& name : shards.files) files.push_back({folder / name, 0});
  const std::vector<SafetensorsHeader> headers = read_headers(files);
  for (size_t f = 0; f < headers.size(); ++f) {
    for (const StoredTensor& tensor : headers[f].tensors) {
      if (shards.indexed) {
        const auto it = shards.file_of.find(tensor.name);
        if (it == shards.file_of.end()) {
          ignored.push_back({tensor.name, shards.files[f], "not in the index"});
          continue;
        }
        if (it->second != static_cast<int>(f)) {
          ignored.push_back(
              {tensor.name, shards.files[f], "the index takes it from " + shards.files[it->second]});
          continue;
        }
      }
      tensors.push_back(tensor);
      tensors.back().file = static_cast<int>(f);
    }
  }
  finish();
  if (shards.indexed) check_index(shards, headers, folder);
  if (!ignored.empty()) {
    log_warning("{}: {} tensors ignored, the first is {} in {}: {}", folder.string(), ignored.size(),
                printable(ignored[0].name), ignored[0].file, ignored[0].reason);
  }
}

void Checkpoint::State::open_gguf(const fs::path& path) {
  gguf = true;
  auto map = std::make_unique<FileMap>(path);
  files.push_back({path, map->file().size()});
  GgufFile file = parse_gguf(map->bytes(), path.string());
  for (StoredTensor& tensor : file.tensors) {
    if (const char* reason = gguf_ignored_reason(tensor.name)) {
      ignored.push_back({tensor.name, path.filename().string(), reason});
      continue;
    }
    if (auto name = gguf_to_hf_name(tensor.name)) tensor.name = *std::move(name);
    tensors.push_back(std::move(tensor));
  }
  std::sort(tensors.begin(), tensors.end(),
            [](const StoredTensor& a, const StoredTensor& b) { return a.offset < b.offset; });
  finish();
  open[0].map = std::move(map);
}

Checkpoint::Checkpoint(std::unique_ptr<State> state) : state_(std::move(state)) {}
Checkpoint::Checkpoint(Checkpoint&&) noexcept = default;
Checkpoint& Checkpoint::operator=(Checkpoint&&) noexcept = default;
Checkpoint::~Checkpoint() = default;

Checkpoint Checkpoint::open(const fs::path& path) {
  auto state = std::make_unique<State>();
  try {
    if (fs::is_directory(path)) {
      state->open_folder(path);
    } else if (path.extension() == ".gguf") {
      state->open_gguf(path);
    } else if (fs::exists(path)) {
      throw invalid("{}: neither a folder nor a .gguf file; give the folder of the model", path.string());
    } else {
      throw invalid("{}: no such folder or file", path.string());
    }
  } catch (const fs::filesystem_error& error) {
    throw invalid("{}: {}", path.string(), error.code().message());
  }
  return Checkpoint(std::move(state));
}

bool Checkpoint::is_gguf() const { return state_->gguf; }
const std::vector<StoredTensor>& Checkpoint::tensors() const { return state_->tensors; }
const std::vector<CheckpointFile>& Checkpoint::files() const { return state_->files; }
const std::vector<IgnoredTensor>& Checkpoint::ignored() const { return state_->ignored; }

const StoredTensor* Checkpoint::find(std::string_view name) const {
  const auto it = state_->index.find(name);
  return it == state_->index.end() ? nullptr : &state_->tensors[static_cast<size_t>(it->second)];
}

const StoredTensor& Checkpoint::get(std::string_view name) const {
  if (const StoredTensor* tensor = find(name)) return *tensor;
  std::vector<std::string> names;
  for (const StoredTensor& tensor : state_->tensors) names.push_back(tensor.name);
  throw invalid("{}: tensor {} is missing{}",
                state_->files.empty() ? "checkpoint" : state_->files[0].path.parent_path().string(), name,
                did_you_mean(name, names));
}

void Checkpoint::replace(const std::vector<Replacement>& replacements) {
  std::vector<StoredTensor>& tensors = state_->tensors;
  std::vector<const Replacement*> at(tensors.size());
  for (const Replacement& r : replacements) at[static_cast<size_t>(state_->index.at(r.name))] = &r;
  Slabs slabs(state_->slabs);
  std::vector<StoredTensor> all;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (at[i] == nullptr) {
      all.push_back(std::move(tensors[i]));
      continue;
    }
    for (const StoredTensor& computed : at[i]->computed) {
      all.push_back(computed);
      all.back().file = kComputed;
      all.back().offset = static_cast<int64_t>(state_->memory.size());
      state_->memory.push_back(slabs.take(computed.bytes));
    }
  }
  tensors = std::move(all);
  state_->fill_index();
}

bool Checkpoint::is_computed(const StoredTensor& tensor) const { return tensor.file == kComputed; }

std::byte* Checkpoint::computed(const StoredTensor& tensor) {
  CHECK(is_computed(tensor), "{} is in a file", tensor.name);
  return state_->memory.at(static_cast<size_t>(tensor.offset));
}

const std::byte* Checkpoint::mapped(const StoredTensor& tensor) const {
  if (is_computed(tensor)) return state_->memory.at(static_cast<size_t>(tensor.offset));
  const CheckpointFile& file = state_->files.at(static_cast<size_t>(tensor.file));
  OpenFile& open = state_->open[static_cast<size_t>(tensor.file)];
  std::lock_guard lock(open.mutex);
  if (!open.map) {
    auto map = std::make_unique<FileMap>(file.path);
    require_size(map->file(), file.bytes);
    open.map = std::move(map);
  }
  return open.map->bytes().data() + tensor.offset;
}

void Checkpoint::read(const StoredTensor& tensor, int64_t offset, std::span<std::byte> out) const {
  const auto count = static_cast<int64_t>(out.size());
  CHECK(offset >= 0 && count <= tensor.bytes && offset <= tensor.bytes - count,
        "tensor {}: {} bytes at {} of {}", tensor.name, count, offset, tensor.bytes);
  if (is_computed(tensor)) {
    std::memcpy(out.data(), mapped(tensor) + offset, out.size());
    return;
  }
  const CheckpointFile& file = state_->files.at(static_cast<size_t>(tensor.file));
  OpenFile& open = state_->open[static_cast<size_t>(tensor.file)];
  const File* handle = nullptr;
  {
    std::lock_guard lock(open.mutex);
    if (!open.file) {
      auto opened = std::make_unique<File>(file.path);
      require_size(*opened, file.bytes);
      open.file = std::move(opened);
    }
    handle = open.file.get();
  }
  handle->read_at(tensor.offset + offset, out);
}

}  // namespace atom
