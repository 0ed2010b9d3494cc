#!/usr/bin/env python3
"""Builds, checks and times atom on one NVIDIA GPU and writes JSON: the source of the tables in bench/results.

    bench/gpu/run_h200.py --build build-gpu --out results.json

Steps (--steps picks some): build (make gpu), check (op matrix on the device, goldens, compute-sanitizer if it is there),
time (atom bench on dummy weights in the shapes of published models), table (only the rows that have an aim, beside it;
about five minutes), profile (the kernels of a step of 256 decodes by Nsight Compute). Needs nothing but Python's library;
the shapes below are those of the published config.json files.
"""

import argparse
import csv
import importlib.util
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

MODELS = {
    "llama-3.1-8b": {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
        "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
        "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "tie_word_embeddings": False,
        "hidden_act": "silu", "torch_dtype": "bfloat16", "bos_token_id": 128000, "eos_token_id": 128001,
        "rope_scaling": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                         "original_max_position_embeddings": 8192, "rope_type": "llama3"}},
    "qwen3-8b": {
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 4096, "intermediate_size": 12288,
        "num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
        "vocab_size": 151936, "max_position_embeddings": 40960, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0,
        "tie_word_embeddings": False, "hidden_act": "silu", "torch_dtype": "bfloat16", "attention_bias": False,
        "use_sliding_window": False, "bos_token_id": 151643, "eos_token_id": 151645},
}

FP8 = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128],
       "modules_to_not_convert": ["lm_head"]}
MODELS["qwen3-8b-fp8"] = MODELS["qwen3-8b"] | {"quantization_config": FP8}
MODELS["qwen3-30b-a3b"] = {
    "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": 2048,
    "intermediate_size": 6144, "moe_intermediate_size": 768, "num_hidden_layers": 48, "num_attention_heads": 32,
    "num_key_value_heads": 4, "head_dim": 128, "num_experts": 128, "num_experts_per_tok": 8, "norm_topk_prob": True,
    "decoder_sparse_step": 1, "mlp_only_layers": [], "vocab_size": 151936, "max_position_embeddings": 40960,
    "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "tie_word_embeddings": False, "hidden_act": "silu",
    "torch_dtype": "bfloat16", "attention_bias": False, "use_sliding_window": False, "bos_token_id": 151643,
    "eos_token_id": 151645}
MODELS["qwen3-30b-a3b-fp8"] = MODELS["qwen3-30b-a3b"] | {"quantization_config": FP8}
MODELS["gpt-oss-20b"] = {
    "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "hidden_size": 2880, "intermediate_size": 2880,
    "num_hidden_layers": 24, "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64,
    "num_local_experts": 32, "num_experts_per_tok": 4, "sliding_window": 128, "swiglu_limit": 7.0,
    "vocab_size": 201088, "max_position_embeddings": 131072, "initial_context_length": 4096, "rms_norm_eps": 1e-5,
    "rope_theta": 150000, "attention_bias": True, "tie_word_embeddings": False, "hidden_act": "silu",
    "eos_token_id": 200002,
    "layer_types": ["sliding_attention", "full_attention"] * 12,
    "rope_scaling": {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
                     "original_max_position_embeddings": 4096},
    "quantization_config": {"quant_method": "mxfp4",
                            "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router",
                                                       "model.embed_tokens", "lm_head"]}}
MODELS["gpt-oss-120b"] = MODELS["gpt-oss-20b"] | {
    "num_hidden_layers": 36, "num_local_experts": 128, "layer_types": ["sliding_attention", "full_attention"] * 18}
# GLM-5.2 in full width: its 3 dense layers and as many with experts as the name says. What one layer takes is the
# difference of two of these.
for sparse in (0, 1, 6):
    MODELS[f"glm-5.2-fp8-3+{sparse}"] = {
        "architectures": ["GlmMoeDsaForCausalLM"], "model_type": "glm_moe_dsa", "hidden_size": 6144,
        "intermediate_size": 12288, "moe_intermediate_size": 2048, "num_hidden_layers": 3 + sparse,
        "num_attention_heads": 64, "num_key_value_heads": 64, "q_lora_rank": 2048, "kv_lora_rank": 512,
        "qk_nope_head_dim": 192, "qk_rope_head_dim": 64, "v_head_dim": 256, "vocab_size": 154880,
        "n_routed_experts": 256, "num_experts_per_tok": 8, "n_shared_experts": 1, "n_group": 1, "topk_group": 1,
        "norm_topk_prob": True, "routed_scaling_factor": 2.5, "scoring_func": "sigmoid", "topk_method": "noaux_tc",
        "first_k_dense_replace": 3, "mlp_layer_types": ["dense"] * 3 + ["sparse"] * sparse,
        "index_n_heads": 32, "index_head_dim": 128, "index_topk": 2048, "indexer_rope_interleave": True,
        "indexer_types": (["full"] * 3 + ["shared", "shared", "shared", "full"] * 2)[:3 + sparse],
        "max_position_embeddings": 1048576, "rms_norm_eps": 1e-5, "tie_word_embeddings": False, "hidden_act": "silu",
        "rope_parameters": {"rope_theta": 8000000, "rope_type": "default"}, "rope_interleave": True,
        "attention_bias": False, "dtype": "bfloat16", "eos_token_id": [154820],
        "quantization_config": FP8 | {"modules_to_not_convert": [
            "lm_head", "model.embed_tokens", "model.layers.*.mlp.gate", "model.layers.*.self_attn.indexer.weights_proj"]}}
# Qwen3-Next-80B with fewer layers.
for layers in (4, 12):
    MODELS[f"qwen3-next-{layers}"] = {
        "architectures": ["Qwen3NextForCausalLM"], "model_type": "qwen3_next", "hidden_size": 2048,
        "intermediate_size": 5120, "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512,
        "num_hidden_layers": layers, "full_attention_interval": 4, "num_attention_heads": 16, "num_key_value_heads": 2,
        "head_dim": 256, "partial_rotary_factor": 0.25, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128,
        "linear_num_key_heads": 16, "linear_value_head_dim": 128, "linear_num_value_heads": 32, "num_experts": 512,
        "num_experts_per_tok": 10, "decoder_sparse_step": 1, "mlp_only_layers": [], "norm_topk_prob": True,
        "vocab_size": 151936, "max_position_embeddings": 262144, "rms_norm_eps": 1e-6, "rope_theta": 10000000.0,
        "tie_word_embeddings": False, "hidden_act": "silu", "attention_bias": False, "torch_dtype": "bfloat16",
        "bos_token_id": 151643, "eos_token_id": 151645}

# Flags of `atom bench`.
ONE = ["--context", "128", "--decode-tokens", "256", "--prompt-tokens", "0"]
LONG = ["--context", "16384", "--decode-tokens", "64", "--prompt-tokens", "0", "--batch"]
TOGETHER = ["--prompt-tokens", "1024", "--decode-tokens", "1024", "--max-num-batched-tokens", "8192"]
PROMPT = ["--prompt-tokens", "8192", "--decode-tokens", "0", "--max-num-batched-tokens", "8192"]

# model, flags
RUNS = [
    ("llama-3.1-8b", ONE),
    ("llama-3.1-8b", ["--context", "4096", "--decode-tokens", "128", "--prompt-tokens", "0"]),
    ("llama-3.1-8b", ["--context", "128", "--decode-tokens", "128", "--prompt-tokens", "0", "--batch", "8"]),
    ("llama-3.1-8b", ["--context", "128", "--decode-tokens", "128", "--prompt-tokens", "0", "--batch", "64"]),
    ("llama-3.1-8b", ["--context", "1024", "--decode-tokens", "128", "--prompt-tokens", "0", "--batch", "256"]),
    ("llama-3.1-8b", ["--context", "128", "--decode-tokens", "128", "--prompt-tokens", "0", "--batch", "1,64", "--temperature",
                      "0.8", "--top-p", "0.95"]),
    *(("llama-3.1-8b", ["--context", "4096", "--decode-tokens", "48", "--prompt-tokens", "0", "--batch", batch,
                        "--kv-cache-dtype", cache]) for batch in ("64", "256") for cache in ("auto", "fp8")),
    ("llama-3.1-8b", PROMPT),
    *(("llama-3.1-8b", ["--requests", "256", *TOGETHER, "--kv-cache-dtype", cache]) for cache in ("auto", "fp8")),
    ("qwen3-8b", ONE),
    ("qwen3-8b-fp8", ONE),
    ("qwen3-8b-fp8", ["--context", "128", "--decode-tokens", "64", "--prompt-tokens", "2048", "--batch", "32"]),
    ("qwen3-30b-a3b", ONE),
    ("qwen3-30b-a3b", ["--context", "1024", "--decode-tokens", "64", "--prompt-tokens", "2048", "--batch", "32"]),
    ("qwen3-30b-a3b-fp8", ONE),
    ("gpt-oss-20b", ONE),
    ("gpt-oss-120b", ONE),
    ("gpt-oss-120b", ["--context", "1024", "--decode-tokens", "128", "--prompt-tokens", "0", "--batch", "128"]),
    ("gpt-oss-120b", ["--requests", "128", *TOGETHER]),
    *((f"glm-5.2-fp8-3+{sparse}", LONG + [batch]) for batch in ("1", "32") for sparse in (0, 6)),
    ("glm-5.2-fp8-3+6", ["--context", "16384", "--decode-tokens", "64", "--prompt-tokens", "8192"]),
    ("qwen3-next-4", ["--context", "128", "--decode-tokens", "128", "--prompt-tokens", "0"]),
    ("qwen3-next-12", ["--context", "128", "--decode-tokens", "128", "--prompt-tokens", "8192"]),
]

SANITIZERS, SANITIZER_SECONDS = ("memcheck", "racecheck"), 150
SANITIZER_LAUNCHES = "40"  # that are looked at, of each test: some have thousands

PRODUCT_RATE = 750e12  # bf16 products on one H200, operations per second, measured
LLAMA_PROMPT_OPERATIONS = 2 * 6.979e9 + 4 * 4096 * 4096 * 32  # per token of 8,192: weights of the layers, attention


def rate(rows):
    row = rows[0]
    return row["output_tokens_per_second" if row["phase"] == "requests" else "tokens_per_second"]


def product_share(rows):
    return rows[0]["tokens_per_second"] * LLAMA_PROMPT_OPERATIONS / PRODUCT_RATE


def layer_ratio(rows):
    """Time of a GLM-5.2 layer with experts over that of its bytes at full bandwidth; rows without and with such layers."""
    without, with_experts = rows
    batch, layers = without["batch"], with_experts["layers"] - without["layers"]
    seconds = batch / with_experts["tokens_per_second"] - batch / without["tokens_per_second"]
    expert = 3 * 6144 * 2048 * (1 + 4 / 128**2)
    distinct = 256 * (1 - (1 - 8 / 256) ** batch)  # by uniform choice
    data = with_experts["bytes_per_step"] - without["bytes_per_step"] + layers * (distinct - 8) * expert
    return seconds / (data / (with_experts["bandwidth_gbs"] * 1e9))


# what, its runs (model, flags), the figure made of the first line of each, at least (or, of ratios, at most), aim
TABLE = [
    ("Llama-3.1-8B BF16, 1 sequence, tok/s", [("llama-3.1-8b", ONE)], rate, 235, 265),
    ("Qwen3-8B FP8, 1 sequence, tok/s", [("qwen3-8b-fp8", ONE)], rate, 390, 450),
    ("Qwen3-30B-A3B BF16, 1 sequence, tok/s", [("qwen3-30b-a3b", ONE)], rate, 350, 460),
    ("gpt-oss-20b MXFP4, 1 sequence, tok/s", [("gpt-oss-20b", ONE)], rate, 450, 700),
    ("gpt-oss-120b MXFP4, 1 sequence, tok/s", [("gpt-oss-120b", ONE)], rate, 350, 550),
    ("Llama-3.1-8B BF16, prompt of 8k, of the product rate", [("llama-3.1-8b", PROMPT)], product_share, 0.60, 0.75),
    ("GLM-5.2 FP8, a layer, 1 sequence, over its bytes' time",
     [("glm-5.2-fp8-3+0", LONG + ["1"]), ("glm-5.2-fp8-3+6", LONG + ["1"])], layer_ratio, 1.5, 1.2),
    ("GLM-5.2 FP8, a layer, 32 sequences, over its bytes' time",
     [("glm-5.2-fp8-3+0", LONG + ["32"]), ("glm-5.2-fp8-3+1", LONG + ["32"])], layer_ratio, 1.5, 1.2),
    ("Qwen3-Next-80B, 12 layers, 1 sequence, of the bound", [("qwen3-next-12", ONE)], lambda rows: rows[0]["fraction"],
     0.70, 0.85),
    ("Llama-3.1-8B BF16, 256 requests 1024/1024, output tok/s", [("llama-3.1-8b", ["--requests", "256", *TOGETHER])],
     rate, 12500, 20000),
    ("the same with an FP8 KV cache", [("llama-3.1-8b", ["--requests", "256", *TOGETHER, "--kv-cache-dtype", "fp8"])],
     rate, 12500, 20000),
    ("gpt-oss-120b MXFP4, 128 requests 1024/1024, output tok/s", [("gpt-oss-120b", ["--requests", "128", *TOGETHER])],
     rate, 5000, 7000),
    ("the same with an FP8 KV cache", [("gpt-oss-120b", ["--requests", "128", *TOGETHER, "--kv-cache-dtype", "fp8"])],
     rate, 5000, 7000),
]

GOLDENS = ["llama_*", "mistral_*", "mixtral_*", "qwen3_plain*", "qwen3_tied*", "qwen3_window*", "qwen3_moe_*",
           "glm4_moe_*", "gpt_oss_*", "minimax_m2*", "fp8_*", "mxfp4_*", "quark_*", "*.gguf", "deepseek_*",
           "glm_moe_dsa*", "kimi_*", "qwen3_5_*", "qwen3_next_*"]
# Rounded activations may choose another expert or other positions.
ROUTED = ["mixtral_*", "qwen3_moe_*", "glm4_moe_*", "gpt_oss_*", "minimax_m2*", "fp8_qwen3_moe*", "mxfp4_gpt_oss*", "quark_mxfp4_*",
          "fp8_deepseek*", "fp8_glm*", "deepseek_*", "glm_moe_dsa*", "kimi_*", "qwen3_5_moe*", "qwen3_5_r*",
          "qwen3_next_*"]


def run(command, **options):
    print("+", " ".join(map(str, command)), flush=True)
    start = time.monotonic()
    done = subprocess.run(list(map(str, command)), text=True, **options)
    print(f"  exit {done.returncode} after {time.monotonic() - start:.1f} s", flush=True)
    return done


def machine():
    info = {"python": platform.python_version()}
    if shutil.which("nvidia-smi"):
        query = "name,driver_version,memory.total,clocks.sm,clocks.mem,power.limit"
        info["gpu"] = subprocess.run(["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"], text=True,
                                     capture_output=True).stdout.strip()
    return info


def check(build, results):
    tests = run([build / "ops_test", "--gtest_filter=Gpu*", "--gtest_brief=1"], capture_output=True)
    results["op_matrix"] = {"exit": tests.returncode, "tail": tests.stdout[-2000:]}
    print(tests.stdout[-2000:])
    for name, flags in {"float32": [], "float32, small chunks": ["--max-num-batched-tokens", "7", "--block-size", "5"],
                        "bfloat16": ["--dtype", "bfloat16", "--limit", "0.06"]}.items():
        only = [part for pattern in GOLDENS for part in ("--only", pattern)]
        if name == "bfloat16":
            only += [part for pattern in ROUTED for part in ("--skip", pattern)]
        golden = run([sys.executable, ROOT / "tests/golden/run_golden.py", "--atom", build / "atom", "--device", "cuda",
                      *only, *flags], capture_output=True)
        results[f"goldens, {name}"] = {"exit": golden.returncode, "tail": golden.stdout[-6000:]}
        print(golden.stdout[-6000:])
    verify(build, results)


PRECISIONS = {"float32": ["--dtype", "float32"], "bfloat16": ["--dtype", "bfloat16"],
              "bfloat16, FP8 cache": ["--dtype", "bfloat16", "--kv-cache-dtype", "fp8"]}


def verify(build, results, precisions=PRECISIONS, device="cuda", jobs=12):
    """atom verify on every golden checkpoint in each precision."""
    models = sorted({p.parent for p in (ROOT / "tests/golden").glob("*/config.json")})

    def one(model, flags):
        done = subprocess.run([build / "atom", "verify", "--model", model, "--device", device, "--threads", "2", "--json",
                               *flags], text=True, capture_output=True)
        if done.returncode == 2 and ("caches latents" in done.stderr or "cannot be cut over" in done.stderr):
            return None  # refused by name
        told = json.loads(done.stdout) if done.stdout else {"ok": False, "problems": [done.stderr[-300:]]}
        return {"model": model.name, "ok": told["ok"], "problems": told["problems"],
                "worst": max((c["worst_error"] for c in told.get("contexts", [])), default=None)}

    with ThreadPoolExecutor(jobs) as pool:
        for name, flags in precisions.items():
            told = [t for t in pool.map(lambda m, f=flags: one(m, f), models) if t]
            bad = [t for t in told if not t["ok"]]
            results[f"verify, {name}"] = {"exit": int(bool(bad)), "models": len(told), "disagree": bad,
                                          "worst": max(t["worst"] for t in told if t["worst"] is not None)}
            print("verify,", name, json.dumps(results[f"verify, {name}"]), flush=True)


def sanitize(build, results):
    """memcheck and racecheck on the first launches of every op test, each test in a process of its own; kernels of the libraries
    (nvjet...) race by the tool's book and are not counted."""
    tool = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    if not os.access(tool, os.X_OK):
        results["sanitizer"] = "compute-sanitizer is not on this machine"
        return
    program = build / "ops_test"
    listed = subprocess.run([program, "--gtest_list_tests", "--gtest_filter=Gpu*"], text=True, capture_output=True).stdout
    tests, suite = [], ""
    for line in listed.splitlines():
        if line.startswith("  "):
            tests.append(suite + line.split()[0])
        elif line.endswith("."):
            suite = line

    def looked_at(check_tool, test, limits):
        """How the test ended and what the tool said of atom's own kernels."""
        try:
            done = subprocess.run([tool, "--tool", check_tool, *limits, "--error-exitcode", "9", program, f"--gtest_filter={test}"],
                                  text=True, capture_output=True, timeout=SANITIZER_SECONDS)
            said, outcome = done.stdout + done.stderr, "passed" if "[  PASSED  ] 1 test" in done.stdout else "failed"
        except subprocess.TimeoutExpired as late:
            said = ((late.stdout or b"") + (late.stderr or b"")).decode()
            outcome = f"not done after {SANITIZER_SECONDS} s"
        reports = re.findall(r"(?:Race reported between .*? at |Invalid __|Program hit |Internal Sanitizer).*", said)
        return outcome, sorted({r[:240] for r in reports if "nvjet" not in r and "cublas" not in r})

    def one(check_tool, test):
        outcome, reports = looked_at(check_tool, test, ["--launch-count", SANITIZER_LAUNCHES])
        if any("Internal Sanitizer" in r for r in reports):  # its own, at clusters that start behind the last launch it looks at
            outcome, reports = looked_at(check_tool, test, [])
        if outcome == "passed" and not reports:
            outcome = "clean"
        return {"test": test, "outcome": outcome, **({"reports": reports[:8]} if reports else {})}

    with ThreadPoolExecutor(12) as pool:
        for check_tool in SANITIZERS:
            outcomes = list(pool.map(lambda test, by=check_tool: one(by, test), tests))
            clean = sum(o["outcome"] == "clean" for o in outcomes)
            others = [o for o in outcomes if o["outcome"] != "clean"]
            results[check_tool] = {"tests": len(tests), "clean": clean, "others": others}
            print(check_tool, clean, "of", len(tests), "clean;", json.dumps(others), flush=True)


def bench(build, results, folder, name, flags, repeat):
    """The lines that atom bench gives; none if it fails."""
    path = Path(folder) / name
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps(MODELS[name]))
    times = "1" if "--requests" in flags else repeat
    done = run([build / "atom", "bench", "--model", path, "--load-format", "dummy", "--device", "cuda", "--repeat", times,
                *flags], capture_output=True)
    if done.returncode != 0:
        results[f"bench {name} {' '.join(flags)}"] = {"exit": done.returncode, "tail": done.stderr[-1000:]}
        print(done.stderr[-1000:])
        return []
    layers = MODELS[name]["num_hidden_layers"]
    lines = [{"model": name, "layers": layers, "flags": flags, **json.loads(line)} for line in done.stdout.splitlines()]
    for line in lines:
        print(json.dumps(line), flush=True)
    results.setdefault("bench", []).extend(lines)
    return lines


def measure(build, results, only, repeat, save):
    with tempfile.TemporaryDirectory() as folder:
        for name, flags in RUNS:
            if not only or only in name:
                bench(build, results, folder, name, flags, repeat)
                save()


def fill_table(build, results, only, repeat, save):
    results.setdefault("table", [])
    with tempfile.TemporaryDirectory() as folder:
        for what, runs, figure, least, aim in TABLE:
            if only and not any(only in name for name, _ in runs):
                continue
            lines = [bench(build, results, folder, name, flags, repeat) for name, flags in runs]
            value = round(figure([line[0] for line in lines]), 3) if all(lines) else None
            met = value is not None and (value <= least if figure is layer_ratio else value >= least)
            results["table"].append({"what": what, "value": value, "asked": least, "aim": aim, "met": met})
            print(f"| {what} | {value} | {least} | {aim} | {'met' if met else 'not met'} |", flush=True)
            save()
    beside_transformers(results)
    save()


def beside_transformers(results):
    """How many times as fast as transformers with a static cache and torch.compile the first row is; needs torch."""
    own = [line for line in results.get("bench", []) if line["model"] == "llama-3.1-8b" and line["flags"] == ONE]
    if not own or importlib.util.find_spec("torch") is None:
        return
    done = run([sys.executable, ROOT / "bench/gpu/transformers_rate.py", "--model", "llama-3.1-8b"], capture_output=True)
    if done.returncode != 0:
        results["transformers"] = {"exit": done.returncode, "tail": done.stderr[-1000:]}
        return
    results["transformers"] = json.loads(done.stdout.splitlines()[-1])
    value = round(rate(own) / results["transformers"]["tokens_per_second"], 2)
    row = {"what": "Llama-3.1-8B BF16, 1 sequence, times transformers (static cache, torch.compile)", "value": value, "asked": 1.3,
           "aim": None, "met": value >= 1.3}
    results["table"].append(row)
    print(f"| {row['what']} | {value} | 1.3 | | {'met' if row['met'] else 'not met'} |", flush=True)


PROFILE = {"us": "gpu__time_duration.sum", "memory %": "dram__throughput.avg.pct_of_peak_sustained_elapsed",
           "SM %": "sm__throughput.avg.pct_of_peak_sustained_elapsed", "second cache %": "lts__throughput.avg.pct_of_peak_sustained_elapsed",
           "occupancy %": "sm__warps_active.avg.pct_of_peak_sustained_active", "GHz": "gpc__cycles_elapsed.avg.per_second"}


def profile(build, results, save):
    """The kernels of a step of 256 decodes at 1,536 tokens, two layers of Llama-3.1-8B, each alone (Nsight Compute)."""
    tool = shutil.which("ncu") or "/usr/local/cuda/bin/ncu"
    if not os.access(tool, os.X_OK):
        results["profile"] = "ncu is not on this machine"
        return
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(MODELS["llama-3.1-8b"] | {"num_hidden_layers": 2}))
        for cache in ("auto", "fp8"):
            done = run([tool, "--profile-from-start", "off", "--graph-profiling", "node", "--clock-control", "none",
                        "--csv", "--page", "raw", "--print-units", "base", "--metrics", ",".join(PROFILE.values()),
                        build / "atom", "bench", "--model", folder, "--load-format", "dummy", "--device", "cuda",
                        "--repeat", "1", "--batch", "256", "--context", "1536", "--decode-tokens", "4", "--prompt-tokens", "0",
                        "--max-num-batched-tokens", "16384", "--gpu-memory-utilization", "0.5", "--kv-cache-dtype", cache],
                       capture_output=True)
            rows = list(csv.DictReader(line for line in done.stdout.splitlines() if line.startswith('"')))[1:]  # the first: units
            ends = [i for i, row in enumerate(rows) if "argmax" in row["Kernel Name"]]
            if done.returncode != 0 or len(ends) < 2:
                results[f"profile, cache {cache}"] = {"exit": done.returncode or 1, "tail": (done.stdout + done.stderr)[-2000:]}
                print((done.stdout + done.stderr)[-2000:])
                continue
            kernels = []
            for row in rows[ends[-2] + 1:ends[-1] + 1]:
                told = {what: float(row[metric].replace(",", "")) for what, metric in PROFILE.items()}
                told |= {"us": told["us"] / 1e3, "GHz": told["GHz"] / 1e9}
                kernels.append({"kernel": row["Kernel Name"][:100], "grid": row["Grid Size"]} | {k: round(v, 2) for k, v in told.items()})
                print(json.dumps(kernels[-1]), flush=True)
            results[f"profile, cache {cache}"] = kernels
            save()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=lambda path: Path(path).resolve(), default=ROOT / "build-gpu")
    parser.add_argument("--steps", default="build,check,time,sanitize")
    parser.add_argument("--out", type=Path, default=Path("h200.json"))
    parser.add_argument("--only", default="", help="models whose name holds this")
    parser.add_argument("--repeat", default="3")
    options = parser.parse_args()
    steps = options.steps.split(",")
    results = {"machine": machine()}
    if "build" in steps and run(["make", "-C", ROOT, "gpu"]).returncode != 0:
        return 1

    def save():  # after each step, so that a run cut short leaves what it has
        options.out.write_text(json.dumps(results, indent=1))

    if "check" in steps:
        check(options.build, results)
        save()
    if "time" in steps:
        measure(options.build, results, options.only, options.repeat, save)
    if "table" in steps:
        fill_table(options.build, results, options.only, options.repeat, save)
    if "profile" in steps:
        profile(options.build, results, save)
    if "sanitize" in steps:
        sanitize(options.build, results)
    save()
    failed = [name for name, value in results.items() if isinstance(value, dict) and value.get("exit")]
    print("failed:", ", ".join(failed) if failed else "nothing")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
