#!/usr/bin/env python3
"""Runs `atom score` and `atom generate` on every golden checkpoint and compares with what transformers computed.

Covers the folders beside this script (make_golden.py describes them) and the .gguf files in ../data/gguf.
Logits must agree within --limit (largest difference over largest value). In float32 the greedy continuation must be
equal too, up to the first step whose two best logits lie closer than a thousandth of the largest logit.
Anything after `--` is handed to atom as it stands. Exit code 77: the device asked for is not on this machine.
Standard library only.
"""

import argparse
import array
import fnmatch
import json
import os
import struct
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
NEAR_TIE = 1e-3
TYPES = {"F32": "f", "I64": "q", "I32": "i"}


def read_safetensors(path: Path) -> tuple[dict[str, tuple[list[int], array.array]], dict[str, str]]:
    """Tensors by name as (shape, values), and the metadata."""
    data = path.read_bytes()
    (header_size,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8:8 + header_size])
    metadata = header.pop("__metadata__", {})
    tensors = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        values = array.array(TYPES[entry["dtype"]])
        values.frombytes(data[8 + header_size + begin:8 + header_size + end])
        tensors[name] = (entry["shape"], values)
    return tensors, metadata


class Golden:
    """One configuration to run: where its model is, and what it must compute."""

    def __init__(self, name: str, golden: Path):
        self.name = name
        tensors, metadata = read_safetensors(golden)
        self.input_ids = tensors["input_ids"][1].tolist()
        self.shape, self.logits = tensors["logits"]
        self.greedy_ids = tensors["greedy_ids"][1].tolist()
        self.greedy_gap = tensors["greedy_gap"][1].tolist()
        self.eos_at = int(metadata["eos_at"]) if "eos_at" in metadata else None
        self.scale = max(map(abs, self.logits))

    def model(self, scratch: Path) -> Path:
        raise NotImplementedError


class FolderGolden(Golden):
    def __init__(self, config: Path):
        case = config.name.removeprefix("config").removesuffix(".json")
        self.config = config
        golden = config.with_name(f"golden{case.split('.')[0]}.safetensors")
        super().__init__(config.parent.name + (f":{case.lstrip('_.')}" if case else ""), golden)

    def model(self, scratch: Path) -> Path:
        if self.config.name == "config.json":
            return self.config.parent
        for file in self.config.parent.iterdir():
            if file.name.startswith("model") or file.name == "generation_config.json":
                (scratch / file.name).symlink_to(file)
        (scratch / "config.json").symlink_to(self.config)
        return scratch


class GgufGolden(Golden):
    def __init__(self, path: Path):
        self.path = path
        super().__init__(path.name, path.with_suffix(".golden.safetensors"))

    def model(self, scratch: Path) -> Path:
        return self.path


class Failure(Exception):
    pass


def run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    if done.returncode != 0:
        raise Failure(f"{command[1]}: exit {done.returncode}: {done.stderr.strip()[-500:]}")
    return done.stdout


def check_logits(golden: Golden, atom: str, model: Path, flags: list[str], scratch: Path, limit: float) -> float:
    out = scratch / "out.safetensors"
    ids = ",".join(map(str, golden.input_ids))
    run([atom, "score", "--model", str(model), "--token-ids", ids, "--logits-out", str(out), *flags])
    shape, got = read_safetensors(out)[0]["logits"]
    if shape != golden.shape:
        raise Failure(f"score: logits are {shape}, not {golden.shape}")
    worst = 0.0
    for a, b in zip(got, golden.logits):
        difference = abs(a - b)
        if not difference <= worst:  # also true of NaN
            worst = difference
    error = worst / golden.scale
    if not error <= limit:
        raise Failure(f"score: error {error:.2e} is over {limit:.0e}")
    return error


def generate(golden: Golden, atom: str, model: Path, flags: list[str]) -> dict:
    ids = ",".join(map(str, golden.input_ids))
    return json.loads(run([atom, "generate", "--model", str(model), "--token-ids", ids, "--max-tokens",
                           str(len(golden.greedy_ids)), "--temperature", "0", "--output", "json", *flags]))


def check_greedy(golden: Golden, got: list[int]) -> str:
    want = golden.greedy_ids
    same = next((i for i, (a, b) in enumerate(zip(got, want)) if a != b), min(len(got), len(want)))
    if same == len(want) == len(got):
        return f"{same}/{same}"
    if same == len(got) or same == len(want):
        raise Failure(f"generate: {len(got)} tokens, not {len(want)}")
    if golden.greedy_gap[same] > NEAR_TIE * golden.scale:
        raise Failure(f"generate: token {same} is {got[same]}, not {want[same]}")
    return f"{same}/{len(want)} near tie"


def check_stop(golden: Golden, answer: dict) -> None:
    before = golden.greedy_ids[:golden.eos_at]
    if answer["token_ids"] not in (before, golden.greedy_ids[:golden.eos_at + 1]):
        raise Failure(f"generate: did not stop at end-of-sequence id {golden.greedy_ids[golden.eos_at]}")
    if answer["finish_reason"] != "stop":
        raise Failure(f"generate: finish_reason is {answer['finish_reason']!r}, not 'stop'")


def check(golden: Golden, options, flags: list[str]) -> tuple[float, str]:
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        model_folder = scratch / "model"
        model_folder.mkdir()
        model = golden.model(model_folder)
        error = check_logits(golden, options.atom, model, flags, scratch, options.limit)
        if options.dtype != "float32":
            return error, "-"
        greedy = check_greedy(golden, generate(golden, options.atom, model, [*flags, "--ignore-eos"])["token_ids"])
        if golden.eos_at is not None:
            check_stop(golden, generate(golden, options.atom, model, flags))
        return error, greedy


def find_goldens(patterns: list[str], skipped: list[str]) -> list[Golden]:
    # Goldens of speculation (cases_mtp.py) are followed by the engine's own tests.
    configs = [config for config in sorted(HERE.glob("*/config*.json")) if "_mtp" not in config.parent.name]
    goldens = [FolderGolden(config) for config in configs]
    goldens += [GgufGolden(path) for path in sorted((HERE.parent / "data" / "gguf").glob("*.gguf"))]

    def matches(golden: Golden, some: list[str]) -> bool:
        return any(fnmatch.fnmatch(golden.name, pattern) for pattern in some)
    return [g for g in goldens if (not patterns or matches(g, patterns)) and not matches(g, skipped)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--atom", default=str(HERE.parents[1] / "build" / "atom"), help="the program to test")
    parser.add_argument("--only", action="append", default=[], metavar="PATTERN", help="such as 'llama_rope*', '*.gguf'")
    parser.add_argument("--skip", action="append", default=[], metavar="PATTERN")
    parser.add_argument("--limit", type=float, default=2e-4, help="largest relative error of the logits (2e-4)")
    parser.add_argument("--dtype", default="float32", help="other than float32, only the logits are compared")
    parser.add_argument("--jobs", type=int, default=1, help="goldens that run at the same time (1)")
    handed_on = ("--device", "--tp", "--pp", "--ep", "--max-num-batched-tokens", "--block-size", "--threads")
    for flag in handed_on:
        parser.add_argument(flag, help="handed to atom")
    arguments = sys.argv[1:]
    extra = arguments[arguments.index("--") + 1:] if "--" in arguments else []
    options = parser.parse_args(arguments[:arguments.index("--")] if "--" in arguments else arguments)
    if not os.access(options.atom, os.X_OK):
        print(f"{options.atom}: no such program; build it or give --atom", file=sys.stderr)
        return 2
    flags = ["--dtype", options.dtype]
    for flag in handed_on:
        value = getattr(options, flag.lstrip("-").replace("-", "_"))
        flags += [flag, value] if value is not None else []
    goldens = find_goldens(options.only, options.skip)
    if not goldens:
        print("no golden matches", file=sys.stderr)
        return 2
    failed, worst = 0, 0.0
    width = max(len(g.name) for g in goldens)
    print(f"{'golden':{width}}  {'tokens':>6}  {'error':>8}  greedy")
    with ThreadPoolExecutor(options.jobs) as pool:
        for golden, outcome in [(g, pool.submit(check, g, options, flags + extra)) for g in goldens]:
            row = f"{golden.name:{width}}  {len(golden.input_ids):6}"
            try:
                error, greedy = outcome.result()
                worst = max(worst, error)
                print(f"{row}  {error:8.1e}  {greedy}", flush=True)
            except Failure as problem:
                if "no GPU or no driver" in str(problem):
                    print(problem, file=sys.stderr)
                    pool.shutdown(cancel_futures=True)
                    return 77
                failed += 1
                print(f"{row}    FAILED  {problem}", flush=True)
            except (OSError, subprocess.TimeoutExpired, ValueError, KeyError) as problem:
                failed += 1
                print(f"{row}    FAILED  {problem}", flush=True)
    print(f"{len(goldens) - failed} of {len(goldens)} agree; worst error of these {worst:.1e}, limit {options.limit:.0e}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
