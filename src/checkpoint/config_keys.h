// Typed reading of a model's config: required and optional keys, spellings, ranges. Errors name file and key.
#pragma once
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "tensor/dtype.h"

namespace atom {

inline constexpr int64_t kMaxConfigInteger = int64_t{1} << 40;

// A view of one JSON object; the Json must outlive it. A key with value null counts as absent. All getters
// throw Error (invalid) for a wrong type or a value outside [min, max].
class ConfigReader {
 public:
  explicit ConfigReader(const Json& object, std::string where = "config.json");

  const Json& json() const { return *object_; }
  const std::string& where() const { return where_; }
  const Json* find(std::string_view key) const;  // null when absent or null
  bool has(std::string_view key) const { return find(key) != nullptr; }

  int64_t integer(std::string_view key, int64_t min = 0, int64_t max = kMaxConfigInteger) const;
  int64_t integer_or(std::string_view key, int64_t fallback, int64_t min = 0,
                     int64_t max = kMaxConfigInteger) const;
  std::optional<int64_t> integer_if(std::string_view key, int64_t min = 0,
                                    int64_t max = kMaxConfigInteger) const;

  static constexpr double kAny = std::numeric_limits<double>::max();
  double number(std::string_view key, double min = -kAny, double max = kAny) const;
  double number_or(std::string_view key, double fallback, double min = -kAny, double max = kAny) const;
  std::optional<double> number_if(std::string_view key, double min = -kAny, double max = kAny) const;

  bool boolean(std::string_view key) const;
  bool boolean_or(std::string_view key, bool fallback) const;
  std::string text(std::string_view key) const;
  std::string text_or(std::string_view key, std::string_view fallback) const;

  // Lists; empty when absent. `integers` takes a single number as a list of one.
  std::vector<int64_t> integers(std::string_view key, int64_t min = 0, int64_t max = kMaxConfigInteger) const;
  std::vector<std::string> texts(std::string_view key) const;

  // A nested object ("config.json: quantization_config"); empty when absent.
  std::optional<ConfigReader> section(std::string_view key) const;

  // Of several spellings of one setting: the one that is present, the first when none is. Two that are
  // present and differ are an error naming both.
  std::string_view spelling(std::initializer_list<std::string_view> keys) const;

  // The error "where: key: message" for checks a caller makes itself.
  Error error(std::string_view key, std::string_view message) const;

 private:
  const Json* object_;
  std::string where_;
};

// num_hidden_layers.
int64_t read_layers(const ConfigReader& config);

// rms_norm_eps.
float read_norm_eps(const ConfigReader& config, double fallback);

// sliding_window, in tokens; `fallback` when it is absent, 0 (none) when it is null.
inline constexpr int64_t kMaxWindow = std::numeric_limits<int32_t>::max();
int64_t read_window(const ConfigReader& config, int64_t fallback);

// head_dim, or hidden_size / num_attention_heads when it is absent or null; indivisible is an error.
int64_t read_head_dim(const ConfigReader& config);

// dtype or torch_dtype ("bfloat16", "torch.bfloat16"...); empty when neither says anything.
std::optional<DType> read_dtype(const ConfigReader& config);

}  // namespace atom
