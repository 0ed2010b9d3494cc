#include "checkpoint/gguf.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <unordered_set>

#include "base/error.h"
#include "base/text_util.h"

namespace atom {
namespace {

constexpr int64_t kMaxTensors = 1 << 20;
constexpr int64_t kMaxKeys = 1 << 16;
constexpr int64_t kMaxArray = 1 << 24;  // elements of one metadata array
constexpr int64_t kMaxName = 1024;
constexpr int kMaxDims = 4;  // of the format

// Element types by number. Those without a DType are known well enough to bound them, not to compute with.
struct TypeRow {
  uint32_t id;
  const char* name;
  std::optional<DType> dtype;
  int32_t block;
  int32_t block_bytes;
};
constexpr TypeRow kTypes[] = {
    {0, "F32", DType::f32, 1, 4},
    {1, "F16", DType::f16, 1, 2},
    {2, "Q4_0", DType::q4_0, 32, 18},
    {3, "Q4_1", DType::q4_1, 32, 20},
    {6, "Q5_0", DType::q5_0, 32, 22},
    {7, "Q5_1", DType::q5_1, 32, 24},
    {8, "Q8_0", DType::q8_0, 32, 34},
    {9, "Q8_1", std::nullopt, 32, 36},
    {10, "Q2_K", std::nullopt, 256, 84},
    {11, "Q3_K", std::nullopt, 256, 110},
    {12, "Q4_K", DType::q4_k, 256, 144},
    {13, "Q5_K", DType::q5_k, 256, 176},
    {14, "Q6_K", DType::q6_k, 256, 210},
    {15, "Q8_K", std::nullopt, 256, 292},
    {16, "IQ2_XXS", std::nullopt, 256, 66},
    {17, "IQ2_XS", std::nullopt, 256, 74},
    {18, "IQ3_XXS", std::nullopt, 256, 98},
    {19, "IQ1_S", std::nullopt, 256, 50},
    {20, "IQ4_NL", std::nullopt, 32, 18},
    {21, "IQ3_S", std::nullopt, 256, 110},
    {22, "IQ2_S", std::nullopt, 256, 82},
    {23, "IQ4_XS", std::nullopt, 256, 136},
    {24, "I8", DType::i8, 1, 1},
    {25, "I16", DType::i16, 1, 2},
    {26, "I32", DType::i32, 1, 4},
    {27, "I64", DType::i64, 1, 8},
    {28, "F64", std::nullopt, 1, 8},
    {29, "IQ1_M", std::nullopt, 256, 56},
    {30, "BF16", DType::bf16, 1, 2},
    {34, "TQ1_0", std::nullopt, 256, 54},
    {35, "TQ2_0", std::nullopt, 256, 66},
    {39, "MXFP4", std::nullopt, 32, 17},
};

const TypeRow* find_type(uint32_t id) {
  for (const TypeRow& row : kTypes) {
    if (row.id == id) return &row;
  }
  return nullptr;
}

// Metadata value types of the format.
enum ValueType : uint32_t {
  kU8,
  kI8,
  kU16,
  kI16,
  kU32,
  kI32,
  kF32,
  kBool,
  kString,
  kArray,
  kU64,
  kI64,
  kF64,
  kValueTypes
};
constexpr int64_t kMinBytes[kValueTypes] = {1, 1, 2, 2, 4, 4, 4, 1, 8, 12, 8, 8, 8};

class Parser {
 public:
  Parser(std::span<const std::byte> bytes, std::string_view file_name) : bytes_(bytes) {
    file_.file_name = file_name;
  }

  GgufFile parse() {
    read_preamble();
    for (int64_t i = 0; i < keys_; ++i) read_metadata();
    if (const auto alignment = file_.integer("general.alignment")) {
      if (*alignment < 8 || *alignment > 65536 || (*alignment & (*alignment - 1)) != 0) {
        throw bad("general.alignment {} is not a power of two from 8 to 65536", *alignment);
      }
      file_.alignment = *alignment;
    }
    file_.tensors.reserve(static_cast<size_t>(std::min<int64_t>(tensors_, 4096)));
    for (int64_t i = 0; i < tensors_; ++i) read_tensor();
    place_tensors();
    return std::move(file_);
  }

 private:
  template <class... Args>
  Error bad(fmt::format_string<Args...> format, Args&&... args) const {
    return invalid("{}: {}", file_.file_name, fmt::format(format, std::forward<Args>(args)...));
  }

  int64_t left() const { return static_cast<int64_t>(bytes_.size()) - position_; }

  void need(int64_t count, std::string_view what) const {
    if (left() < count) {
      throw bad("ends inside {} (byte {}); the file is cut short or damaged", what, position_);
    }
  }

  template <class T>
  T read(std::string_view what) {
    need(sizeof(T), what);
    T value;
    std::memcpy(&value, bytes_.data() + position_, sizeof value);
    position_ += sizeof value;
    return value;
  }

  int64_t read_count(std::string_view what, int64_t max) {
    const uint64_t count = read<uint64_t>(what);
    if (count > static_cast<uint64_t>(max)) throw bad("{} {} is more than the {} allowed", what, count, max);
    return static_cast<int64_t>(count);
  }

  std::string read_string(std::string_view what, int64_t max) {
    const int64_t length = read_count(what, max);
    need(length, what);
    std::string text(reinterpret_cast<const char*>(bytes_.data()) + position_, static_cast<size_t>(length));
    position_ += length;
    return text;
  }

  // A key or tensor name: fit to be printed.
  std::string read_name(std::string_view what, int64_t max) {
    std::string name = read_string(what, max);
    const bool control =
        std::any_of(name.begin(), name.end(), [](char c) { return static_cast<unsigned char>(c) < 0x20; });
    if (name.empty() || control || !is_valid_utf8(name)) {
      throw bad("{} is not readable text; the file is damaged", what);
    }
    return name;
  }

  void read_preamble() {
    if (bytes_.size() < 4 || std::memcmp(bytes_.data(), "GGUF", 4) != 0) {
      throw bad("not a GGUF file: it does not begin with GGUF");
    }
    position_ = 4;
    const uint32_t version = read<uint32_t>("the version");
    if (version == __builtin_bswap32(2) || version == __builtin_bswap32(3)) {
      throw bad("a big-endian GGUF file; only little-endian files are supported");
    }
    if (version != 2 && version != 3) throw bad("GGUF version {} is not supported (2 and 3 are)", version);
    file_.version = static_cast<int>(version);
    tensors_ = read_count("the tensor count", kMaxTensors);
    keys_ = read_count("the metadata count", kMaxKeys);
  }

  void read_metadata() {
    std::string key = read_name("a metadata key", kMaxName);
    const uint32_t type = read<uint32_t>("a metadata type");
    GgufValue value = type == kArray ? read_array(key) : read_scalar(type, key);
    if (!file_.metadata.emplace(key, std::move(value)).second) throw bad("key {} is given twice", key);
  }

  template <class T>
  int64_t read_integer(std::string_view key) {
    const T value = read<T>(key);
    if constexpr (std::is_same_v<T, uint64_t>) {
      if (value > static_cast<uint64_t>(INT64_MAX)) throw bad("key {}: {} is too large", key, value);
    }
    return static_cast<int64_t>(value);
  }

  int64_t read_integer(uint32_t type, std::string_view key) {
    switch (type) {
      case kU8:
        return read_integer<uint8_t>(key);
      case kI8:
        return read_integer<int8_t>(key);
      case kU16:
        return read_integer<uint16_t>(key);
      case kI16:
        return read_integer<int16_t>(key);
      case kU32:
        return read_integer<uint32_t>(key);
      case kI32:
        return read_integer<int32_t>(key);
      case kU64:
        return read_integer<uint64_t>(key);
      case kI64:
        return read_integer<int64_t>(key);
      case kBool: {
        const uint8_t value = read<uint8_t>(key);
        if (value > 1) throw bad("key {}: {} is not a truth value", key, value);
        return value;
      }
      default:
        throw bad("key {}: unknown value type {}", key, type);
    }
  }

  double read_float(uint32_t type, std::string_view key) {
    return type == kF32 ? static_cast<double>(read<float>(key)) : read<double>(key);
  }

  GgufValue read_scalar(uint32_t type, const std::string& key) {
    if (type == kString) return read_string(key, left());
    if (type == kF32 || type == kF64) return read_float(type, key);
    const int64_t value = read_integer(type, key);
    if (type == kBool) return value != 0;
    return value;
  }

  GgufValue read_array(const std::string& key) {
    const uint32_t type = read<uint32_t>(key);
    if (type == kArray) throw bad("key {}: arrays of arrays are not supported", key);
    if (type >= kValueTypes) throw bad("key {}: unknown value type {}", key, type);
    const int64_t count = read_count(key, kMaxArray);
    need(count * kMinBytes[type], key);
    const auto fill = [&](auto values, auto read_one) -> GgufValue {
      values.reserve(static_cast<size_t>(count));
      for (int64_t i = 0; i < count; ++i) values.push_back(read_one());
      return values;
    };
    if (type == kString) {
      return fill(std::vector<std::string>(), [&] { return read_string(key, left()); });
    }
    if (type == kF32 || type == kF64) {
      return fill(std::vector<double>(), [&] { return read_float(type, key); });
    }
    return fill(std::vector<int64_t>(), [&] { return read_integer(type, key); });
  }

  void read_tensor() {
    StoredTensor tensor;
    tensor.name = read_name("a tensor name", kMaxName);
    if (!names_.insert(tensor.name).second) throw bad("tensor {} is listed twice", tensor.name);
    const uint32_t dims = read<uint32_t>(tensor.name);
    if (dims < 1 || dims > kMaxDims)
      throw bad("tensor {}: {} dims, not 1 to {}", tensor.name, dims, kMaxDims);
    for (uint32_t i = 0; i < dims; ++i) tensor.shape.push_back(read_count(tensor.name, INT64_MAX));
    std::reverse(tensor.shape.begin(), tensor.shape.end());
    const uint32_t type_id = read<uint32_t>(tensor.name);
    const TypeRow* type = find_type(type_id);
    if (type == nullptr) throw bad("tensor {}: unknown element type number {}", tensor.name, type_id);
    tensor.dtype = type->dtype;
    tensor.dtype_name = type->name;
    const std::optional<int64_t> elements = shape_elements(tensor.shape);
    if (!elements || *elements % type->block != 0 || tensor.shape.back() % type->block != 0) {
      throw bad("tensor {}: shape [{}] does not suit {} (blocks of {})", tensor.name,
                fmt::join(tensor.shape, ", "), type->name, type->block);
    }
    if (__builtin_mul_overflow(*elements / type->block, type->block_bytes, &tensor.bytes)) {
      throw bad("tensor {}: the size of shape [{}] overflows", tensor.name, fmt::join(tensor.shape, ", "));
    }
    tensor.offset = read_count(tensor.name, INT64_MAX);  // from the data section, until place_tensors
    file_.tensors.push_back(std::move(tensor));
  }

  // Turns offsets into file offsets and checks that tensors lie inside the file without overlaps.
  void place_tensors() {
    if (file_.tensors.empty()) return;
    const int64_t begin = (position_ + file_.alignment - 1) / file_.alignment * file_.alignment;
    std::vector<const StoredTensor*> order;
    for (StoredTensor& tensor : file_.tensors) {
      if (tensor.offset % file_.alignment != 0) {
        throw bad("tensor {}: offset {} is not a multiple of {}", tensor.name, tensor.offset,
                  file_.alignment);
      }
      int64_t end = 0;
      if (__builtin_add_overflow(tensor.offset, begin, &tensor.offset) ||
          __builtin_add_overflow(tensor.offset, tensor.bytes, &end) ||
          end > static_cast<int64_t>(bytes_.size())) {
        throw bad("tensor {}: {} bytes at {} end past the file's {}; the file is cut short", tensor.name,
                  tensor.bytes, tensor.offset, bytes_.size());
      }
      order.push_back(&tensor);
    }
    std::sort(order.begin(), order.end(),
              [](const StoredTensor* a, const StoredTensor* b) { return a->offset < b->offset; });
    int64_t position = begin;
    for (const StoredTensor* tensor : order) {
      if (tensor->offset < position) throw bad("tensor {}: its bytes overlap another tensor's", tensor->name);
      position = tensor->offset + tensor->bytes;
    }
  }

  std::span<const std::byte> bytes_;
  int64_t position_ = 0;
  int64_t tensors_ = 0;
  int64_t keys_ = 0;
  std::unordered_set<std::string> names_;
  GgufFile file_;
};

template <class T>
std::optional<T> get_as(const GgufFile& file, std::string_view key, const char* kind) {
  const GgufValue* value = file.find(key);
  if (value == nullptr) return std::nullopt;
  if (const T* typed = std::get_if<T>(value)) return *typed;
  throw invalid("{}: key {} is not {}", file.file_name, key, kind);
}

}  // namespace

GgufFile parse_gguf(std::span<const std::byte> bytes, std::string_view file_name) {
  return Parser(bytes, file_name).parse();
}

const GgufValue* GgufFile::find(std::string_view key) const {
  const auto it = metadata.find(key);
  return it == metadata.end() ? nullptr : &it->second;
}

const StoredTensor* GgufFile::find_tensor(std::string_view name) const {
  for (const StoredTensor& tensor : tensors) {
    if (tensor.name == name) return &tensor;
  }
  return nullptr;
}

std::optional<int64_t> GgufFile::integer(std::string_view key) const {
  return get_as<int64_t>(*this, key, "an integer");
}

std::optional<double> GgufFile::number(std::string_view key) const {
  const GgufValue* value = find(key);
  if (value != nullptr && std::holds_alternative<int64_t>(*value)) {
    return static_cast<double>(std::get<int64_t>(*value));
  }
  return get_as<double>(*this, key, "a number");
}

std::optional<bool> GgufFile::boolean(std::string_view key) const {
  return get_as<bool>(*this, key, "a truth value");
}

std::optional<std::string> GgufFile::text(std::string_view key) const {
  return get_as<std::string>(*this, key, "a string");
}

}  // namespace atom
