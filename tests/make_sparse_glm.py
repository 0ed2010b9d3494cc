#!/usr/bin/env python3
"""Writes GLM-5.2-FP8 as sparse files: every header is true, no weight is there, a few dozen MB are on the disk.

Usage: make_sparse_glm.py CONFIG FOLDER [--shards 141]

CONFIG is the published config.json (or tests/data/configs/glm-5.2.json); matrices are stored as the FP8 release stores
them: e4m3 with one f32 scale per block of 128 x 128, norms, router, embedding, head, the indexer's weights_proj and the
projection into the drafting layer in bf16, the router's correction in f32. The bytes of all tensors come to 755 617 140
416, the release's total_size. Standard library only.
"""
import argparse
import json
import os
import struct
import sys
from pathlib import Path

BLOCK = 128
BYTES = {"BF16": 2, "F32": 4, "F8_E4M3": 1}


def tensors(config):
    """(name, type, shape) of every tensor, in layer order."""
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    q_rank, kv_rank = config["q_lora_rank"], config["kv_lora_rank"]
    nope, rope, value = config["qk_nope_head_dim"], config["qk_rope_head_dim"], config["v_head_dim"]
    layers = config["num_hidden_layers"]

    def matrix(name, rows, cols):
        yield f"{name}.weight", "F8_E4M3", [rows, cols]
        yield f"{name}.weight_scale_inv", "F32", [-(-rows // BLOCK), -(-cols // BLOCK)]

    def vector(name, size):
        yield name, "BF16", [size]

    def block(name, width):
        for part in ("gate_proj", "up_proj"):
            yield from matrix(f"{name}.{part}", width, hidden)
        yield from matrix(f"{name}.down_proj", hidden, width)

    def decoder_layer(index, own_indexer, sparse):
        layer = f"model.layers.{index}"
        yield from vector(f"{layer}.input_layernorm.weight", hidden)
        yield from vector(f"{layer}.post_attention_layernorm.weight", hidden)
        attention = f"{layer}.self_attn"
        yield from matrix(f"{attention}.q_a_proj", q_rank, hidden)
        yield from vector(f"{attention}.q_a_layernorm.weight", q_rank)
        yield from matrix(f"{attention}.q_b_proj", heads * (nope + rope), q_rank)
        yield from matrix(f"{attention}.kv_a_proj_with_mqa", kv_rank + rope, hidden)
        yield from vector(f"{attention}.kv_a_layernorm.weight", kv_rank)
        yield from matrix(f"{attention}.kv_b_proj", heads * (nope + value), kv_rank)
        yield from matrix(f"{attention}.o_proj", hidden, heads * value)
        if own_indexer:
            index_heads, dim = config["index_n_heads"], config["index_head_dim"]
            yield from matrix(f"{attention}.indexer.wq_b", index_heads * dim, q_rank)
            yield from matrix(f"{attention}.indexer.wk", dim, hidden)
            yield from vector(f"{attention}.indexer.k_norm.weight", dim)
            yield from vector(f"{attention}.indexer.k_norm.bias", dim)
            yield f"{attention}.indexer.weights_proj.weight", "BF16", [index_heads, hidden]
        if not sparse:
            yield from block(f"{layer}.mlp", config["intermediate_size"])
            return
        experts, width = config["n_routed_experts"], config["moe_intermediate_size"]
        yield f"{layer}.mlp.gate.weight", "BF16", [experts, hidden]
        yield f"{layer}.mlp.gate.e_score_correction_bias", "F32", [experts]
        for expert in range(experts):
            yield from block(f"{layer}.mlp.experts.{expert}", width)
        yield from block(f"{layer}.mlp.shared_experts", width * config["n_shared_experts"])

    yield "model.embed_tokens.weight", "BF16", [config["vocab_size"], hidden]
    for index in range(layers):
        yield from decoder_layer(index, config["indexer_types"][index] == "full",
                                 index >= config["first_k_dense_replace"])
    for index in range(layers, layers + config["num_nextn_predict_layers"]):
        yield from decoder_layer(index, True, True)
        layer = f"model.layers.{index}"
        yield from vector(f"{layer}.enorm.weight", hidden)
        yield from vector(f"{layer}.hnorm.weight", hidden)
        yield from vector(f"{layer}.shared_head.norm.weight", hidden)
        yield f"{layer}.eh_proj.weight", "BF16", [hidden, 2 * hidden]
    yield from vector("model.norm.weight", hidden)
    yield "lm_head.weight", "BF16", [config["vocab_size"], hidden]


def size_of(dtype, shape):
    size = BYTES[dtype]
    for dim in shape:
        size *= dim
    return size


def write_shard(path, members):
    header, offset = {"__metadata__": {"format": "pt"}}, 0
    for name, dtype, shape in members:
        end = offset + size_of(dtype, shape)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + offset)  # a hole: reads as zeros, takes no space


def write_checkpoint(config, folder, shards):
    """Returns the bytes of all tensors."""
    members = list(tensors(config))
    total = sum(size_of(dtype, shape) for _, dtype, shape in members)
    names = [f"model-{i + 1:05}-of-{shards:05}.safetensors" for i in range(shards)]
    parts, done = [[] for _ in range(shards)], 0
    for member in members:
        parts[min(shards - 1, done * shards // total)].append(member)
        done += size_of(*member[1:])
    weight_map = {}
    for name, part in zip(names, parts):
        write_shard(folder / name, part)
        weight_map |= {tensor: name for tensor, _, _ in part}
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, separators=(",", ":")))
    config = config | {"quantization_config": {
        "quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [BLOCK, BLOCK],
        "modules_to_not_convert": sorted({name.removesuffix(".weight").replace("indexer.weights_proj", "indexers_proj")
                                          for name, dtype, _ in members
                                          if dtype != "F8_E4M3" and not name.endswith("_scale_inv")})}}
    (folder / "config.json").write_text(json.dumps(config))
    return total


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--shards", type=int, default=141)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    total = write_checkpoint(json.loads(options.config.read_text()), options.folder, options.shards)
    on_disk = sum(os.stat(file).st_blocks * 512 for file in options.folder.iterdir())
    print(f"{total} bytes of tensors in {options.shards} files, {on_disk} on the disk")
    return 0


if __name__ == "__main__":
    sys.exit(main())
