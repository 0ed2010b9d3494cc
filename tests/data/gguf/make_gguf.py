#!/usr/bin/env python3
"""Makes the tiny random GGUF models in this folder and what transformers computes for the weights they hold.

One Llama per storage type, q and k in the row order that Llama has in GGUF, and a few for metadata: Qwen3, and the
three ways of scaling positions. x.golden.safetensors is the golden of x.gguf, as tests/golden/make_golden.py
describes it. The gguf package quantises the block types; it cannot write the K types, so their blocks are random
bytes with fitting scales, and its dequantised values are the truth.
Needs torch, transformers, safetensors and gguf.  --check regenerates into a temporary folder and compares.
"""

import argparse
import math
import shutil
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import gguf
import numpy as np
import torch
import transformers
from gguf import GGMLQuantizationType as Type
from safetensors.torch import save_file

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "golden"))
import make_golden  # noqa: E402

K_TYPES = (Type.Q4_K, Type.Q5_K, Type.Q6_K)
STEPS = 16


def vocabulary(size: int) -> tuple[list[str], list[str], list[int]]:
    """Tokens, merges and token types of a byte-level BPE that knows a few characters only."""
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    merges = ["h e", "Ġ t", "Ġt he"]
    letters = [chr(c) for c in [*range(97, 123), *range(48, 58), *range(65, 91), *range(33, 48), *range(58, 65)]]
    joined = [merge.replace(" ", "") for merge in merges]
    tokens = special + ["Ġ", "Ċ"] + letters[:size - 5 - len(joined)] + joined
    tokens += [f"<unused{i}>" for i in range(size - len(tokens))]
    types = [gguf.TokenType.CONTROL] * 3 + [gguf.TokenType.NORMAL] * (size - 3)
    types = [gguf.TokenType.UNUSED if token.startswith("<unused") else kind for token, kind in zip(tokens, types)]
    return tokens, merges, [int(kind) for kind in types]


@dataclass
class Model:
    """What one file holds: the configuration, and the storage type of each matrix."""
    name: str
    config: object
    type: Type
    output_type: Type | None = None  # of output.weight; tied to the embedding if None
    short_row_type: Type = Type.F16  # of matrices whose rows are too short for a K type
    rope_metadata: dict = field(default_factory=dict)
    rope_factors: np.ndarray | None = None


def random_blocks(rng: np.random.Generator, kind: Type, rows: int, cols: int, std: float) -> np.ndarray:
    """Bytes of a K type with random quants and scales, and block scales that give values of about `std`."""
    elements, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = rng.integers(0, 256, (rows * cols // elements, size), dtype=np.uint8)

    def put_scale(scale: np.ndarray) -> None:
        as_bytes = scale.astype(np.float16).view(np.uint8).reshape(-1, 2)
        if kind == Type.Q6_K:
            blocks[:, -2:] = as_bytes
        else:  # scale, then the scale of the minima that centres the values
            blocks[:, 0:2] = as_bytes
            centre = 7.5 if kind == Type.Q4_K else 15.5
            blocks[:, 2:4] = (centre * scale).astype(np.float16).view(np.uint8).reshape(-1, 2)
    vary = rng.uniform(0.5, 1.5, len(blocks))
    put_scale(0.001 * vary)
    put_scale(0.001 * vary * std / gguf.dequantize(blocks.reshape(rows, -1), kind).std())
    return blocks.reshape(rows, -1)


def encode(rng: np.random.Generator, values: np.ndarray, kind: Type) -> tuple[np.ndarray, np.ndarray]:
    """The stored array of a tensor, and the float32 values it stands for."""
    if kind == Type.F32:
        stored = values.astype(np.float32)
        return stored, stored
    if kind == Type.F16:
        stored = values.astype(np.float16)
        return stored, stored.astype(np.float32)
    stored = (random_blocks(rng, kind, *values.shape, float(values.std())) if kind in K_TYPES
              else gguf.quantize(values.astype(np.float32), kind))
    return stored, gguf.dequantize(stored, kind).astype(np.float32)


def llama_order(values: np.ndarray, heads: int) -> np.ndarray:
    """Rows of q or k as a Llama GGUF has them: (i, i + half) of a head become (2i, 2i+1)."""
    return values.reshape(heads, 2, -1, values.shape[1]).swapaxes(1, 2).reshape(values.shape)


def hugging_face_order(values: np.ndarray, heads: int) -> np.ndarray:
    return values.reshape(heads, -1, 2, values.shape[1]).swapaxes(1, 2).reshape(values.shape)


def add_metadata(writer: gguf.GGUFWriter, model: Model) -> None:
    config = model.config
    writer.add_name(model.name)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    for key, value in model.rope_metadata.items():
        getattr(writer, f"add_rope_scaling_{key}")(value)
    tokens, merges, types = vocabulary(config.vocab_size)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2" if config.model_type == "qwen3" else "llama-bpe")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(merges)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(False)


def write(model: Model, seed: int, folder: Path) -> None:
    rng = np.random.default_rng(seed)
    config = model.config
    network = make_golden.build(config)
    arch = gguf.MODEL_ARCH.QWEN3 if config.model_type == "qwen3" else gguf.MODEL_ARCH.LLAMA
    names = gguf.get_tensor_name_map(arch, config.num_hidden_layers)
    writer = gguf.GGUFWriter(folder / f"{model.name}.gguf", gguf.MODEL_ARCH_NAMES[arch])
    add_metadata(writer, model)
    if model.rope_factors is not None:
        writer.add_tensor("rope_freqs.weight", model.rope_factors)
    for name, parameter in network.named_parameters():
        values = make_golden.vary(rng, name, tuple(parameter.shape), config.tie_word_embeddings)
        kind = model.type
        if values.ndim == 1:
            kind = Type.F32
        elif name == "lm_head.weight":
            kind = model.output_type
        elif values.shape[1] % gguf.GGML_QUANT_SIZES[kind][0]:
            kind = model.short_row_type
        heads = {"q_proj.weight": config.num_attention_heads, "k_proj.weight": config.num_key_value_heads}.get(
            ".".join(name.split(".")[-2:])) if arch == gguf.MODEL_ARCH.LLAMA else None
        stored, truth = encode(rng, llama_order(values, heads) if heads else values, kind)
        writer.add_tensor(names.get_name(name, try_suffixes=(".weight",)), stored,
                          raw_dtype=None if kind in (Type.F32, Type.F16) else kind)
        parameter.data = torch.from_numpy(hugging_face_order(truth, heads) if heads else truth).clone()
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    ids = make_golden.prompt(seed, 40, config.vocab_size)
    logits = make_golden.forward(network, ids)
    out, gaps = make_golden.greedy(network, ids, STEPS)
    assert make_golden.relative_error(logits, make_golden.forward(network.double(), ids)) < 3e-5, model.name
    save_file({"input_ids": torch.tensor(ids), "logits": logits.contiguous(), "greedy_ids": torch.tensor(out),
               "greedy_gap": torch.tensor(gaps)}, folder / f"{model.name}.golden.safetensors",
              {"made_by": f"transformers {transformers.__version__}, gguf"})


def llama3_factors(parameters: dict, head_dim: int) -> np.ndarray:
    """rope_freqs.weight: what each inverse frequency of llama3 scaling is divided by."""
    factor, low, high = parameters["factor"], parameters["low_freq_factor"], parameters["high_freq_factor"]
    original = parameters["original_max_position_embeddings"]
    out = []
    for i in range(0, head_dim, 2):
        turns = original / (2 * math.pi * parameters["rope_theta"] ** (i / head_dim))
        smooth = min(max((turns - low) / (high - low), 0.0), 1.0)
        out.append(1.0 / ((1.0 - smooth) / factor + smooth))
    return np.array(out, dtype=np.float32)


def models() -> list[Model]:
    small = dict(vocab_size=96, hidden_size=64, intermediate_size=64, num_hidden_layers=2)
    large = dict(vocab_size=64, hidden_size=512, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2,
                 num_key_value_heads=1, head_dim=32)
    tied = dict(tie_word_embeddings=True)
    llama, qwen3, rope = make_golden.llama, make_golden.qwen3, make_golden.rope
    out = [Model(f"llama_{kind.name.lower()}", llama(**small, **tied), kind)
           for kind in (Type.F32, Type.F16, Type.BF16, Type.Q4_0, Type.Q4_1, Type.Q5_0)]
    out += [Model("llama_q5_1", llama(**small), Type.Q5_1, output_type=Type.Q8_0),
            Model("llama_q8_0", llama(**small), Type.Q8_0, output_type=Type.F16),
            Model("llama_q4_k", llama(**large), Type.Q4_K, output_type=Type.Q6_K, short_row_type=Type.Q5_0),
            Model("llama_q5_k", llama(**large), Type.Q5_K, output_type=Type.Q6_K, short_row_type=Type.Q5_1),
            Model("llama_q6_k", llama(**large, **tied), Type.Q6_K, short_row_type=Type.Q8_0)]
    scaled = rope("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=24)
    out.append(Model("llama_rope_freqs", llama(rope_parameters=scaled, **small), Type.Q8_0, output_type=Type.Q8_0,
                     rope_factors=llama3_factors(scaled, 16)))
    out.append(Model("llama_linear", llama(rope_parameters=rope("linear", factor=4.0), **small), Type.Q8_0,
                     output_type=Type.Q8_0,
                     rope_metadata={"type": gguf.RopeScalingType.LINEAR, "factor": 4.0}))
    out.append(Model("qwen3_q8_0", qwen3(**small, **tied), Type.Q8_0))
    yarn = rope("yarn", theta=1000000.0, factor=4.0, original_max_position_embeddings=32)
    out.append(Model("qwen3_yarn", qwen3(rope_parameters=yarn, **small), Type.Q8_0, output_type=Type.Q8_0,
                     rope_metadata={"type": gguf.RopeScalingType.YARN, "factor": 4.0, "orig_ctx_len": 32}))
    return out


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare with the committed files and change nothing")
    check = parser.parse_args().check
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "gguf"
        made.mkdir()
        for seed, model in enumerate(models(), start=100):
            write(model, seed, made)
        if check:
            problems = make_golden.compare(made.parent, HERE.parent, ["gguf/*.golden.safetensors"])
            problems += [f"{path.name}: differs" for path in sorted(made.glob("*.gguf"))
                         if not (HERE / path.name).exists() or (HERE / path.name).read_bytes() != path.read_bytes()]
            print("\n".join(problems) or "the committed GGUF files are what this script makes")
            return 1 if problems else 0
        for path in sorted(made.iterdir()):
            shutil.copyfile(path, HERE / path.name)
            print(f"{path.name:34} {path.stat().st_size / 1024:6.0f} KiB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
