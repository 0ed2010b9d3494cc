#!/usr/bin/env python3
"""Checks and times several ranks on the GPUs of a machine; on one GPU two ranks share it, and nothing is timed.

    bench/gpu/run_ranks.py --build build-gpu --out ranks.json [--nccl]

Tests of collectives and of the ops that reduce; atom verify on every golden checkpoint with --tp, --pp and --ep 2 in float32 and
bfloat16 (about two minutes a line); memcheck; then, on two GPUs, the all-reduces and Llama-3.1-8B on one and on two (dummy
weights). --nccl times NCCL's all-reduces through PyTorch beside them. Needs the tests' binaries in the build folder, no network.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from run_h200 import MODELS, PRECISIONS, ROOT, machine, verify

NCCL = """
import os, time, torch, torch.distributed as dist, torch.multiprocessing as mp
def go(r):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29511")
    torch.cuda.set_device(r)
    dist.init_process_group("nccl", rank=r, world_size=2, device_id=torch.device("cuda", r))
    for n in (4096, 8192, 32 * 4096, 1 << 20, 1 << 24):
        x, s, best = torch.zeros(n, device="cuda"), torch.cuda.Stream(), 1e9
        with torch.cuda.stream(s):
            for _ in range(5): dist.all_reduce(x)
            s.synchronize()
            g = torch.cuda.CUDAGraph()
            with torch.cuda.graph(g, stream=s):
                for _ in range(100): dist.all_reduce(x)
            for _ in range(10):
                s.synchronize(); t = time.perf_counter(); g.replay(); s.synchronize()
                best = min(best, time.perf_counter() - t)
        if r == 0: print(f"{n * 4:9} bytes  {best * 1e4:8.2f} us  {n * 4e-7 / best:7.1f} GB/s", flush=True)
    os._exit(0)
if __name__ == "__main__": mp.spawn(go, nprocs=2)
"""
AXES = {"tp": ["--tp", "2"], "pp": ["--pp", "2"], "ep": ["--tp", "2", "--ep", "2"]}


class Results:
    def __init__(self, out: Path):
        self.out, self.rows = out, {"machine": machine()}

    def run(self, name: str, command: list, seconds: int) -> bool:
        start = time.monotonic()
        try:
            done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=seconds)
            code, text = done.returncode, done.stdout + done.stderr
        except subprocess.TimeoutExpired:
            code, text = 124, f"took more than {seconds} s"
        self.rows[name] = {"exit": code, "seconds": round(time.monotonic() - start, 1), "tail": text[-6000:]}
        last = "\n".join(text.strip().splitlines()[-8:])
        print(f"== {name}: exit {code} after {self.rows[name]['seconds']} s\n{last}", flush=True)
        self.out.write_text(json.dumps(self.rows, indent=1))  # so that a run cut short leaves what it has
        return code == 0


def gpus() -> int:
    tool = shutil.which("nvidia-smi")
    return len(subprocess.run([tool, "-L"], capture_output=True, text=True).stdout.splitlines()) if tool else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=lambda path: Path(path).resolve(), default=ROOT / "build-gpu")
    parser.add_argument("--out", type=Path, default=Path("ranks.json"))
    parser.add_argument("--axes", default="tp,pp,ep")
    parser.add_argument("--jobs", default="3", help="checkpoints at the same time; many hold each other up: kernels wait for other ranks'")
    parser.add_argument("--nccl", action="store_true")
    options = parser.parse_args()
    count, atom, results = gpus(), options.build / "atom", Results(options.out)
    if count == 0:
        print("no GPU", file=sys.stderr)
        return 77
    device = "cuda" if count > 1 else "cuda:0,0"
    # Without those of ranks on the CPU.
    results.run("collectives", [options.build / "comm_test", "--gtest_filter=DeviceCommunicator*", "--gtest_brief=1"], 60)
    results.run("ops that reduce", [options.build / "ops_test", "--gtest_filter=DeviceReduce*", "--gtest_brief=1"], 30)
    for axis in options.axes.split(","):
        precisions = {f"{name}, {axis} 2": [*PRECISIONS[name], *AXES[axis]] for name in ("float32", "bfloat16")}
        verify(options.build, results.rows, precisions, device, int(options.jobs))
    if tool := shutil.which("compute-sanitizer"):
        results.run("memcheck", [tool, "--tool", "memcheck", "--error-exitcode", "9", options.build / "comm_test",
                                 "--gtest_filter=*Rehearsal*:*AllGather*:*Messages*:*HostMemory*"], 60)
    if count > 1:
        results.run("all-reduce", [options.build / "all_reduce_bench", "0", "1"], 30)
        with tempfile.TemporaryDirectory() as folder:
            if options.nccl:
                script = Path(folder) / "nccl.py"
                script.write_text(NCCL)
                results.run("all-reduce, NCCL", [sys.executable, script], 60)
            (Path(folder) / "config.json").write_text(json.dumps(MODELS["llama-3.1-8b"]))
            for ranks in ([], ["--tp", "2"], ["--pp", "2"]):
                results.run(f"Llama-3.1-8B {' '.join(ranks)}".strip(),
                            [atom, "bench", "--model", folder, "--load-format", "dummy", "--device", "cuda", *ranks,
                             "--context", "128", "--decode-tokens", "128", "--prompt-tokens", "4096",
                             "--max-num-batched-tokens", "4096", "--repeat", "2"], 90)
    failed = [name for name, row in results.rows.items() if row.get("exit")]
    print("failed:", ", ".join(failed) if failed else "nothing")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
