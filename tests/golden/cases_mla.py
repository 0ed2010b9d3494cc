"""Golden cases of latent attention (DeepSeek-V3) and of sparse attention over it (DeepSeek-V3.2, GLM-5).

transformers fixes how each architecture rotates its indexer; where a case asks for the other way, the rotation is
exchanged here, and nothing else.
"""

import contextlib
import json
import math
from pathlib import Path

import make_golden
import numpy as np
import torch
import transformers
from make_golden import Folder, rope, without
from safetensors.torch import load_file, save_file
from transformers.models.deepseek_v32 import modeling_deepseek_v32 as v32_model
from transformers.models.glm_moe_dsa import modeling_glm_moe_dsa as glm_model

YARN = dict(factor=4.0, original_max_position_embeddings=32)


def deepseek(kind: str = "V3", **overrides):
    values = dict(architectures=[f"Deepseek{kind}ForCausalLM"], vocab_size=96, hidden_size=48, intermediate_size=64,
                  moe_intermediate_size=16, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=4,
                  q_lora_rank=24, kv_lora_rank=16, qk_nope_head_dim=12, qk_rope_head_dim=8, v_head_dim=12,
                  n_routed_experts=8, n_shared_experts=1, num_experts_per_tok=3, n_group=4, topk_group=2,
                  first_k_dense_replace=1, routed_scaling_factor=2.5, max_position_embeddings=128, bos_token_id=1,
                  eos_token_id=2, rope_parameters=rope("default"))
    return getattr(transformers, f"Deepseek{kind}Config")(**(values | overrides))


def deepseek_v32(**overrides):
    return deepseek("V32", **(dict(index_topk=6, index_n_heads=8, index_head_dim=16) | overrides))


def glm(**overrides):
    values = dict(architectures=["GlmMoeDsaForCausalLM"], vocab_size=96, hidden_size=32, intermediate_size=48,
                  moe_intermediate_size=16, num_hidden_layers=6, num_attention_heads=4, num_key_value_heads=4,
                  q_lora_rank=16, kv_lora_rank=16, qk_nope_head_dim=8, qk_rope_head_dim=8, v_head_dim=16,
                  n_routed_experts=6, n_shared_experts=1, num_experts_per_tok=2, n_group=1, topk_group=1,
                  first_k_dense_replace=2, routed_scaling_factor=2.5, max_position_embeddings=128, bos_token_id=1,
                  eos_token_id=2, rms_norm_eps=1e-5, rope_parameters=rope("default", theta=8000000.0), index_topk=5,
                  index_n_heads=8, index_head_dim=16, indexer_rope_interleave=True)
    return transformers.GlmMoeDsaConfig(**(values | overrides))


@contextlib.contextmanager
def other_indexer_rope():
    """Interleaved pairs in DeepSeek-V3.2's indexer, half-split ones in GLM's (both pass unsqueeze_dim=2)."""
    split, interleaved = v32_model.apply_rotary_pos_emb, glm_model.apply_rotary_pos_emb_interleave
    v32_model.apply_rotary_pos_emb = v32_model.apply_rotary_pos_emb_interleave
    glm_model.apply_rotary_pos_emb_interleave = (
        lambda q, k, cos, sin, position_ids=None, unsqueeze_dim=1:
        (split if unsqueeze_dim == 2 else interleaved)(q, k, cos, sin, unsqueeze_dim=unsqueeze_dim))
    try:
        yield
    finally:
        v32_model.apply_rotary_pos_emb, glm_model.apply_rotary_pos_emb_interleave = split, interleaved


@contextlib.contextmanager
def clear_selections(topk: int):
    """Fails if a row's selection hangs on rounding: the last score chosen must differ from the next."""
    plain, closest = torch.Tensor.topk, [float("inf")]

    def topk_with_margin(self, k, *args, **kwargs):
        if k == topk and self.dim() == 3 and self.shape[-1] > k:
            best = self.sort(dim=-1, descending=True).values
            margin = (best[..., k - 1] - best[..., k])[best[..., k] > -1e30]
            if margin.numel():
                closest[0] = min(closest[0], float(margin.min() / best[best > -1e30].abs().max()))
        return plain(self, k, *args, **kwargs)

    torch.Tensor.topk = topk_with_margin
    try:
        yield
    finally:
        torch.Tensor.topk = plain
    assert closest[0] > 2e-6, f"two scores at the edge of a selection are within {closest[0]:.1e}"


def vary(rng: np.random.Generator, name: str, shape: tuple[int, ...], tied: bool) -> np.ndarray:
    if len(shape) == 3:  # all experts of a layer
        return 1.2 / math.sqrt(shape[1]) * rng.standard_normal(shape)
    return make_golden.vary(rng, name, shape, tied)


@contextlib.contextmanager
def varied_corrections():
    """Random correction biases of the routers, drawn apart from the weights."""
    plain = make_golden.randomize

    def randomize(model: torch.nn.Module, seed: int, dtype: torch.dtype, _) -> None:
        plain(model, seed, dtype, vary, corrections=False)
        rng = np.random.default_rng(5000 + seed)
        for name, buffer in sorted(model.named_buffers()):
            if name.endswith("e_score_correction_bias"):
                buffer.copy_(torch.from_numpy(0.2 * rng.standard_normal(buffer.shape)).to(dtype))

    make_golden.randomize = randomize
    try:
        yield
    finally:
        make_golden.randomize = plain


def add_draft_layer(folder: Folder) -> None:
    """A tensor of a layer that only speculation needs."""
    path = folder.path / "model.safetensors"
    tensors = load_file(path)
    name = f"model.layers.{folder.config.num_hidden_layers}.eh_proj.weight"
    save_file(tensors | {name: torch.zeros(2, 4)}, path, {"format": "pt"})


def make_deepseek_v3(root: Path) -> None:
    mscale = dict(mscale=1.0, mscale_all_dim=1.0, **YARN)
    folder = Folder(root, "deepseek_v3_groups", deepseek(), seed=201, dtype=torch.bfloat16)
    folder.add("yarn", deepseek(rope_parameters=rope("yarn", **mscale)), differs_from="")
    folder.add("yarn_mscale", deepseek(rope_parameters=rope("yarn", **(mscale | dict(mscale=0.7)))), "yarn")
    folder.add("half_split", deepseek(rope_interleave=False), differs_from="")
    folder.add("no_groups", deepseek(n_group=1, topk_group=1), differs_from="")
    folder.respell("yarn", "v4", make_golden.old_spelling("type"))
    Folder(root, "deepseek_v3_direct", deepseek(q_lora_rank=None, attention_bias=True, num_attention_heads=6,
                                                num_key_value_heads=6, v_head_dim=16, qk_nope_head_dim=8,
                                                first_k_dense_replace=9, num_hidden_layers=2), seed=202)


def make_deepseek_v32(root: Path) -> None:
    yarn = rope("yarn", mscale=1.0, mscale_all_dim=1.0, **YARN)
    with clear_selections(6):
        folder = Folder(root, "deepseek_v32", deepseek_v32(rope_parameters=yarn), seed=203, dtype=torch.bfloat16)
        with other_indexer_rope():
            folder.add("interleaved", deepseek_v32(rope_parameters=yarn, indexer_rope_interleave=True), "")
    folder.add("everything", deepseek_v32(rope_parameters=yarn, index_topk=96), differs_from="")
    with other_indexer_rope():  # nothing is left out, so nothing can differ
        folder.add("everything_interleaved",
                   deepseek_v32(rope_parameters=yarn, index_topk=96, indexer_rope_interleave=True))
    assert torch.equal(folder.goldens["everything"], folder.goldens["everything_interleaved"])
    add_draft_layer(folder)


def make_glm(root: Path) -> None:
    def by_frequency(data: dict) -> None:
        del data["indexer_types"]
        data.update(index_topk_freq=4, index_skip_topk_offset=3)

    def by_pattern(data: dict) -> None:
        del data["indexer_types"]
        data.update(index_topk_freq=1, index_topk_pattern="FFFSSS")

    with clear_selections(5):
        folder = Folder(root, "glm_moe_dsa", glm(num_hidden_layers=3), seed=204)
        with other_indexer_rope():
            folder.add("half_split", glm(num_hidden_layers=3, indexer_rope_interleave=False), differs_from="")
        folder.respell("", "v5", without("mlp_layer_types"))
        shared = glm(indexer_types=["full"] * 3 + ["shared"] * 3)
        folder = Folder(root, "glm_moe_dsa_shared", shared, seed=205, dtype=torch.bfloat16)
        folder.respell("", "frequency", by_frequency)
        folder.respell("", "pattern", by_pattern)


def make_kimi(root: Path) -> None:
    """Kimi-K2.5: the text model of a multimodal one, under the names of the published files."""
    yarn = rope("yarn", theta=50000.0, factor=4.0, original_max_position_embeddings=32, mscale=1.0, mscale_all_dim=1.0)
    text = deepseek(n_group=1, topk_group=1, n_routed_experts=12, routed_scaling_factor=2.827, rope_parameters=yarn)
    folder = Folder(root, "kimi_k25", text, seed=206, dtype=torch.bfloat16)
    data = json.loads((folder.path / "config.json").read_text())
    small = dict(hidden_size=16, intermediate_size=16, num_attention_heads=2, num_hidden_layers=1)
    folder.write_config("config.json", {"architectures": ["KimiK25ForConditionalGeneration"], "model_type": "kimi_k25",
                                        "dtype": data["dtype"], "tie_word_embeddings": False,
                                        "vision_config": small, "text_config": data})
    path = folder.path / "model.safetensors"
    tensors = {f"language_model.{name}": tensor for name, tensor in load_file(path).items()}
    extra = {"vision_tower.patch_embed.proj.bias": torch.zeros(16), "mm_projector.pre_norm.weight": torch.zeros(16)}
    save_file(tensors | extra, path, {"format": "pt"})
    # The whole model, which finds its text weights under these names, computes the same.
    whole = transformers.Kimi_K25ForConditionalGeneration.from_pretrained(folder.path, attn_implementation="eager",
                                                                         dtype=torch.float32,
                                                                         ignore_mismatched_sizes=True)
    assert make_golden.relative_error(make_golden.forward(whole.eval(), folder.ids), folder.goldens[""]) < 1e-6


def make_all(root: Path) -> None:
    with varied_corrections():
        make_deepseek_v3(root)
        make_kimi(root)
        make_deepseek_v32(root)
        make_glm(root)
