// Test helper: builds GGUF files in memory, byte by byte.
#pragma once
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

namespace atom::testing {

enum GgufTypeId : uint32_t { kGgufU32 = 4, kGgufF32 = 6, kGgufBool = 7, kGgufString = 8, kGgufArray = 9 };

template <class T>
std::string raw(T value) {
  std::string bytes(sizeof value, '\0');
  std::memcpy(bytes.data(), &value, sizeof value);
  return bytes;
}
inline std::string gguf_string(std::string_view text) {
  return raw<uint64_t>(text.size()) + std::string(text);
}

class GgufBuilder {
 public:
  GgufBuilder& entry(std::string_view key, uint32_t type, std::string_view value_bytes) {
    keys_ += gguf_string(key) + raw(type) + std::string(value_bytes);
    ++key_count_;
    return *this;
  }
  GgufBuilder& u32(std::string_view key, uint32_t value) { return entry(key, kGgufU32, raw(value)); }
  GgufBuilder& f32(std::string_view key, float value) { return entry(key, kGgufF32, raw(value)); }
  GgufBuilder& boolean(std::string_view key, bool value) {
    return entry(key, kGgufBool, raw(static_cast<uint8_t>(value)));
  }
  GgufBuilder& text(std::string_view key, std::string_view value) {
    return entry(key, kGgufString, gguf_string(value));
  }
  GgufBuilder& texts(std::string_view key, const std::vector<std::string>& values) {
    std::string bytes = raw<uint32_t>(kGgufString) + raw<uint64_t>(values.size());
    for (const std::string& value : values) bytes += gguf_string(value);
    return entry(key, kGgufArray, bytes);
  }
  template <class T>
  GgufBuilder& list(std::string_view key, uint32_t type, const std::vector<T>& values) {
    std::string bytes = raw(type) + raw<uint64_t>(values.size());
    for (const T value : values) bytes += raw(value);
    return entry(key, kGgufArray, bytes);
  }

  // dims innermost first, as the format has them. `data` is padded to the alignment.
  GgufBuilder& tensor(std::string_view name, const std::vector<uint64_t>& dims, uint32_t type,
                      std::string_view data) {
    return tensor_at(name, dims, type, data_.size(), data);
  }
  GgufBuilder& tensor_at(std::string_view name, const std::vector<uint64_t>& dims, uint32_t type,
                         uint64_t offset, std::string_view data = {}) {
    tensors_ += gguf_string(name) + raw(static_cast<uint32_t>(dims.size()));
    for (const uint64_t dim : dims) tensors_ += raw(dim);
    tensors_ += raw(type) + raw(offset);
    data_ += data;
    data_.resize((data_.size() + 31) / 32 * 32, '\0');
    ++tensor_count_;
    return *this;
  }

  std::string head(uint32_t version = 3) const {
    return "GGUF" + raw(version) + raw(tensor_count_) + raw(key_count_) + keys_ + tensors_;
  }
  std::string build(uint32_t version = 3) const {
    std::string file = head(version);
    file.resize((file.size() + 31) / 32 * 32, '\0');
    return file + data_;
  }

 private:
  std::string keys_, tensors_, data_;
  uint64_t key_count_ = 0, tensor_count_ = 0;
};

// A complete model of one layer: hidden 32, 2 heads of 16 with 1 for keys and values, ffn 64, 5 tokens.
inline GgufBuilder tiny_gguf(const std::string& arch = "llama") {
  GgufBuilder b;
  b.text("general.architecture", arch).u32(arch + ".block_count", 1).u32(arch + ".context_length", 128);
  b.u32(arch + ".embedding_length", 32).u32(arch + ".feed_forward_length", 64);
  b.u32(arch + ".attention.head_count", 2).u32(arch + ".attention.head_count_kv", 1);
  b.f32(arch + ".attention.layer_norm_rms_epsilon", 1e-5f).f32(arch + ".rope.freq_base", 500000.0f);
  b.text("tokenizer.ggml.model", "gpt2").text("tokenizer.ggml.pre", "llama-bpe");
  b.texts("tokenizer.ggml.tokens", {"<s>", "</s>", "<eot>", "a", "b"});
  b.list<int32_t>("tokenizer.ggml.token_type", 5, {3, 3, 3, 1, 1});
  b.texts("tokenizer.ggml.merges", {"a b"});
  b.u32("tokenizer.ggml.bos_token_id", 0).u32("tokenizer.ggml.eos_token_id", 1);
  b.u32("tokenizer.ggml.eot_token_id", 2).boolean("tokenizer.ggml.add_bos_token", true);
  b.text("tokenizer.chat_template", "{{ messages }}");
  const auto f32 = [](uint64_t n) { return std::string(n * 4, '\0'); };
  b.tensor("token_embd.weight", {32, 5}, 0, f32(32 * 5));
  b.tensor("output_norm.weight", {32}, 0, f32(32));
  b.tensor("blk.0.attn_norm.weight", {32}, 0, f32(32));
  b.tensor("blk.0.attn_q.weight", {32, 32}, 8, std::string(32 * 34, '\0'));
  b.tensor("blk.0.attn_k.weight", {32, 16}, 0, f32(32 * 16));
  return b;
}

}  // namespace atom::testing
