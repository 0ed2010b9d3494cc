#include "checkpoint/safetensors.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <simdjson.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <unordered_set>
#include <utility>

#include "base/error.h"
#include "base/json.h"
#include "base/text_util.h"
#include "checkpoint/json_file.h"

namespace atom {
namespace {

static_assert(std::endian::native == std::endian::little, "the formats read here are little endian");

constexpr int64_t kLengthBytes = 8;
constexpr size_t kMaxDepth = 16;  // the format needs 4

struct TypeRow {
  const char* name;
  std::optional<DType> dtype;
  int64_t bytes;  // of one element; 0 for a type whose element is smaller than a byte
};
// Every element type of the format. Those without a DType are listed but cannot be used by a model.
constexpr TypeRow kTypes[] = {
    {"F32", DType::f32, 4},
    {"F16", DType::f16, 2},
    {"BF16", DType::bf16, 2},
    {"F8_E4M3", DType::f8e4m3, 1},
    {"F8_E5M2", DType::f8e5m2, 1},
    {"F8_E8M0", DType::e8m0, 1},
    {"I8", DType::i8, 1},
    {"U8", DType::u8, 1},
    {"BOOL", DType::u8, 1},
    {"I16", DType::i16, 2},
    {"I32", DType::i32, 4},
    {"I64", DType::i64, 8},
    {"U16", std::nullopt, 2},
    {"U32", std::nullopt, 4},
    {"U64", std::nullopt, 8},
    {"F64", std::nullopt, 8},
    {"C64", std::nullopt, 8},
    {"F8_E4M3FNUZ", std::nullopt, 1},
    {"F8_E5M2FNUZ", std::nullopt, 1},
    {"F4", std::nullopt, 0},
    {"F6_E2M3", std::nullopt, 0},
    {"F6_E3M2", std::nullopt, 0},
};

const TypeRow* find_type(std::string_view name) {
  for (const TypeRow& row : kTypes) {
    if (name == row.name) return &row;
  }
  return nullptr;
}

const char* spelling_of(DType dtype) {
  for (const TypeRow& row : kTypes) {
    if (row.dtype == dtype) return row.name;
  }
  return nullptr;
}

int64_t bits_per_element(const TypeRow& type) {
  if (type.bytes > 0) return type.bytes * 8;
  return std::string_view(type.name) == "F4" ? 4 : 6;
}

class HeaderParser {
 public:
  HeaderParser(std::string_view file_name, int64_t data_begin, int64_t file_bytes)
      : file_name_(file_name), data_begin_(data_begin), data_bytes_(file_bytes - data_begin) {}

  SafetensorsHeader parse(std::string_view json) {
    simdjson::dom::parser parser;
    if (parser.allocate(json.size(), kMaxDepth) != simdjson::SUCCESS) {
      throw failed("{}: no memory to parse a header of {}", file_name_, format_bytes(json.size()));
    }
    simdjson::dom::element root;
    if (const auto error = parser.parse(json.data(), json.size()).get(root)) {
      throw invalid("{}: the safetensors header is not valid JSON ({}); the file is damaged", file_name_,
                    simdjson::error_message(error));
    }
    simdjson::dom::object object;
    if (root.get(object)) throw invalid("{}: the safetensors header is not a JSON object", file_name_);

    SafetensorsHeader header;
    std::unordered_set<std::string_view> names;
    header.tensors.reserve(object.size());
    for (const auto [key, value] : object) {
      if (!names.insert(key).second) {
        throw invalid("{}: tensor {} is listed twice", file_name_, printable(key));
      }
      if (key == "__metadata__") {
        read_metadata(value, header.metadata);
      } else {
        header.tensors.push_back(read_tensor(key, value));
      }
    }
    check_coverage(header.tensors);
    return header;
  }

 private:
  template <class... Args>
  Error bad(std::string_view tensor, fmt::format_string<Args...> format, Args&&... args) const {
    return invalid("{}: tensor {}: {}", file_name_, printable(tensor),
                   fmt::format(format, std::forward<Args>(args)...));
  }

  void read_metadata(simdjson::dom::element value, std::map<std::string, std::string>& metadata) const {
    simdjson::dom::object object;
    if (value.get(object)) throw invalid("{}: __metadata__ is not a JSON object", file_name_);
    for (const auto [key, item] : object) {
      std::string_view text;
      if (item.get(text)) {
        throw invalid("{}: __metadata__ key {} is not a string", file_name_, printable(key));
      }
      metadata.insert_or_assign(std::string(key), std::string(text));
    }
  }

  StoredTensor read_tensor(std::string_view name, simdjson::dom::element value) const {
    simdjson::dom::object object;
    if (value.get(object)) throw bad(name, "the entry is not a JSON object");
    StoredTensor tensor;
    tensor.name = name;
    const TypeRow* type = nullptr;
    std::vector<int64_t> offsets;
    bool has_shape = false, has_offsets = false;
    for (const auto [key, item] : object) {
      if (key == "dtype") {
        std::string_view text;
        if (type != nullptr) throw bad(name, "dtype is given twice");
        if (item.get(text)) throw bad(name, "dtype is not a string");
        type = find_type(text);
        if (type == nullptr) throw bad(name, "unknown dtype {}", printable(text));
      } else if (key == "shape") {
        if (std::exchange(has_shape, true)) throw bad(name, "shape is given twice");
        tensor.shape = read_integers(name, "shape", item, kMaxStoredRank);
      } else if (key == "data_offsets") {
        if (std::exchange(has_offsets, true)) throw bad(name, "data_offsets is given twice");
        offsets = read_integers(name, "data_offsets", item, 2);
      }
    }
    if (type == nullptr || !has_shape || !has_offsets) {
      throw bad(name, "dtype, shape or data_offsets is missing");
    }
    tensor.dtype = type->dtype;
    tensor.dtype_name = type->name;
    if (offsets.size() != 2) throw bad(name, "data_offsets has {} numbers, not 2", offsets.size());
    const auto [begin, end] = std::pair(offsets[0], offsets[1]);
    if (begin > end) throw bad(name, "data_offsets [{}, {}] run backwards", begin, end);
    if (end > data_bytes_) {
      throw bad(name, "data_offsets [{}, {}] end past the file's {} data bytes; the file is cut short", begin,
                end, data_bytes_);
    }
    const std::optional<int64_t> elements = shape_elements(tensor.shape);
    int64_t bits = 0;
    if (!elements || __builtin_mul_overflow(*elements, bits_per_element(*type), &bits)) {
      throw bad(name, "the size of shape [{}] overflows", fmt::join(tensor.shape, ", "));
    }
    if (bits % 8 != 0 || bits / 8 != end - begin) {
      throw bad(name, "{} [{}] needs {} bytes, data_offsets span {}", type->name,
                fmt::join(tensor.shape, ", "), (bits + 7) / 8, end - begin);
    }
    tensor.offset = data_begin_ + begin;
    tensor.bytes = end - begin;
    return tensor;
  }

  std::vector<int64_t> read_integers(std::string_view name, const char* key, simdjson::dom::element value,
                                     size_t max_count) const {
    simdjson::dom::array array;
    if (value.get(array)) throw bad(name, "{} is not a list", key);
    std::vector<int64_t> numbers;
    for (const simdjson::dom::element item : array) {
      int64_t number = 0;
      if (numbers.size() == max_count) throw bad(name, "{} has more than {} numbers", key, max_count);
      if (!item.is_int64() || item.get(number) || number < 0) {
        throw bad(name, "{} holds something else than integers from 0 to 2^63 - 1", key);
      }
      numbers.push_back(number);
    }
    return numbers;
  }

  // Sorts by offset and checks that the tensors tile the data section.
  void check_coverage(std::vector<StoredTensor>& tensors) const {
    std::sort(tensors.begin(), tensors.end(), [](const StoredTensor& a, const StoredTensor& b) {
      return std::pair(a.offset, a.bytes) < std::pair(b.offset, b.bytes);
    });
    int64_t position = data_begin_;
    for (const StoredTensor& tensor : tensors) {
      if (tensor.offset < position) throw bad(tensor.name, "its bytes overlap those of another tensor");
      if (tensor.offset > position) {
        throw bad(tensor.name, "{} unused bytes lie before it; the file is damaged",
                  tensor.offset - position);
      }
      position += tensor.bytes;
    }
    if (position != data_begin_ + data_bytes_) {
      throw invalid("{}: {} bytes after the last tensor; the file is damaged", file_name_,
                    data_begin_ + data_bytes_ - position);
    }
  }

  std::string_view file_name_;
  int64_t data_begin_;
  int64_t data_bytes_;
};

// What a file that is not safetensors seems to be, or "".
std::string_view guess_format(std::span<const std::byte> head) {
  const std::string_view text(reinterpret_cast<const char*>(head.data()), head.size());
  if (text.starts_with("version https://git-lfs")) {
    return "it is a Git LFS pointer, not the weights: run `git lfs pull` or download the file";
  }
  if (text.starts_with("PK\x03\x04")) return "it is a zip archive (a PyTorch file?)";
  if (text.starts_with("GGUF")) return "it is a GGUF file: name it *.gguf";
  if (text.starts_with("\x80\x02") || text.starts_with("\x80\x04")) return "it is a Python pickle";
  if (text.starts_with("<")) return "it is a web page";
  return "";
}

// The header's length after checking that it fits.
int64_t header_length(std::span<const std::byte> head, int64_t file_bytes, std::string_view file_name) {
  uint64_t length = 0;
  std::string problem;
  if (file_bytes < kLengthBytes || head.size() < static_cast<size_t>(kLengthBytes)) {
    problem = fmt::format("only {} bytes", file_bytes);
  } else {
    std::memcpy(&length, head.data(), sizeof length);
    if (length > static_cast<uint64_t>(kMaxSafetensorsHeaderBytes)) {
      problem =
          fmt::format("a header of {} bytes, more than the {} allowed", length, kMaxSafetensorsHeaderBytes);
    } else if (static_cast<int64_t>(length) > file_bytes - kLengthBytes) {
      problem =
          fmt::format("a header of {} bytes in a file of {}; it is cut short or damaged", length, file_bytes);
    }
  }
  if (problem.empty()) return static_cast<int64_t>(length);
  if (const std::string_view guess = guess_format(head); !guess.empty()) problem = guess;
  throw invalid("{}: not a safetensors file: {}", file_name, problem);
}

std::string header_json(std::span<const NamedTensor> tensors,
                        const std::map<std::string, std::string>& metadata) {
  Json header = Json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  int64_t offset = 0;
  for (const auto& [name, tensor] : tensors) {
    const char* type = spelling_of(tensor.dtype);
    CHECK(type != nullptr, "tensor {}: {} has no safetensors type", name, dtype_name(tensor.dtype));
    CHECK(tensor.contiguous() && tensor.device.kind == Device::cpu, "tensor {}", name);
    CHECK(name != "__metadata__" && !header.contains(name), "tensor {} is given twice", name);
    Json shape = Json::array();
    for (int i = 0; i < tensor.rank; ++i) shape.push_back(tensor.dims[i]);
    header[name] = {
        {"dtype", type}, {"shape", std::move(shape)}, {"data_offsets", {offset, offset + tensor.bytes()}}};
    offset += tensor.bytes();
  }
  std::string text = header.dump();
  // Spaces at the end make the data start on a multiple of 64 bytes.
  const size_t before_data = (kLengthBytes + text.size() + 63) / 64 * 64;
  text.resize(before_data - kLengthBytes, ' ');
  return text;
}

void write_all(int fd, const void* data, size_t bytes, const std::filesystem::path& path) {
  const char* p = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t n = ::write(fd, p, std::min<size_t>(bytes, size_t{1} << 30));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw failed("{}: cannot write: {}", path.string(), std::strerror(errno));
    p += n;
    bytes -= static_cast<size_t>(n);
  }
}

}  // namespace

SafetensorsHeader parse_safetensors(std::span<const std::byte> head, int64_t file_bytes,
                                    std::string_view file_name) {
  const int64_t length = header_length(head, file_bytes, file_name);
  CHECK(static_cast<int64_t>(head.size()) >= kLengthBytes + length, "the header must be passed whole");
  const std::string_view json(reinterpret_cast<const char*>(head.data()) + kLengthBytes,
                              static_cast<size_t>(length));
  return HeaderParser(file_name, kLengthBytes + length, file_bytes).parse(json);
}

SafetensorsHeader read_safetensors_header(const File& file) {
  std::vector<std::byte> head(static_cast<size_t>(std::min<int64_t>(file.size(), 32)));
  file.read_at(0, head);
  const std::string name = file.path().string();
  head.resize(static_cast<size_t>(kLengthBytes + header_length(head, file.size(), name)));
  file.read_at(0, head);
  return parse_safetensors(head, file.size(), name);
}

void write_safetensors(const std::filesystem::path& given, std::span<const NamedTensor> tensors,
                       const std::map<std::string, std::string>& metadata) {
  std::error_code none;
  const std::filesystem::path path =
      std::filesystem::is_symlink(given, none) ? std::filesystem::weakly_canonical(given, none) : given;
  if (std::filesystem::exists(path, none) && !std::filesystem::is_regular_file(path, none))
    throw failed("{}: is not a regular file", given.string());
  const std::string json = header_json(tensors, metadata);
  const uint64_t length = json.size();
  std::filesystem::path partial = path;
  partial += fmt::format(".{}.partial", ::getpid());
  const int fd = ::open(partial.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) throw failed("{}: cannot create: {}", given.string(), std::strerror(errno));
  try {
    write_all(fd, &length, sizeof length, path);
    write_all(fd, json.data(), json.size(), path);
    for (const auto& [name, tensor] : tensors) {
      write_all(fd, tensor.data, static_cast<size_t>(tensor.bytes()), path);
    }
    if (::rename(partial.c_str(), path.c_str()) != 0) {
      throw failed("{}: cannot create: {}", path.string(), std::strerror(errno));
    }
  } catch (...) {
    ::close(fd);
    ::unlink(partial.c_str());
    throw;
  }
  if (::close(fd) != 0) throw failed("{}: cannot write: {}", path.string(), std::strerror(errno));
}

}  // namespace atom
