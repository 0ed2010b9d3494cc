#!/usr/bin/env python3
"""The table of docs/architectures.md: measures its figures again and compares, or writes it with --write.

Errors are the largest difference of a logit from that of transformers in float32 over the largest logit. "one rank" is
the worst over all goldens of the architecture; tp 2, pp 2 and ep 2 (experts dealt to two ranks) are of the golden named.
"prefix" is what the second turn of a conversation reused, of its prompt's tokens (engine/architectures_test.cc).
"MTP" is how many of the drafted tokens were accepted, where a golden has layers that draft (golden_mtp.json).

A figure may grow to --slack times the committed one, for machines whose kernels add in another order.
Standard library only.
"""

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
TABLE = HERE.parent / "docs" / "architectures.md"
COLUMNS = ["architecture", "goldens", "one rank", "golden", "tp 2", "pp 2", "ep 2", "prefix", "MTP"]
NOISE = 1e-6  # errors below this are not told apart
NONE = "–"
INTRODUCTION = """# Architectures

What each architecture was seen to do, measured on the tiny checkpoints of `tests/golden` by `tests/architecture_table.py`,
which explains the columns; `ctest -R architecture_table` measures again and fails if a figure has become worse. Write the
table anew with `tests/architecture_table.py --atom build/atom --engine-test build/engine_test --write`.

"""


def load_run_golden():
    spec = importlib.util.spec_from_file_location("run_golden", HERE / "golden" / "run_golden.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


run_golden = load_run_golden()


def error_of(atom, golden, flags=()):
    """A relative error, or None if atom refuses these flags for this model."""
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        (scratch / "model").mkdir()
        model = golden.model(scratch / "model")
        try:
            return run_golden.check_logits(golden, atom, model, ["--dtype", "float32", *flags], scratch, 2e-4)
        except run_golden.Failure as failure:
            if "exit 2" in str(failure):
                return None
            raise


def prefixes(engine_test):
    """Per architecture: the golden that the engine's test took, and "reused of all" tokens."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        done = subprocess.run([engine_test, "--gtest_filter=Architectures.*:All/Architecture.*",
                               f"--gtest_output=json:{report}"], capture_output=True, text=True, timeout=300)
        if done.returncode != 0:
            raise SystemExit(f"{engine_test} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        suites = json.loads(report.read_text())["testsuites"]
    found = {}
    for test in (test for suite in suites for test in suite["testsuite"]):
        if "architecture" in test:
            found[test["architecture"]] = (test["golden"], f"{test['cached_tokens']} of {test['prompt_tokens']}")
    return found


def acceptance(atom, folders):
    for folder in folders:
        cases = folder / "golden_mtp.json"
        if not cases.exists():
            continue
        case = json.loads(cases.read_text())[0]
        answer = json.loads(run_golden.run([
            atom, "generate", "--model", str(folder), "--token-ids", ",".join(map(str, case["prompt"])), "--max-tokens",
            str(len(case["tokens"])), "--temperature", "0", "--ignore-eos", "--dtype", "float32",
            "--num-speculative-tokens", str(case["k"]), "--output", "json"]))
        if answer["token_ids"] != case["tokens"]:
            raise run_golden.Failure(f"{folder.name}: other tokens with drafts than without")
        return f"{answer['speculation']['accepted']} of {answer['speculation']['drafted']}"
    return NONE


def measure(atom, engine_test):
    goldens = {}
    for config in sorted((HERE / "golden").glob("*/config*.json")):
        architecture = json.loads(config.read_text())["architectures"][0]
        goldens.setdefault(architecture, []).append(run_golden.FolderGolden(config))
    rows = {}
    taken = prefixes(engine_test)
    for architecture, some in sorted(goldens.items()):
        errors = [error_of(atom, golden) for golden in some]
        if None in errors or architecture not in taken:
            raise SystemExit(f"{architecture}: a golden is refused")
        name, prefix = taken[architecture]
        one = next(golden for golden in some if golden.name == name)
        row = {"architecture": f"`{architecture}`", "goldens": str(len(some)), "one rank": max(errors),
               "golden": f"`{name}`", "prefix": prefix,
               "MTP": acceptance(atom, sorted({golden.config.parent for golden in some}))}
        for column in ("tp 2", "pp 2"):
            row[column] = error_of(atom, one, ["--" + column.split()[0], "2"])
        config = json.loads(one.config.read_text())
        sparse = any("experts" in key for key in config | config.get("text_config", {}))
        row["ep 2"] = error_of(atom, one, ["--tp", "2", "--ep", "2"]) if sparse else None
        rows[row["architecture"]] = row
    return rows


def shown(value):
    return NONE if value is None else f"{value:.1e}" if isinstance(value, float) else value


def write(rows):
    lines = ["| " + " | ".join(COLUMNS) + " |", "|" + "---|" * len(COLUMNS)]
    lines += ["| " + " | ".join(shown(row[column]) for column in COLUMNS) + " |" for row in rows.values()]
    TABLE.write_text(INTRODUCTION + "\n".join(lines) + "\n")


def read():
    rows = {}
    for line in TABLE.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if len(cells) == len(COLUMNS) and cells[0].startswith("`"):
            rows[cells[0]] = dict(zip(COLUMNS, cells))
    return rows


def compare(measured, committed, slack):
    problems = [f"{name}: not in the table" for name in measured if name not in committed]
    problems += [f"{name}: in the table, but has no golden" for name in committed if name not in measured]
    for name in measured.keys() & committed.keys():
        for column in COLUMNS:
            now, then = measured[name][column], committed[name][column]
            if isinstance(now, float) and then != NONE:
                if not now <= max(NOISE, slack * float(then)):
                    problems.append(f"{name}: {column}: error {now:.1e}, {then} in the table")
            elif shown(now) != then:
                problems.append(f"{name}: {column}: {shown(now)}, {then} in the table")
    return problems


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--atom", required=True)
    parser.add_argument("--engine-test", required=True)
    parser.add_argument("--slack", type=float, default=4)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    for program in (options.atom, options.engine_test):
        if not os.access(program, os.X_OK):
            print(f"{program}: no such program", file=sys.stderr)
            return 2
    measured = measure(options.atom, options.engine_test)
    if options.write:
        write(measured)
        return 0
    problems = compare(measured, read(), options.slack)
    print("\n".join(problems) or f"{len(measured)} architectures as in {TABLE.relative_to(HERE.parent)}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
