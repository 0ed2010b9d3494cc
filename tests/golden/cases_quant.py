"""Golden cases of quantised storage: FP8 in blocks, per row and per tensor, and MXFP4, under every publisher's names.

Weights are quantised here, in numpy and from the definitions of the formats; transformers computes in float32 on what
the stored bytes mean, which it reads from a plain copy that is not kept.
"""

import json
import shutil
import tempfile
from pathlib import Path

import cases_mla
import cases_moe
import make_golden
import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file


def e4m3_values() -> np.ndarray:
    """What each of the 256 bytes means."""
    byte = np.arange(256)
    exponent, mantissa = byte >> 3 & 15, byte & 7
    value = np.where(exponent == 0, mantissa / 8 * 2.0**-6, (1 + mantissa / 8) * 2.0 ** (exponent - 7.0))
    value[(byte & 127) == 127] = np.nan
    return np.where(byte >> 7 == 1, -value, value)


E4M3 = e4m3_values()
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def nearest(values: np.ndarray, table: np.ndarray) -> np.ndarray:
    """The index of the table's nearest entry; NaN entries are never chosen."""
    order = np.argsort(np.where(np.isnan(table), np.inf, table))[:np.count_nonzero(~np.isnan(table))]
    sorted_table = table[order]
    at = np.clip(np.searchsorted(sorted_table, values), 1, len(order) - 1)
    low_is_nearer = values - sorted_table[at - 1] <= sorted_table[at] - values
    return order[at - low_is_nearer].astype(np.uint8)


def spread(scales: np.ndarray, rows: int, cols: int, block: tuple[int, int]) -> np.ndarray:
    """One scale per element from one per block."""
    return np.repeat(np.repeat(scales, block[0], axis=-2), block[1], axis=-1)[..., :rows, :cols]


def quantise_fp8(weight: torch.Tensor, block: tuple[int, int], scale_dtype=torch.float32, power_of_two=False):
    """Bytes, scales (both as they are stored), and the float32 matrix that they mean. Leading dims are kept."""
    w = weight.double().numpy()
    rows, cols = w.shape[-2:]
    block = (min(block[0], rows), min(block[1], cols))
    down, across = -(-rows // block[0]), -(-cols // block[1])
    padded = np.zeros((*w.shape[:-2], down * block[0], across * block[1]))
    padded[..., :rows, :cols] = np.abs(w)
    scale = padded.reshape(*w.shape[:-2], down, block[0], across, block[1]).max(axis=(-3, -1)) / 448
    if power_of_two:
        scale = 2.0 ** np.ceil(np.log2(scale))
    scale = torch.from_numpy(scale).to(scale_dtype)
    factor = spread(scale.double().numpy(), rows, cols, block)
    codes = nearest(np.clip(w / factor, -448, 448), E4M3)
    meaning = torch.from_numpy((E4M3[codes] * factor).astype(np.float32))
    return torch.from_numpy(codes).view(torch.float8_e4m3fn), scale, meaning


def quantise_mxfp4(weight: torch.Tensor):
    """[E, N, K] to blocks [E, N, K / 32, 16] and scales [E, N, K / 32], and the float32 stack that they mean."""
    w = weight.double().numpy().reshape(*weight.shape[:-1], -1, 32)
    exponent = np.floor(np.log2(np.abs(w).max(axis=-1))) - 2
    factor = 2.0 ** exponent[..., None]
    codes = nearest(np.clip(w / factor, -6, 6), E2M1)
    meaning = torch.from_numpy((E2M1[codes] * factor).astype(np.float32).reshape(weight.shape))
    blocks = torch.from_numpy(codes[..., 0::2] | codes[..., 1::2] << 4)
    return blocks, torch.from_numpy((exponent + 127).astype(np.uint8)), meaning


def read_plain(folder: Path, tensors: dict[str, torch.Tensor], config) -> dict[str, torch.Tensor]:
    """The state that transformers loads from these tensors."""
    with tempfile.TemporaryDirectory() as plain:
        save_file({k: v.to(torch.float32).contiguous() for k, v in tensors.items()}, Path(plain) / "model.safetensors",
                  {"format": "pt"})
        shutil.copy(folder / "config.json", plain)
        kind = getattr(transformers, config.architectures[0])
        model, report = kind.from_pretrained(plain, dtype=torch.float32, output_loading_info=True)
    assert not any(report.values()), report
    return {k: v.clone() for k, v in model.state_dict().items()}


def is_linear(name: str) -> bool:
    """What publishers quantise: every projection but the routers, the head and the indexer's weights."""
    left = ("lm_head.weight", "embed_tokens.weight", "mlp.gate.weight", "weights_proj.weight", "norm.weight")
    return name.endswith(".weight") and not name.endswith(left) and "layernorm" not in name


def stack_experts(tensors: dict[str, torch.Tensor]) -> None:
    """One tensor per layer for all experts, as transformers holds them."""
    for layer in {name.split(".experts.")[0] for name in tensors if ".experts.0." in name}:
        count = sum(name.startswith(f"{layer}.experts.") for name in tensors) // 3
        parts = [[tensors.pop(f"{layer}.experts.{e}.{kind}_proj.weight") for kind in ("gate", "up", "down")]
                 for e in range(count)]
        tensors[f"{layer}.experts.gate_up_proj"] = torch.stack([torch.cat((g, u)) for g, u, _ in parts])
        tensors[f"{layer}.experts.down_proj"] = torch.stack([d for _, _, d in parts])


class Fp8:
    """Rewrites a folder in FP8. `block` is (rows, cols), "row" or "tensor"."""

    def __init__(self, block, quantization: dict, *, scale_dtype=torch.float32, power_of_two=False, stacked=False):
        self.block, self.quantization, self.stacked = block, quantization, stacked
        self.scale_dtype, self.power_of_two = scale_dtype, power_of_two

    def __call__(self, folder: Path, config) -> dict[str, torch.Tensor]:
        path = folder / "model.safetensors"
        tensors = load_file(path)
        if self.stacked:
            stack_experts(tensors)
        stored, meaning = {}, {}
        for name, tensor in sorted(tensors.items()):
            if is_linear(name) or name.endswith(("experts.gate_up_proj", "experts.down_proj")):
                codes, scale, meaning[name] = quantise_fp8(tensor.float(), self.block_of(tensor), self.scale_dtype,
                                                           self.power_of_two)
                stored[name] = codes
                stored[name + self.suffix()] = self.shaped(name, scale).contiguous()
                if self.block == "tensor":
                    stored[name.removesuffix("weight") + "input_scale"] = torch.tensor(0.5)
            else:
                stored[name] = meaning[name] = tensor
        state = read_plain(folder, meaning, config)
        save_file(stored, path, {"format": "pt"})
        data = json.loads((folder / "config.json").read_text()) | {"quantization_config": self.quantization}
        (folder / "config.json").write_text(json.dumps(data, indent=2, sort_keys=True) + "\n")
        return state

    def block_of(self, tensor: torch.Tensor) -> tuple[int, int]:
        rows, cols = tensor.shape[-2:]
        return {"row": (1, cols), "tensor": (rows, cols)}.get(self.block, self.block)

    def suffix(self) -> str:
        return "_scale" if self.block in ("row", "tensor") else "_scale_inv"

    def shaped(self, name: str, scale: torch.Tensor) -> torch.Tensor:
        """A scale per tensor is written in every shape that is seen."""
        if self.block != "tensor":
            return scale
        return scale.reshape([1, 1] if "k_proj" in name else [1] if "v_proj" in name else [])


def mxfp4(folder: Path, config) -> dict[str, torch.Tensor]:
    path = folder / "model.safetensors"
    stored, meaning = {}, {}
    for name, tensor in sorted(load_file(path).items()):
        if name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            blocks, scales, plain = quantise_mxfp4(tensor.float().transpose(1, 2).contiguous())
            stored[name + "_blocks"], stored[name + "_scales"] = blocks, scales
            meaning[name] = plain.transpose(1, 2)
        else:
            stored[name] = meaning[name] = tensor
    state = read_plain(folder, meaning, config)
    save_file(stored, path, {"format": "pt"})
    quantization = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn",
                                                                        "model.layers.*.mlp.router",
                                                                        "model.embed_tokens", "lm_head"]}
    data = json.loads((folder / "config.json").read_text()) | {"quantization_config": quantization}
    (folder / "config.json").write_text(json.dumps(data, indent=2, sort_keys=True) + "\n")
    return state


class PerModule:
    """Rewrites a folder as `storage` says: "mxfp4", "row", "tensor" or None for each tensor that is a Linear's.

    `packed` is the ending of E2M1's tensors: AMD Quark keeps ".weight", compressed-tensors appends "_packed"."""

    def __init__(self, storage, quantization: dict, *, packed: str = "", more=lambda name: {}):
        self.storage, self.quantization, self.packed, self.more = storage, quantization, packed, more

    def __call__(self, folder: Path, config) -> dict[str, torch.Tensor]:
        path = folder / "model.safetensors"
        stored, meaning = {}, {}
        for name, tensor in sorted(load_file(path).items()):
            kind = self.storage(name) if is_linear(name) else None
            stored |= self.more(name)
            if kind is None:
                stored[name] = meaning[name] = tensor
            elif kind == "mxfp4":
                codes, stored[name + "_scale"], meaning[name] = quantise_mxfp4(tensor.float())
                stored[name + self.packed] = codes.reshape(len(tensor), -1)
            else:
                rows, cols = tensor.shape
                block = (1, cols) if kind == "row" else (rows, cols)
                stored[name], scale, meaning[name] = quantise_fp8(tensor.float(), block)
                shape = [] if kind == "tensor" else [rows] if "o_proj" in name else [rows, 1]
                stored[name + "_scale"] = scale.reshape(shape)
        state = read_plain(folder, meaning, config)
        save_file(stored, path, {"format": "pt"})
        data = json.loads((folder / "config.json").read_text()) | {"quantization_config": self.quantization}
        (folder / "config.json").write_text(json.dumps(data, indent=2, sort_keys=True) + "\n")
        return state


def blocks(rows: int, cols: int, **more) -> dict:
    return {"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8",
            "weight_block_size": [rows, cols]} | more


def compressed(strategy: str, **weights) -> dict:
    group = {"input_activations": {"dynamic": True, "num_bits": 8, "strategy": "token", "type": "float"},
             "targets": ["Linear"],
             "weights": {"dynamic": False, "num_bits": 8, "strategy": strategy, "symmetric": True, "type": "float"} | weights}
    return {"config_groups": {"group_0": group}, "format": "float-quantized", "ignore": ["lm_head"],
            "quant_method": "compressed-tensors", "quantization_status": "compressed"}


def packed_mxfp4(**more) -> dict:
    group = {"format": "mxfp4-pack-quantized", "input_activations": {"dynamic": True, "group_size": 32, "num_bits": 4,
                                                                     "strategy": "group", "type": "float"},
             "output_activations": None, "targets": ["Linear"],
             "weights": {"dynamic": False, "group_size": 32, "num_bits": 4, "scale_dtype": "torch.uint8",
                         "strategy": "group", "symmetric": True, "type": "float"}}
    return {"config_groups": {"group_0": group}, "format": "mxfp4-pack-quantized", "ignore": ["lm_head"],
            "quant_method": "compressed-tensors", "quantization_status": "compressed"} | more


QUARK_MXFP4 = {"ch_axis": -1, "dtype": "fp4", "group_size": 32, "is_dynamic": False, "qscheme": "per_group",
               "scale_format": "e8m0"}
QUARK_FP8 = {"ch_axis": None, "dtype": "fp8_e4m3", "group_size": None, "is_dynamic": False, "qscheme": "per_tensor"}
QUARK_ROWS = QUARK_FP8 | {"ch_axis": 0, "qscheme": "per_channel"}


def quark(weight: dict, *, layers: dict = {}, **more) -> dict:
    def of(weight):
        return {"bias": None, "input_tensors": weight, "output_tensors": None, "weight": weight}
    return {"algo_config": None, "exclude": ["lm_head"], "global_quant_config": of(weight), "quant_method": "quark",
            "layer_quant_config": {pattern: of(weight) for pattern, weight in layers.items()},
            "layer_type_quant_config": {},
            "export": {"kv_cache_group": [], "pack_method": "reorder", "weight_format": "real_quantized"}} | more


def make_glm(root: Path, bf16: dict) -> None:
    """Names that GLM publishes: the indexer's weights_proj is listed as indexers_proj."""
    config = cases_mla.glm(hidden_size=72, intermediate_size=80, moe_intermediate_size=24, num_hidden_layers=4,
                           indexer_types=["full", "full", "shared", "full"], first_k_dense_replace=1)
    listed = ["lm_head", "model.embed_tokens", "model.norm"]
    for i in range(4):
        listed += [f"model.layers.{i}.{name}" for name in ("input_layernorm", "post_attention_layernorm", "mlp.gate",
                                                           "self_attn.q_a_layernorm", "self_attn.kv_a_layernorm")]
        if i != 2:
            listed += [f"model.layers.{i}.self_attn.indexers_proj", f"model.layers.{i}.self_attn.indexer.k_norm"]
    with cases_mla.clear_selections(5):
        make_golden.Folder(root, "fp8_glm_dsa", config, seed=305,
                           store=Fp8((32, 32), blocks(32, 32, modules_to_not_convert=listed, scale_fmt="ue8m0"),
                                     power_of_two=True), **bf16)


def make_all(root: Path) -> None:
    bf16 = dict(dtype=torch.bfloat16)

    def folder(name, config, seed, store):
        return make_golden.Folder(root, name, config, seed=seed, store=store, **bf16)

    def as_compressed(data: dict) -> None:
        data["quantization_config"] = compressed("block", block_structure=[128, 128])

    def as_sizes(data: dict) -> None:
        data["quantization_config"].update(fmt="float8_e4m3fn", modules_to_not_convert=["lm_head", "gate"])

    qwen3 = dict(hidden_size=132, intermediate_size=140, num_attention_heads=4, num_key_value_heads=2, head_dim=36,
                 vocab_size=96)
    (folder("fp8_qwen3", make_golden.qwen3(**qwen3), 300, Fp8((128, 128), blocks(128, 128), scale_dtype=torch.bfloat16))
     .respell("", "compressed", as_compressed)
     .respell("", "listed", as_sizes))
    small = dict(hidden_size=72, intermediate_size=104, vocab_size=96)
    folder("fp8_qwen3_odd_blocks", make_golden.qwen3(**small), 301, Fp8((24, 40), blocks(24, 40)))
    modelopt = {"quant_algo": "FP8", "kv_cache_scheme": "FP8", "ignore": ["lm_head"],
                "config_groups": {"group_0": {"weights": {"dynamic": False, "num_bits": 8, "type": "float"}}}}
    folder("fp8_qwen3_per_tensor", make_golden.qwen3(**small), 302, Fp8("tensor", modelopt))
    folder("fp8_qwen3_per_row", make_golden.qwen3(tie_word_embeddings=True, **small), 303,
           Fp8("row", compressed("channel")))
    moe = cases_moe.qwen3_moe(hidden_size=80, moe_intermediate_size=24, num_experts=6, head_dim=16)
    folder("fp8_qwen3_moe", moe, 304, Fp8((32, 32), blocks(32, 32, modules_to_not_convert=["lm_head"] + [
        f"model.layers.{i}.mlp.gate" for i in range(2)]), scale_dtype=torch.bfloat16))
    folder("fp8_qwen3_moe_stacked", moe, 304, Fp8((32, 32), blocks(32, 32), stacked=True))
    make_glm(root, bf16)
    deepseek = cases_mla.deepseek(hidden_size=132, intermediate_size=136, moe_intermediate_size=24,
                                  num_hidden_layers=2, q_lora_rank=40, kv_lora_rank=24, n_routed_experts=8,
                                  qk_nope_head_dim=24, v_head_dim=32, num_key_value_heads=4)
    folder("fp8_deepseek_v3", deepseek, 306, Fp8((128, 128), blocks(128, 128)))
    gpt_oss = cases_moe.gpt_oss(hidden_size=96, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4)
    folder("mxfp4_gpt_oss", gpt_oss, 307, mxfp4)
    dense = dict(hidden_size=96, intermediate_size=160, num_attention_heads=4, num_key_value_heads=2, head_dim=24,
                 vocab_size=96)
    folder("mxfp4_qwen3_packed", make_golden.qwen3(**dense), 308,
           PerModule(lambda name: "mxfp4", packed_mxfp4(), packed="_packed"))
    # Experts in MXFP4, attention in FP8 but for one layer's, which is not quantised.
    def mixed(name: str) -> str | None:
        if "layers.1.self_attn" in name:
            return None
        return "row" if "self_attn" in name else "mxfp4"
    moe = cases_moe.qwen3_moe(hidden_size=96, moe_intermediate_size=64, num_experts=6, head_dim=16)
    folder("quark_mxfp4_qwen3_moe", moe, 309,
           PerModule(mixed, quark(QUARK_MXFP4, layers={"*self_attn*": QUARK_ROWS},
                                  exclude=["lm_head", "*mlp.gate", "*layers.1.self_attn*"])))
    latent = cases_mla.deepseek(hidden_size=96, intermediate_size=96, moe_intermediate_size=32, num_hidden_layers=2,
                                q_lora_rank=32, kv_lora_rank=64, n_routed_experts=4, n_group=2, v_head_dim=16)
    folder("quark_mxfp4_deepseek_v3", latent, 310,
           PerModule(lambda name: "mxfp4", quark(QUARK_MXFP4, exclude=["lm_head", "re:.*mlp\\.gate$"])))

    def scales_around(name: str) -> dict:
        module = name.removesuffix("weight")
        around = {module + "input_scale": torch.tensor(0.5)} if is_linear(name) else {}
        if "k_proj" in name or "v_proj" in name:
            around[module + "output_scale"] = torch.tensor(0.03125)
        return around
    folder("quark_fp8_llama", make_golden.llama(**small), 311,
           PerModule(lambda name: "row" if "down_proj" in name or "o_proj" in name else "tensor",
                     quark(QUARK_FP8, layers={"*down_proj": QUARK_ROWS, "*.o_proj": QUARK_ROWS}), more=scales_around))
