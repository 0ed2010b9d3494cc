#!/usr/bin/env python3
"""Every #include goes down the layers of src/, or stays in its folder. Prints each edge that does not."""
import pathlib
import re
import sys

LAYERS = {"base": 0, "text": 1, "tensor": 1, "checkpoint": 2, "comm": 2, "cache": 2, "scheduler": 3, "ops": 3,
          "nn": 4, "models": 5, "runtime": 6, "engine": 7, "server": 8, "cli": 9}
# Edges that the numbers allow and the design does not.
FORBIDDEN = {("scheduler", "comm"), ("scheduler", "tensor"), ("scheduler", "checkpoint"), ("cache", "tensor"),
             ("server", "runtime"), ("models", "ops"), ("text", "tensor")}


def main() -> int:
    root = pathlib.Path(__file__).resolve().parent.parent / "src"
    bad = 0
    files = sorted(p for p in root.rglob("*") if p.suffix in (".h", ".cc", ".cu"))
    for path in files:
        folder = path.relative_to(root).parts[0]
        if folder not in LAYERS:
            print(f"src/{path.relative_to(root)}: folder {folder} has no layer")
            bad += 1
            continue
        for number, line in enumerate(path.read_text().splitlines(), 1):
            match = re.match(r'\s*#include "([^/"]+)/', line)
            if not match:
                continue
            target = match.group(1)
            if target == folder:
                continue
            if target not in LAYERS or LAYERS[target] >= LAYERS[folder] or (folder, target) in FORBIDDEN:
                print(f"src/{path.relative_to(root)}:{number}: {folder} may not include {target}")
                bad += 1
    print(f"{len(files)} files, {bad} forbidden includes")
    return 1 if bad else 0


sys.exit(main())
