#!/usr/bin/env python3
"""Runs `atom generate` on SmolLM2-135M-Instruct and compares with the greedy goldens in data/smollm2.

The GGUF is what tools/fetch_demo_model.sh fetches; --hf takes the folder that make_smollm2_hf.py writes. Prompts go
in as text and conversations as messages, so tokenizer and chat template are covered too. Tokens must be equal; from a
step on whose two best logits were closer than 0.001 a difference is counted as a near tie, not as a failure.
Anything after `--` is handed to atom as it stands. Standard library only.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
NEAR_TIE = 1e-3


class Failure(Exception):
    pass


def generate(atom: str, model: str, entry: dict, flags: list[str]) -> dict:
    command = [atom, "generate", "--model", model, "--max-tokens", str(entry["max_tokens"]), "--temperature", "0",
               "--output", "json", *flags]
    with tempfile.TemporaryDirectory() as folder:
        if "messages" in entry:
            path = Path(folder) / "messages.json"
            path.write_text(json.dumps(entry["messages"]), encoding="utf-8")
            command += ["--messages", str(path)]
        else:
            command += ["--prompt", entry["prompt"]]
        done = subprocess.run(command, capture_output=True, timeout=600)
    if done.returncode != 0:
        raise Failure(f"exit {done.returncode}: {done.stderr.decode(errors='replace').strip()[-500:]}")
    return json.loads(done.stdout)


def compare(entry: dict, answer: dict) -> bool:
    """True if the tokens are equal, False if they part at a near tie."""
    prompt_tokens = answer.get("usage", {}).get("prompt_tokens", len(entry["input_ids"]))
    if prompt_tokens != len(entry["input_ids"]):
        raise Failure(f"the prompt became {prompt_tokens} tokens, not {len(entry['input_ids'])}")
    got, want = answer["token_ids"], entry["output_ids"]
    same = next((i for i, (a, b) in enumerate(zip(got, want)) if a != b), min(len(got), len(want)))
    stopped = entry["finish_reason"] == "stop"
    if got[:len(want)] == want and len(got) <= len(want) + stopped:  # the id that stopped it may be there
        if answer["finish_reason"] != entry["finish_reason"]:
            raise Failure(f"finish_reason is {answer['finish_reason']!r}, not {entry['finish_reason']!r}")
        if answer["text"].rstrip("\ufffd") != entry["text"].rstrip("\ufffd"):  # a character may be cut at the end
            raise Failure(f"the text is {answer['text']!r}, not {entry['text']!r}")
        return True
    if entry["gaps"][min(same, len(entry["gaps"]) - 1)] < NEAR_TIE:
        return False
    raise Failure(f"parts at token {same}: {got[same:same + 4]}, not {want[same:same + 4]}"
                  f" (gap {entry['gaps'][min(same, len(entry['gaps']) - 1)]})")


def run(atom: str, model: str, entries: list[dict], flags: list[str]) -> int:
    failed = near = 0
    for number, entry in enumerate(entries):
        label = entry.get("prompt") or entry["messages"][-1]["content"]
        try:
            equal = compare(entry, generate(atom, model, entry, flags))
            near += not equal
        except (Failure, OSError, subprocess.TimeoutExpired, ValueError, KeyError) as problem:
            failed += 1
            print(f"FAILED {number:2} {label[:40]!r}: {problem}", flush=True)
    print(f"{model}: {len(entries) - failed - near} of {len(entries)} equal, {near} near ties, {failed} failed", flush=True)
    return failed


def main() -> int:
    home = Path(os.environ.get("ATOM_HOME", Path.home() / ".cache" / "atom"))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--atom", default=str(HERE.parent / "build" / "atom"))
    parser.add_argument("--gguf", default=str(home / "models" / NAME))
    parser.add_argument("--hf", help="folder made by make_smollm2_hf.py; not run if not given")
    parser.add_argument("--first", type=int, help="only the first N goldens")
    arguments = sys.argv[1:]
    extra = arguments[arguments.index("--") + 1:] if "--" in arguments else []
    options = parser.parse_args(arguments[:arguments.index("--")] if "--" in arguments else arguments)
    for path in (options.atom, options.gguf, options.hf):
        if path is not None and not os.path.exists(path):
            print(f"{path}: not found", file=sys.stderr)
            # Without the demo model there is nothing to test: 77 is what ctest takes for skipped.
            return 77 if path == options.gguf and "--gguf" not in arguments else 2
    golden = json.loads((HERE / "data" / "smollm2" / "greedy.json").read_text(encoding="utf-8"))
    flags = ["--dtype", golden["dtype"], *extra]
    models = [options.gguf] + ([options.hf] if options.hf else [])
    failed = sum(run(options.atom, model, golden["entries"][:options.first], flags) for model in models)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
