#!/usr/bin/env python3
"""What docs/cases.md and docs/architectures.md name exists: tests, golden folders, scripts, architectures."""

import fnmatch
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def known_names() -> set[str]:
    names = set()
    for source in (ROOT / "src").rglob("*_test.cc"):
        names |= {f"{suite}.{test}" for suite, test in
                  re.findall(r"^TEST(?:_P|_F)?\((\w+),\s*(\w+)\)", source.read_text(), re.MULTILINE)}
    for script in (ROOT / "tests").rglob("*_test.py"):
        names |= set(re.findall(r"^(?:    def|class) (\w+)", script.read_text(), re.MULTILINE))
    names |= {path.name for path in (ROOT / "tests" / "golden").iterdir() if path.is_dir()}
    for path in (ROOT / "tests" / "data" / "scheduler").iterdir():
        names |= {path.name, path.stem}
    return names


def main() -> int:
    names, problems = known_names(), []
    for row in (ROOT / "docs" / "cases.md").read_text().splitlines():
        if not re.match(r"\| [A-Z]+-\d", row):
            continue
        for name in re.findall(r"`([^`]+)`", row.split("|", 3)[3]):
            if name.startswith("-") or "::" in name or name == "fuzz":
                continue
            # `a:case` is a case of golden folder a, `script: test` a test of a Python script.
            parts = [name.split(":")[0]] if re.match(r"\w+\*?:\S", name) else name.split(": ")[-1:]
            if not all(any(fnmatch.fnmatch(known, part) for known in names) for part in parts):
                problems.append(f"docs/cases.md: {row.split('|')[1].strip()}: there is no {name}")
    registry = (ROOT / "src" / "models" / "registry.cc").read_text()
    table = (ROOT / "docs" / "architectures.md").read_text()
    problems += [f"docs/architectures.md: {name} is missing" for name in re.findall(r'X\("(\w+)"', registry)
                 if f"`{name}`" not in table]
    print("\n".join(problems) or "what the documents name exists")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
