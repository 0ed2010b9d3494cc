"""Golden cases of the hybrid families: Qwen3.5 dense and MoE, Qwen3-Next. See make_golden.py.

transformers computes the delta rule with its torch fallback, in chunks of 64 tokens: the prompts are longer than one.
"""

import json
import math
from pathlib import Path

import numpy as np
import torch
import transformers

from make_golden import Folder
from safetensors.torch import load_file, save_file

LAYERS = ["linear_attention", "linear_attention", "full_attention", "linear_attention"]


def vary(rng: np.random.Generator, name: str, shape: tuple[int, ...], tied: bool) -> np.ndarray:
    """Random values such that the state neither dies nor is kept for ever, and all gates are at work."""
    noise = rng.standard_normal(shape)
    if name.endswith("A_log"):
        return np.log(rng.uniform(0.05, 4.0, shape))
    if name.endswith("dt_bias"):
        return -1.5 + noise
    if name.endswith("bias"):
        return 0.5 * noise
    if name.endswith("linear_attn.norm.weight"):
        return 1.0 + 0.3 * noise
    if "norm" in name:  # the (1 + w) kind
        return 0.3 * noise + (0.3 if "q_norm" in name or "k_norm" in name else 0.0)
    if "embed_tokens" in name:
        return (0.25 if tied else 1.0) * noise
    if name.endswith("conv1d.weight"):
        return 0.6 * noise
    gain = 1.4 if "q_proj" in name or "k_proj" in name else 1.2
    return gain / math.sqrt(shape[-1]) * noise


HYBRID = dict(vocab_size=96, hidden_size=32, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
              head_dim=16, linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=8,
              linear_value_head_dim=8, linear_conv_kernel_dim=4, max_position_embeddings=256, rms_norm_eps=1e-6,
              layer_types=LAYERS, tie_word_embeddings=False, bos_token_id=1, eos_token_id=2,
              rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25})
EXPERTS = dict(num_experts=6, num_experts_per_tok=2, moe_intermediate_size=16, shared_expert_intermediate_size=24)


def qwen3_5(**overrides):
    values = HYBRID | dict(architectures=["Qwen3_5ForCausalLM"], intermediate_size=48)
    return transformers.Qwen3_5TextConfig(**(values | overrides))


def qwen3_5_moe(**overrides):
    values = HYBRID | EXPERTS | dict(architectures=["Qwen3_5MoeForCausalLM"])
    return transformers.Qwen3_5MoeTextConfig(**(values | overrides))


def qwen3_next(**overrides):
    values = HYBRID | EXPERTS | dict(architectures=["Qwen3NextForCausalLM"], intermediate_size=40)
    return transformers.Qwen3NextConfig(**(values | overrides))


def multimodal(folder: Folder, architecture: str) -> None:
    """Turns a text checkpoint into what the whole model's looks like: nested config, other prefix, tensors to ignore."""
    data = json.loads((folder.path / "config.json").read_text())
    del data["architectures"]
    data["rope_parameters"] |= {"mrope_interleaved": True, "mrope_section": [1, 1, 0]}
    folder.write_config("config.json", {"architectures": [architecture], "dtype": data["dtype"], "text_config": data,
                                        "model_type": data["model_type"].removesuffix("_text"),
                                        "tie_word_embeddings": data["tie_word_embeddings"]})
    path = folder.path / "model.safetensors"
    tensors = {name.replace("model.", "model.language_model.", 1) if name.startswith("model.") else name: tensor
               for name, tensor in load_file(path).items()}
    extra = {"model.visual.pos_embed.weight": torch.zeros(2, 2), "mtp.norm.weight": torch.zeros(2)}
    save_file(tensors | extra, path, {"format": "pt"})


def make_all(root: Path) -> None:
    def folder(name: str, config, **more):
        return Folder(root, name, config, vary=vary, **more)

    folder("qwen3_5_dense", qwen3_5(), seed=70, tokens=90, dtype=torch.bfloat16)
    # One key head per value head, odd counts, tied, the interval in place of layer types; bf16.
    (folder("qwen3_5_r1", qwen3_5(linear_num_key_heads=3, linear_num_value_heads=3, linear_key_head_dim=12,
                                  linear_value_head_dim=10, num_attention_heads=3, num_key_value_heads=1,
                                  head_dim=24, layer_types=["linear_attention", "full_attention"] * 2,
                                  tie_word_embeddings=True, attention_bias=True),
            seed=71, tokens=70, dtype=torch.bfloat16)
     .respell("", "interval", lambda data: (data.pop("layer_types"), data.update(full_attention_interval=2))))
    # Three value heads per key head, kernel 3, sharded.
    folder("qwen3_5_r3", qwen3_5(linear_num_key_heads=2, linear_num_value_heads=6, linear_conv_kernel_dim=3),
           seed=72, tokens=70, shard_size="50KB")
    multimodal(folder("qwen3_5_multimodal", qwen3_5(intermediate_size=32), seed=73, tokens=70, dtype=torch.bfloat16),
               "Qwen3_5ForConditionalGeneration")
    folder("qwen3_5_moe", qwen3_5_moe(), seed=74, tokens=70, dtype=torch.bfloat16)
    multimodal(folder("qwen3_5_moe_multimodal", qwen3_5_moe(num_experts=4, num_experts_per_tok=2), seed=78, tokens=70,
                      dtype=torch.bfloat16), "Qwen3_5MoeForConditionalGeneration")
    # Packed projections; dense and sparse layers.
    folder("qwen3_next_r2", qwen3_next(mlp_only_layers=[1]), seed=75, tokens=90, dtype=torch.bfloat16)
    folder("qwen3_next_r3", qwen3_next(linear_num_value_heads=6, decoder_sparse_step=2), seed=86, tokens=70,
           dtype=torch.bfloat16)
    folder("qwen3_next_r1", qwen3_next(linear_num_key_heads=4, norm_topk_prob=False), seed=77, tokens=70,
           dtype=torch.bfloat16)
