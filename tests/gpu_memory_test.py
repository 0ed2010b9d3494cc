#!/usr/bin/env python3
"""What `atom plan --device cuda` announces is what a run takes, within 3 %; too little memory is one error with flags.

    tests/gpu_memory_test.py --atom build/atom

Two models with random weights, made from their configs alone. Exit code 77: there is no GPU. Standard library only.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

DENSE = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
         "num_hidden_layers": 8, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
         "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "tie_word_embeddings": False,
         "hidden_act": "silu", "torch_dtype": "bfloat16"}
EXPERTS = {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": 2048,
           "intermediate_size": 6144, "moe_intermediate_size": 768, "num_hidden_layers": 4, "num_attention_heads": 32,
           "num_key_value_heads": 4, "head_dim": 128, "num_experts": 128, "num_experts_per_tok": 8,
           "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": [], "vocab_size": 151936,
           "max_position_embeddings": 40960, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "hidden_act": "silu",
           "tie_word_embeddings": False, "torch_dtype": "bfloat16", "attention_bias": False,
           "use_sliding_window": False}
BATCH = 8


def atom(options, *args, log="error"):
    return subprocess.run([options.atom, *map(str, args)], text=True, capture_output=True,
                          env=dict(os.environ, ATOM_LOG=log))


def check(options, name, folder, flags):
    plan = atom(options, "plan", "--model", folder, "--device", "cuda", "--output", "json",
                "--max-num-seqs", BATCH, *flags)
    if "no GPU or no driver" in plan.stderr:
        print("skipped: no GPU")
        sys.exit(77)
    assert plan.returncode == 0, plan.stderr
    planned = json.loads(plan.stdout)["total_bytes"]
    run = atom(options, "bench", "--model", folder, "--load-format", "dummy", "--device", "cuda", "--prompt-tokens", 1500,
               "--decode-tokens", 8, "--context", 100, "--batch", BATCH, "--repeat", 1, *flags)
    assert run.returncode == 0, run.stderr
    row = next(json.loads(line) for line in run.stdout.splitlines() if '"memory"' in line)
    said, used = row["planned_bytes"], row["in_use_bytes"]
    print(f"{name} {' '.join(flags)}: planned {planned / 1e9:.3f} GB, at the run {said / 1e9:.3f}, used {used / 1e9:.3f}")
    assert abs(said - planned) < 0.01 * planned, "the plan and the run disagree"
    assert abs(used - planned) < 0.03 * used, "the plan is off by more than 3 %"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--atom", required=True)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as root:
        for name, config in {"dense": DENSE, "experts": EXPERTS}.items():
            folder = Path(root) / name
            folder.mkdir()
            (folder / "config.json").write_text(json.dumps(config))
            check(options, name, folder, ["--kv-cache-bytes", "2GiB", "--max-model-len", "4096"])
            check(options, name, folder, ["--gpu-memory-utilization", "0.3", "--max-model-len", "8192"])
        refused = atom(options, "generate", "--model", Path(root) / "dense", "--load-format", "dummy", "--device", "cuda",
                       "--token-ids", "1,2,3", "--kv-cache-bytes", "1000GiB")
        assert refused.returncode != 0
        lines = [line for line in refused.stderr.splitlines() if line.strip()]
        assert len(lines) == 1, refused.stderr
        for word in ("--kv-cache-bytes", "--gpu-memory-utilization", "--max-num-batched-tokens", "weights"):
            assert word in lines[0], (word, lines[0])
        print(lines[0])


if __name__ == "__main__":
    main()
