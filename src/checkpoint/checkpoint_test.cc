// Checkpoint: which files and tensors a folder offers, and that incomplete or damaged ones are refused.
#include "checkpoint/checkpoint.h"

#include <cstring>
#include <thread>

#include "base/clock.h"
#include "base/json.h"
#include "checkpoint/gguf_builder.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/test_folder.h"

namespace atom {
namespace {

using namespace testing;
namespace fs = std::filesystem;

// One f32 tensor [2] per name, filled with `value`.
void write_shard(const fs::path& path, const std::vector<std::string>& names, float value) {
  std::vector<float> data(2, value);
  std::vector<NamedTensor> tensors;
  for (const std::string& name : names) tensors.push_back({name, make_tensor(data.data(), DType::f32, {2})});
  write_safetensors(path, tensors);
}

std::string index_of(const std::vector<std::pair<std::string, std::string>>& map) {
  Json index = {{"metadata", {{"total_size", 16}}}, {"weight_map", Json::object()}};
  for (const auto& [tensor, file] : map) index["weight_map"][tensor] = file;
  return index.dump();
}

constexpr const char* kOne = "model-00001-of-00002.safetensors";
constexpr const char* kTwo = "model-00002-of-00002.safetensors";

// a, b in shard 1 and c in shard 2, with an index.
void write_two_shards(const TestFolder& folder) {
  write_shard(folder / kOne, {"a", "b"}, 1);
  write_shard(folder / kTwo, {"c"}, 2);
  folder.write("model.safetensors.index.json", index_of({{"a", kOne}, {"b", kOne}, {"c", kTwo}}));
}

float first_value(const Checkpoint& checkpoint, std::string_view name) {
  float value = 0;
  std::memcpy(&value, checkpoint.mapped(checkpoint.get(name)), sizeof value);
  float read = 0;
  checkpoint.read(checkpoint.get(name), 0, std::as_writable_bytes(std::span(&read, 1)));
  EXPECT_EQ(value, read);
  return value;
}

TEST(Checkpoint, OpensOneFileWithoutAnIndex) {
  const TestFolder folder;
  write_shard(folder / "model.safetensors", {"a", "b"}, 3);
  const Checkpoint checkpoint = Checkpoint::open(folder.path());
  EXPECT_FALSE(checkpoint.is_gguf());
  ASSERT_EQ(checkpoint.tensors().size(), 2u);
  EXPECT_EQ(checkpoint.find("c"), nullptr);
  EXPECT_EQ(first_value(checkpoint, "b"), 3);
  EXPECT_TRUE(checkpoint.ignored().empty());
}

TEST(Checkpoint, OpensTheShardsOfAnIndex) {
  const TestFolder folder;
  write_two_shards(folder);
  const Checkpoint checkpoint = Checkpoint::open(folder.path());
  EXPECT_EQ(checkpoint.files().size(), 2u);
  EXPECT_EQ(checkpoint.tensors().size(), 3u);
  EXPECT_EQ(first_value(checkpoint, "a"), 1);
  EXPECT_EQ(first_value(checkpoint, "c"), 2);
}

TEST(Checkpoint, MissingShardIsNamedBeforeAnythingIsRead) {
  const TestFolder folder;
  write_two_shards(folder);
  fs::remove(folder / kTwo);
  folder.write(kOne, "damaged");  // not looked at
  EXPECT_ERROR(Checkpoint::open(folder.path()), kTwo);
  EXPECT_ERROR(Checkpoint::open(folder.path()), "1 of 2 files");
}

TEST(Checkpoint, ConsolidatedFilesAreNotRead) {
  const TestFolder folder;
  write_two_shards(folder);
  write_shard(folder / "consolidated.safetensors", {"a", "b", "c"}, 9);
  EXPECT_EQ(first_value(Checkpoint::open(folder.path()), "a"), 1);
  fs::remove(folder / "model.safetensors.index.json");
  EXPECT_EQ(first_value(Checkpoint::open(folder.path()), "a"), 1);
}

TEST(Checkpoint, TensorInAnotherShardThanTheIndexSaysIsAnError) {
  const TestFolder folder;
  write_two_shards(folder);
  folder.write("model.safetensors.index.json",
               index_of({{"a", kOne}, {"b", kOne}, {"c", kOne}, {"b2", kTwo}}));
  EXPECT_ERROR(Checkpoint::open(folder.path()), "tensor");
  folder.write("model.safetensors.index.json", index_of({{"a", kTwo}, {"b", kOne}, {"c", kTwo}}));
  EXPECT_ERROR(
      Checkpoint::open(folder.path()),
      "tensor a is listed in model-00002-of-00002.safetensors but is in model-00001-of-00002.safetensors");
  folder.write("model.safetensors.index.json",
               index_of({{"a", kOne}, {"b", kOne}, {"c", kTwo}, {"d", kTwo}}));
  EXPECT_ERROR(Checkpoint::open(folder.path()),
               "tensor d is listed in model-00002-of-00002.safetensors but is not there");
}

TEST(Checkpoint, TensorsOutsideTheIndexAreIgnoredAndListed) {
  const TestFolder folder;
  write_two_shards(folder);
  write_shard(folder / kTwo, {"c", "a", "extra"}, 2);
  const Checkpoint checkpoint = Checkpoint::open(folder.path());
  EXPECT_EQ(checkpoint.find("extra"), nullptr);
  EXPECT_EQ(first_value(checkpoint, "a"), 1);
  ASSERT_EQ(checkpoint.ignored().size(), 2u);
  EXPECT_EQ(checkpoint.ignored()[0].name, "a");
  EXPECT_EQ(checkpoint.ignored()[0].reason, std::string("the index takes it from ") + kOne);
  EXPECT_EQ(checkpoint.ignored()[1].name, "extra");
  EXPECT_EQ(checkpoint.ignored()[1].reason, "not in the index");
}

TEST(Checkpoint, UnsafeNamesInTheIndexAreRefused) {
  for (const char* name : {"../../etc/x.safetensors", "/etc/x.safetensors", "sub/x.safetensors", "..", "",
                           ".safetensors", "a\\b.safetensors", "x.bin"}) {
    const TestFolder folder;
    write_two_shards(folder);
    folder.write("model.safetensors.index.json", index_of({{"a", kOne}, {"x", name}}));
    EXPECT_ERROR(Checkpoint::open(folder.path()), "unsafe file name");
  }
}

TEST(Checkpoint, DamagedIndexIsACleanError) {
  const TestFolder folder;
  write_shard(folder / "model.safetensors", {"a"}, 1);
  const std::pair<const char*, const char*> cases[] = {
      {"", "not valid JSON"},
      {"[]", "no object named weight_map"},
      {R"({"weight_map": []})", "no object named weight_map"},
      {R"({"weight_map": {"a": 1}})", "a: not a file name"},
      {R"({"weight_map": {"a": "x.safetensors", "a": "y.safetensors"}})", "missing"},
      {"version https://git-lfs.github.com/spec/v1\n", "Git LFS pointer"},
  };
  for (const auto& [text, message] : cases) {
    folder.write("model.safetensors.index.json", text);
    EXPECT_ERROR(Checkpoint::open(folder.path()), message);
  }
  folder.write("model.safetensors.index.json",
               R"({"weight_map": {"a": "model.safetensors", "a": "model.safetensors"}})");
  EXPECT_ERROR(Checkpoint::open(folder.path()), "tensor a is listed twice");
}

TEST(Checkpoint, NumberedFilesWithoutAnIndexMustBeComplete) {
  const TestFolder folder;
  write_two_shards(folder);
  fs::remove(folder / "model.safetensors.index.json");
  EXPECT_EQ(Checkpoint::open(folder.path()).tensors().size(), 3u);
  fs::remove(folder / kOne);
  EXPECT_ERROR(Checkpoint::open(folder.path()), kOne);
}

TEST(Checkpoint, TensorInTwoFilesWithoutAnIndexIsAnError) {
  const TestFolder folder;
  write_shard(folder / "x.safetensors", {"a"}, 1);
  write_shard(folder / "y.safetensors", {"a"}, 2);
  EXPECT_ERROR(Checkpoint::open(folder.path()), "tensor a is in two files");
}

TEST(Checkpoint, FoldersWithoutSafetensorsSayWhatToDo) {
  {
    const TestFolder folder;
    folder.write("pytorch_model.bin", "PK\x03\x04");
    EXPECT_ERROR(Checkpoint::open(folder.path()), "safetensors required");
    EXPECT_ERROR(Checkpoint::open(folder.path()), "pytorch_model.bin is a pickle file");
  }
  {
    const TestFolder folder;
    folder.write("params.json", "{}");
    folder.write("consolidated.safetensors", "x");
    EXPECT_ERROR(Checkpoint::open(folder.path()), "Mistral's own layout");
  }
  {
    const TestFolder folder;
    folder.write("m.gguf", "GGUF");
    EXPECT_ERROR(Checkpoint::open(folder.path()), "give its path");
    EXPECT_ERROR(Checkpoint::open(folder / "m.gguf"), "ends inside the version");
  }
  const TestFolder empty;
  EXPECT_ERROR(Checkpoint::open(empty.path()), "safetensors required");
  EXPECT_ERROR(Checkpoint::open(empty / "nowhere"), "no such folder or file");
  EXPECT_ERROR(Checkpoint::open(empty.write("model.safetensors", "x")), "neither a folder nor a .gguf file");
}

TEST(Checkpoint, OtherFormatsNamedSafetensorsAreRefused) {
  const std::pair<std::string, const char*> cases[] = {
      {"PK\x03\x04" + std::string(100, '\x14'), "zip archive"},
      {tiny_gguf().build(), "GGUF file"},
      {"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "git lfs pull"}};
  for (const auto& [content, message] : cases) {
    const TestFolder folder;
    folder.write("model.safetensors", content);
    EXPECT_ERROR(Checkpoint::open(folder.path()), message);
    EXPECT_ERROR(Checkpoint::open(folder.path()), "model.safetensors: ");
  }
}

TEST(Checkpoint, FileThatShrankAfterOpeningIsAnErrorNotZeros) {
  const TestFolder folder;
  write_shard(folder / "model.safetensors", {"a"}, 1);
  const Checkpoint checkpoint = Checkpoint::open(folder.path());
  fs::resize_file(folder / "model.safetensors", fs::file_size(folder / "model.safetensors") - 4);
  EXPECT_ERROR(checkpoint.mapped(checkpoint.get("a")), "must not change while it is in use");
  std::array<std::byte, 8> out;
  EXPECT_ERROR(checkpoint.read(checkpoint.get("a"), 0, out), "must not change while it is in use");
}

TEST(Checkpoint, MissingTensorIsNamedWithItsNeighbours) {
  const TestFolder folder;
  write_shard(folder / "model.safetensors", {"model.norm.weight"}, 1);
  EXPECT_ERROR(Checkpoint::open(folder.path()).get("model.norms.weight"),
               "tensor model.norms.weight is missing; did you mean model.norm.weight?");
}

TEST(Checkpoint, ManyThreadsReadAtOnce) {
  const TestFolder folder;
  write_two_shards(folder);
  const Checkpoint checkpoint = Checkpoint::open(folder.path());
  std::vector<std::jthread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      EXPECT_EQ(first_value(checkpoint, "a"), 1);
      EXPECT_EQ(first_value(checkpoint, "c"), 2);
    });
  }
}

// 141 sparse shards of 5.35 GB: only headers may be read.
TEST(Checkpoint, HugeSparseShardsOpenQuickly) {
  const TestFolder folder;
  constexpr int kShards = 141, kTensorsPerShard = 850;
  constexpr int64_t kTensorBytes = int64_t{755} * 1'000'000'000 / kShards / kTensorsPerShard / 2 * 2;
  std::string map;
  for (int s = 0; s < kShards; ++s) {
    const std::string file = fmt::format("model-{:05}-of-{:05}.safetensors", s + 1, kShards);
    std::string header = "{";
    for (int t = 0; t < kTensorsPerShard; ++t) {
      const std::string name = fmt::format("model.layers.{}.mlp.experts.{}.gate_proj.weight", s, t);
      header +=
          fmt::format(R"({}"{}":{{"dtype":"BF16","shape":[{}],"data_offsets":[{},{}]}})", t > 0 ? "," : "",
                      name, kTensorBytes / 2, t * kTensorBytes, (t + 1) * kTensorBytes);
      map += fmt::format(R"({}"{}":"{}")", map.empty() ? "" : ",", name, file);
    }
    header += "}";
    folder.write(file, raw<uint64_t>(header.size()) + header);
    std::error_code full;
    fs::resize_file(folder / file, 8 + header.size() + kTensorsPerShard * kTensorBytes, full);
    if (full) GTEST_SKIP() << "this file system has no large sparse files";
  }
  folder.write("model.safetensors.index.json", R"({"weight_map":{)" + map + "}}");
  const int64_t start = now_us();
  const Checkpoint checkpoint = Checkpoint::open(folder.path());
  const double seconds = seconds_since(start);
  RecordProperty("seconds", std::to_string(seconds));
  EXPECT_EQ(checkpoint.tensors().size(), size_t{kShards} * kTensorsPerShard);
  EXPECT_LT(seconds, 5);
}

TEST(Checkpoint, ComputedTensorsStandInForStoredOnes) {
  const TestFolder folder;
  write_two_shards(folder);
  Checkpoint checkpoint = Checkpoint::open(folder.path());
  const StoredTensor b = checkpoint.get("b");
  StoredTensor half = b;
  half.name = "b.half";
  half.bytes = 4;
  half.shape = {1};
  checkpoint.replace({{"b", {half, {.name = "b.none", .dtype = DType::f32, .shape = {0}}}}});
  EXPECT_EQ(checkpoint.find("b"), nullptr);
  EXPECT_EQ(checkpoint.tensors().size(), 4u);
  EXPECT_EQ(first_value(checkpoint, "b.half"), 0);
  EXPECT_TRUE(checkpoint.is_computed(checkpoint.get("b.none")));
  EXPECT_FALSE(checkpoint.is_computed(checkpoint.get("c")));
  const float value = 7;
  std::memcpy(checkpoint.computed(checkpoint.get("b.half")), &value, sizeof value);
  EXPECT_EQ(first_value(checkpoint, "b.half"), 7);
  EXPECT_EQ(first_value(checkpoint, "a"), 1);
  EXPECT_EQ(first_value(checkpoint, "c"), 2);
  float stored = 0;  // what was replaced is still there for whoever knows where
  checkpoint.read(b, 0, std::as_writable_bytes(std::span(&stored, 1)));
  EXPECT_EQ(stored, 1);
}

TEST(Checkpoint, OpensGgufUnderHuggingFaceNames) {
  const TestFolder folder;
  GgufBuilder b = tiny_gguf();
  b.tensor("rope_freqs.weight", {8}, 0, std::string(32, '\0'))
      .tensor("odd.weight", {8}, 0, std::string(32, '\0'));
  const Checkpoint checkpoint = Checkpoint::open(folder.write("m.gguf", b.build()));
  EXPECT_TRUE(checkpoint.is_gguf());
  const StoredTensor& q = checkpoint.get("model.layers.0.self_attn.q_proj.weight");
  EXPECT_EQ(q.dtype, DType::q8_0);
  EXPECT_EQ(q.shape, (std::vector<int64_t>{32, 32}));
  EXPECT_EQ(checkpoint.find("rope_freqs.weight"), nullptr);
  ASSERT_EQ(checkpoint.ignored().size(), 1u);
  // A name outside the table stays, so that a strict loader complains about it.
  EXPECT_NE(checkpoint.find("odd.weight"), nullptr);
  std::array<std::byte, 4> out;
  checkpoint.read(q, q.bytes - 4, out);
  EXPECT_NE(checkpoint.mapped(q), nullptr);
}

}  // namespace
}  // namespace atom
