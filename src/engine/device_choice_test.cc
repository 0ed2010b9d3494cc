// What a GPU refuses is known from the declaration and the headers, so no GPU is needed here.
#include "engine/device_choice.h"

#include <gtest/gtest.h>

#include "engine/test_requests.h"
#include "ops/moe.h"

namespace atom {
namespace {

constexpr Device kGpu{Device::cuda, 0};

ModelOptions in(const std::string& folder, const std::string& device) {
  ModelOptions o;
  o.model = std::string(ATOM_TEST_DATA) + "/" + folder;
  o.device = device;
  return o;
}

struct Opened {
  explicit Opened(const ModelOptions& o)
      : files(open_model_files(o.model)), checkpoint(Checkpoint::open(o.model)) {}
  ModelFiles files;
  Checkpoint checkpoint;
};

void expect_refused(const ModelOptions& named, const std::string& why) {
  const Opened model(named);
  ModelOptions automatic = named;
  automatic.device = "auto";
  EXPECT_EQ(choose_device(automatic, model.files, &model.checkpoint, kGpu), Device{}) << named.model;
  EXPECT_EQ(choose_device(named, model.files, &model.checkpoint, {}), Device{}) << named.model;
  try {
    choose_device(named, model.files, &model.checkpoint, kGpu);
    FAIL() << named.model;
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), Errc::invalid);
    EXPECT_TRUE(e.message().starts_with("--device cuda: ")) << e.message();
    EXPECT_TRUE(e.message().ends_with("; use --device cpu")) << e.message();
    EXPECT_NE(e.message().find(why), std::string::npos) << e.message();
  }
}

TEST(DeviceChoice, ADensePlainModelGoesToTheGpu) {
  for (const char* name : {"golden/llama_plain", "golden/qwen3_plain"}) {
    for (const char* device : {"auto", "cuda"}) {
      const ModelOptions o = in(name, device);
      const Opened model(o);
      EXPECT_EQ(choose_device(o, model.files, &model.checkpoint, kGpu), kGpu) << name;
      EXPECT_EQ(choose_device(o, model.files, nullptr, kGpu), kGpu) << name;
    }
  }
}

TEST(DeviceChoice, ALayerWithoutGpuKernelsIsNamed) {
  if (!ops::gpu_impls<ops::MoeExperts>().empty()) GTEST_SKIP() << "this build has kernels for every layer";
  expect_refused(in("golden/mixtral_plain", "cuda"), "model.layers.0.block_sparse_moe: a mixture of experts");
  expect_refused(in("golden/minimax_m2", "cuda"), "a norm over all heads");
  expect_refused(in("golden/deepseek_v3_mtp", "cuda"), "model.layers.0.self_attn: latent attention");
  expect_refused(in("golden/qwen3_5_dense", "cuda"), "has no GPU implementation yet");
}

TEST(DeviceChoice, EveryFamilyGoesToTheGpuOfABuildThatHasItsKernels) {
  if (ops::gpu_impls<ops::MoeExperts>().empty()) GTEST_SKIP() << "this build has no GPU backend";
  for (const char* name :
       {"golden/mixtral_plain", "golden/minimax_m2", "golden/gpt_oss_plain", "golden/mxfp4_gpt_oss",
        "golden/fp8_qwen3_moe", "golden/deepseek_v3_mtp", "golden/fp8_glm_dsa", "golden/kimi_k25",
        "golden/qwen3_5_dense", "golden/qwen3_next_r2"}) {
    const ModelOptions o = in(name, "cuda");
    const Opened model(o);
    EXPECT_EQ(choose_device(o, model.files, &model.checkpoint, kGpu), kGpu) << name;
  }
}

TEST(DeviceChoice, StorageFormatsGoToTheGpu) {
  for (const char* name : {"golden/fp8_qwen3", "golden/fp8_qwen3_per_row", "data/gguf/llama_q8_0.gguf"}) {
    const ModelOptions o = in(name, "cuda");
    const Opened model(o);
    EXPECT_EQ(choose_device(o, model.files, &model.checkpoint, kGpu), kGpu) << name;
    EXPECT_EQ(gpu_problem(model.files, nullptr, kGpu), "") << name;
  }
}

}  // namespace
}  // namespace atom
