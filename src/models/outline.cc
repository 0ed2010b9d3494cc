#include "models/outline.h"

namespace atom {

#define ATOM_OUTLINES(X)                              \
  X("DeepseekV4ForCausalLM", outline_deepseek_v4)     \
  X("Llama4ForCausalLM", outline_llama4)              \
  X("Llama4ForConditionalGeneration", outline_llama4) \
  X("MiniMaxM3ForCausalLM", outline_minimax_m3)

#define X(architecture, declare) Outline declare(const Scope&, const ConfigReader&);
ATOM_OUTLINES(X)
#undef X

std::optional<Outline> declare_outline(Scope s, const ConfigReader& config) {
  const std::vector<std::string> names = config.texts("architectures");
  if (names.empty()) return std::nullopt;
#define X(architecture, declare) \
  if (names.front() == architecture) return declare(s, config);
  ATOM_OUTLINES(X)
#undef X
  return std::nullopt;
}

namespace outline {

int64_t index_key_bytes(int64_t lanes) { return lanes + 4 * ((lanes + 127) / 128); }

Matrix weight(const Scope& s, std::string_view name, int64_t rows, int64_t cols) {
  const Scope at = s / name;
  return at.matrix("weight", {Piece{{{at.join("weight")}}, rows, cols, {}}});
}

void attention(const Scope& s, int64_t hidden, int64_t heads, int64_t kv_heads, int64_t head_dim) {
  weight(s, "q_proj", heads * head_dim, hidden);
  weight(s, "k_proj", kv_heads * head_dim, hidden);
  weight(s, "v_proj", kv_heads * head_dim, hidden);
  weight(s, "o_proj", hidden, heads * head_dim);
}

void block_norms(const Scope& s, int64_t hidden) {
  norm(s, "input_layernorm", hidden);
  norm(s, "post_attention_layernorm", hidden);
}

void norm(const Scope& s, std::string_view name, int64_t size) { (s / name).vector("weight", size); }

void gated_mlp(const Scope& s, int64_t hidden, int64_t inter) {
  weight(s, "gate_proj", inter, hidden);
  weight(s, "up_proj", inter, hidden);
  weight(s, "down_proj", hidden, inter);
}

void experts(const Scope& s, int64_t hidden, int64_t inter, int64_t count, int64_t chosen) {
  for (int64_t e = 0; e < count; ++e) {
    const Scope expert = s / "experts" / e;
    weight(expert, "gate_proj", inter, hidden).mark_routed(chosen, count);
    weight(expert, "up_proj", inter, hidden).mark_routed(chosen, count);
    weight(expert, "down_proj", hidden, inter).mark_routed(chosen, count);
  }
}

void frame(const Scope& s, const ConfigReader& c) {
  ModelTables& tables = s.tables();
  tables.hidden = c.integer("hidden_size", 1);
  tables.vocab = c.integer("vocab_size", 1);
  weight(s / "model", "embed_tokens", tables.vocab, tables.hidden);
  norm(s / "model", "norm", tables.hidden);
  if (!c.boolean_or("tie_word_embeddings", false)) weight(s, "lm_head", tables.vocab, tables.hidden);
}

}  // namespace outline
}  // namespace atom
