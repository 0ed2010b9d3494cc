// A cache of E4M3 in the engine: how far logits move, scales of the checkpoint, what is refused, and that the
// GPU computes what the CPU does.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>

#include "base/error.h"
#include "checkpoint/safetensors.h"
#include "engine/test_requests.h"
#include "tensor/gpu.h"

namespace atom {
namespace {

// Logits of a prompt of 40 tokens, rows one after the other.
std::vector<float> logits_of(const ModelOptions& o) {
  LoadedModel model(o);
  const auto vocab = static_cast<size_t>(model.workers().vocab());
  Request request = request_of(prompt_of(40, 3), 1);
  request.prompt_logprobs = 0;
  std::vector<float> logits(40 * vocab);
  request.logits_sink = [&](int64_t row, std::span<const float> values) {
    std::copy(values.begin(), values.end(), logits.begin() + row * static_cast<int64_t>(vocab));
  };
  model.engine().submit(std::move(request), [](OutputDelta&&) {}).take();
  while (model.engine().step()) {
  }
  return logits;
}

// Root mean square of the difference over that of `want`; NaN if there is one.
double distance(const std::vector<float>& got, const std::vector<float>& want) {
  EXPECT_EQ(got.size(), want.size());
  double difference = 0, size = 0;
  for (size_t i = 0; i < std::min(got.size(), want.size()); ++i) {
    difference += (static_cast<double>(got[i]) - want[i]) * (static_cast<double>(got[i]) - want[i]);
    size += static_cast<double>(want[i]) * want[i];
  }
  return std::sqrt(difference / size);
}

ModelOptions with_cache(const std::string& name, const std::string& dtype,
                        const std::string& device = "cpu") {
  ModelOptions o = golden_model(name, 80);
  o.kv_cache_dtype = dtype;
  o.device = device;
  o.max_num_batched_tokens = 16;  // chunks, so that later rows read what earlier steps stored
  return o;
}

// A copy of a golden checkpoint with scales of the cache beside its weights.
class WithScales {
 public:
  WithScales(const std::string& name, const std::vector<std::pair<std::string, std::vector<float>>>& scales)
      : folder_(std::filesystem::temp_directory_path() /
                ("atom_fp8_cache_" + std::to_string(::getpid()) + name)) {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
    const std::filesystem::path from = std::string(ATOM_TEST_DATA) + "/golden/" + name;
    std::filesystem::copy_file(from / "config.json", folder_ / "config.json");
    std::filesystem::copy_file(from / "model.safetensors", folder_ / "a.safetensors");
    std::vector<NamedTensor> tensors;
    for (const auto& [tensor, values] : scales) {
      tensors.push_back({tensor, make_tensor(const_cast<float*>(values.data()), DType::f32,
                                             {static_cast<int64_t>(values.size())})});
    }
    write_safetensors((folder_ / "b.safetensors").string(), tensors);
  }
  ~WithScales() { std::filesystem::remove_all(folder_); }
  ModelOptions options(const std::string& dtype) const {
    ModelOptions o = with_cache("", dtype);
    o.model = folder_.string();
    return o;
  }

 private:
  std::filesystem::path folder_;
};

TEST(Fp8Cache, MovesLogitsByLittleMoreThanTheTypesRounding) {
  for (const char* name : {"llama_plain", "qwen3_plain", "qwen3_5_dense", "mistral_window"}) {
    const double error = distance(logits_of(with_cache(name, "fp8")), logits_of(with_cache(name, "float32")));
    RecordProperty(name, std::to_string(error));
    EXPECT_GT(error, 1e-4) << name;  // else it was not used
    EXPECT_LT(error, 0.15) << name;
  }
}

TEST(Fp8Cache, TakesScalesOfTheCheckpoint) {
  const std::vector<float> exact = logits_of(with_cache("llama_plain", "float32"));
  const std::vector<float> unscaled = logits_of(with_cache("llama_plain", "fp8"));
  // Powers of two change nothing but where subnormals begin.
  const WithScales fine("llama_plain", {{"model.layers.0.self_attn.k_scale", {0.015625f}},
                                        {"model.layers.0.self_attn.v_scale", {0.015625f}},
                                        {"model.layers.1.self_attn.k_proj.output_scale", {0.015625f}},
                                        {"model.layers.1.self_attn.v_proj.v_scale", {0.015625f}}});
  const std::vector<float> scaled = logits_of(fine.options("fp8"));
  EXPECT_LT(distance(scaled, exact), 1.1 * distance(unscaled, exact));
  EXPECT_LT(distance(scaled, unscaled), 0.5 * distance(unscaled, exact));
  // Without an FP8 cache they are not used.
  EXPECT_EQ(logits_of(fine.options("float32")), exact);
  // Far too large a scale leaves nothing of the values, far too small a one cuts them off.
  for (const float v : {1e4f, 1e-4f}) {
    const WithScales bad("llama_plain", {{"model.layers.0.self_attn.v_scale", {v}},
                                         {"model.layers.1.self_attn.v_scale", {v}}});
    EXPECT_GT(distance(logits_of(bad.options("fp8")), exact), 2 * distance(unscaled, exact)) << v;
  }
}

TEST(Fp8Cache, ScalesThatAreNotOnePositiveNumberAreRefusedByName) {
  for (const std::vector<float>& values : {std::vector<float>{1, 1}, {0}, {-1}, {std::nanf("")}}) {
    const WithScales bad("llama_plain", {{"model.layers.1.self_attn.k_scale", values}});
    try {
      LoadedModel model(bad.options("fp8"));
      ADD_FAILURE() << values.front();
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), Errc::invalid);
      EXPECT_NE(e.message().find("model.layers.1.self_attn.k_scale"), std::string::npos) << e.message();
      EXPECT_NE(e.message().find("--kv-cache-dtype auto"), std::string::npos) << e.message();
    }
  }
}

TEST(Fp8Cache, LatentsAloneAreRefusedByName) {
  for (const char* name : {"deepseek_v3_groups", "kimi_k25"}) {
    try {
      LoadedModel model(with_cache(name, "fp8"));
      ADD_FAILURE() << name;
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), Errc::invalid);
      EXPECT_TRUE(e.message().starts_with("--kv-cache-dtype fp8: ")) << e.message();
      EXPECT_NE(e.message().find("model.layers.0.self_attn"), std::string::npos) << e.message();
    }
  }
}

// A byte for each of 16 lanes and four for the scale; beside them latents of 16 + 8 in the model's type.
TEST(Fp8Cache, IndexKeysTakeAByteALaneAndAScale) {
  const auto bytes = [](const char* dtype, const char* cache) {
    ModelOptions o = with_cache("glm_moe_dsa_shared", cache);
    o.dtype = dtype;
    const LoadedModel model(o);
    return model.cache_plan().groups.front().bytes_per_token;
  };
  EXPECT_EQ(bytes("float32", "fp8"), 6 * 4 * (16 + 8) + 3 * (16 + 4));
  EXPECT_EQ(bytes("bfloat16", "fp8"), 6 * 2 * (16 + 8) + 3 * (16 + 4));
  EXPECT_EQ(bytes("bfloat16", "auto"), 6 * 2 * (16 + 8) + 3 * 2 * 16);
  LoadedModel model(with_cache("glm_moe_dsa_shared", "fp8"));
  EXPECT_EQ(model.workers().cache_bytes(), model.cache_plan().used_bytes);
  EXPECT_EQ(model.workers().cache_types_text(), "f8e4m3, latents in f32");
}

// 5 positions of up to 40 are chosen by random weights: far fewer, and far less clearly, than in trained
// models.
TEST(Fp8Cache, IndexKeysMoveLogitsAsFarAsTheyChangeTheChoice) {
  for (const char* name :
       {"glm_moe_dsa", "glm_moe_dsa_shared", "glm_moe_dsa_mtp", "deepseek_v32", "deepseek_v32_mtp"}) {
    const std::vector<float> exact = logits_of(with_cache(name, "float32")),
                             rounded = logits_of(with_cache(name, "fp8"));
    const double error = distance(rounded, exact);
    RecordProperty(name, std::to_string(error));
    EXPECT_GT(error, 0) << name;  // else it was not used
    EXPECT_LT(error, 1) << name;
    // Rows that choose nothing, for they see no more than they may choose, do not know of it.
    const size_t dense = 5 * rounded.size() / 40;
    EXPECT_TRUE(std::equal(rounded.begin(), rounded.begin() + static_cast<int64_t>(dense), exact.begin()))
        << name;
  }
}

TEST(Fp8Cache, HalvesWhatACacheTakes) {
  LoadedModel bf16(with_cache("llama_plain", "bfloat16")), fp8(with_cache("llama_plain", "fp8"));
  EXPECT_EQ(2 * fp8.cache_plan().used_bytes, bf16.cache_plan().used_bytes);
  EXPECT_EQ(2 * fp8.workers().cache_bytes(), bf16.workers().cache_bytes());
}

TEST(Fp8Cache, TheGpuComputesWhatTheCpuDoes) {
  if (gpu::device_count() == 0) GTEST_SKIP() << "no GPU";
  for (const char* name : {"llama_plain", "llama_head_dim", "qwen3_plain", "qwen3_5_dense", "mistral_window",
                           "glm_moe_dsa", "glm_moe_dsa_shared", "deepseek_v32"}) {
    const std::vector<float> cpu = logits_of(with_cache(name, "fp8"));
    const double error = distance(logits_of(with_cache(name, "fp8", "cuda")), cpu);
    const double moved = distance(cpu, logits_of(with_cache(name, "float32")));
    RecordProperty(name, std::to_string(error));
    // A value at the edge of two roundings may fall to either side.
    EXPECT_LT(error, std::max(1e-3, 0.3 * moved)) << name;
  }
}

}  // namespace
}  // namespace atom
