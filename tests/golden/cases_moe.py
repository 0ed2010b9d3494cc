"""Golden checkpoints of the families with routed experts and grouped-query attention."""

import json
import shutil
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file, save_file

PLAIN_ROPE = {"rope_type": "default", "rope_theta": 10000.0}
COMMON = dict(vocab_size=96, hidden_size=32, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
              max_position_embeddings=128, tie_word_embeddings=False, bos_token_id=1, eos_token_id=2,
              rope_parameters=dict(PLAIN_ROPE))


def qwen3_moe(**overrides):
    values = COMMON | dict(architectures=["Qwen3MoeForCausalLM"], num_hidden_layers=2, num_experts=8,
                           num_experts_per_tok=3, moe_intermediate_size=24, intermediate_size=48,
                           norm_topk_prob=True)
    return transformers.Qwen3MoeConfig(**(values | overrides))


def mixtral(**overrides):
    values = COMMON | dict(architectures=["MixtralForCausalLM"], num_hidden_layers=2, num_local_experts=4,
                           num_experts_per_tok=2, intermediate_size=40)
    return transformers.MixtralConfig(**(values | overrides))


def glm4_moe(**overrides):
    values = COMMON | dict(architectures=["Glm4MoeForCausalLM"], num_hidden_layers=3, n_routed_experts=8,
                           num_experts_per_tok=3, moe_intermediate_size=24, intermediate_size=48, n_shared_experts=1,
                           n_group=4, topk_group=2, routed_scaling_factor=2.5, first_k_dense_replace=1,
                           use_qk_norm=True, attention_bias=True, num_nextn_predict_layers=1,
                           rope_parameters=PLAIN_ROPE | {"partial_rotary_factor": 0.5})
    return transformers.Glm4MoeConfig(**(values | overrides))


def minimax_m2(**overrides):
    values = COMMON | dict(architectures=["MiniMaxM2ForCausalLM"], num_hidden_layers=3, num_local_experts=8,
                           num_experts_per_tok=3, intermediate_size=24, num_attention_heads=8, head_dim=12,
                           rope_parameters=PLAIN_ROPE | {"partial_rotary_factor": 0.5})
    return transformers.MiniMaxM2Config(**(values | overrides))


def gpt_oss(**overrides):
    rope = dict(rope_type="yarn", rope_theta=150000.0, factor=4.0, beta_fast=8.0, beta_slow=0.7, truncate=False,
                original_max_position_embeddings=32)
    values = COMMON | dict(architectures=["GptOssForCausalLM"], num_hidden_layers=3, num_local_experts=4,
                           num_experts_per_tok=2, intermediate_size=32, num_attention_heads=6, sliding_window=16,
                           rope_parameters=rope)
    return transformers.GptOssConfig(**(values | overrides))


def other_layout(folder: Path, name: str) -> None:
    """A copy of a checkpoint whose experts are stacked in one tensor per layer, as transformers holds them."""
    copy = folder.parent / name
    shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("model*"))
    tensors = {}
    for file in sorted(folder.glob("model*.safetensors")):
        tensors |= load_file(file)
    layers = {name.split(".experts.")[0] for name in tensors if name.endswith(".experts.0.gate_proj.weight")}
    for layer in layers:
        def take(kind: str) -> list[torch.Tensor]:
            found = []
            while (key := f"{layer}.experts.{len(found)}.{kind}_proj.weight") in tensors:
                found.append(tensors.pop(key))
            return found
        gate_up = [torch.cat(pair) for pair in zip(take("gate"), take("up"), strict=True)]
        tensors[f"{layer}.experts.gate_up_proj"] = torch.stack(gate_up)
        tensors[f"{layer}.experts.down_proj"] = torch.stack(take("down"))
    assert layers, "the checkpoint has no separate experts"
    save_file(tensors, copy / "model.safetensors", {"format": "pt"})


def add_prediction_layer(folder: Path, layer: int) -> None:
    """Tensors of a layer that only predicts further tokens: a reader has to leave them alone."""
    path = folder / "model.safetensors"
    tensors = load_file(path)
    tensors[f"model.layers.{layer}.eh_proj.weight"] = torch.ones(4, 8)
    tensors[f"model.layers.{layer}.mlp.experts.0.up_proj.weight"] = torch.ones(4, 8)
    save_file(tensors, path, {"format": "pt"})


def make(root: Path, folder, old_spelling) -> None:
    (folder(root, "qwen3_moe_plain", qwen3_moe(), seed=40)
     .respell("", "v4", old_spelling())
     .add("raw", qwen3_moe(norm_topk_prob=False), differs_from=""))
    mixed = qwen3_moe(num_hidden_layers=4, decoder_sparse_step=2, mlp_only_layers=[1], num_experts=5,
                      num_attention_heads=6, attention_bias=True)
    folder(root, "qwen3_moe_mixed", mixed, seed=41, dtype=torch.bfloat16, shard_size="50KB")
    other_layout(root / "qwen3_moe_mixed", "qwen3_moe_fused")
    (folder(root, "mixtral_plain", mixtral(), seed=42, tokens=60, dtype=torch.bfloat16)
     .respell("", "v4", old_spelling())
     .add("window", mixtral(sliding_window=16), differs_from="")
     .add("top3", mixtral(num_experts_per_tok=3), differs_from=""))
    folder(root, "glm4_moe_plain", glm4_moe(), seed=43).respell("", "v4", old_spelling())
    add_prediction_layer(root / "glm4_moe_plain", 3)
    other_layout(root / "glm4_moe_plain", "glm4_moe_fused")
    (folder(root, "glm4_moe_one_group", glm4_moe(n_group=1, topk_group=1, n_routed_experts=6, n_shared_experts=2,
                                                 use_qk_norm=False, first_k_dense_replace=0, num_hidden_layers=2,
                                                 attention_bias=False), seed=44, dtype=torch.bfloat16))
    # As published: rotary_dim in place of a factor, which transformers of today does not read.
    golden = folder(root, "minimax_m2", minimax_m2(), seed=47, tokens=60, dtype=torch.bfloat16)
    data = json.loads((golden.path / "config.json").read_text())
    data["rope_theta"] = data.pop("rope_parameters")["rope_theta"]
    golden.write_config("config.published.json", data | dict(
        rotary_dim=6, use_qk_norm=True, qk_norm_type="per_layer", use_routing_bias=True, scoring_func="sigmoid",
        shared_intermediate_size=0, attn_type_list=[1, 1, 1]))
    (folder(root, "gpt_oss_plain", gpt_oss(), seed=45, tokens=60, dtype=torch.bfloat16)
     .respell("", "v4", old_spelling("rope_type"))
     .respell("", "layer_types_absent", lambda data: data.pop("layer_types")))
    folder(root, "gpt_oss_one_kv", gpt_oss(num_key_value_heads=1, num_attention_heads=4, num_local_experts=5,
                                           num_experts_per_tok=3, num_hidden_layers=2, intermediate_size=24),
           seed=46, tokens=60)
