#!/usr/bin/env python3
"""Shows a timeline that bench/gpu/timeline.cc wrote, a line per kernel.

    bench/gpu/timeline.py step.txt [first] [last]

`gap` is the time since all kernels before had ended (negative: it began early), `adds` what the kernel adds to it.
"""

import re
import subprocess
import sys


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        rows = [line.rstrip("\n").split("\t") for line in file]
    names = subprocess.run(["c++filt"], input="\n".join(row[5] for row in rows), text=True, capture_output=True,
                           check=True).stdout.split("\n")
    first = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    last = int(sys.argv[3]) if len(sys.argv) > 3 else len(rows)
    ended = 0.0
    print("row     begin      gap  duration      adds              grid   shared  kernel")
    for i, (begin, duration, grid, threads, shared, _) in enumerate(rows):
        begin, duration = float(begin), float(duration)
        if first <= i < last:
            name = re.sub(r"(\w+::|\(anonymous namespace\)::)+|^void |\(.*", "", names[i])
            print(f"{i:4} {begin:10.2f} {begin - ended:+8.2f} {duration:9.2f} {max(0.0, begin + duration - ended):9.2f} "
                  f"{grid + ',' + threads:>17} {shared:>8}  {name[:80]}")
        ended = max(ended, begin + duration)


if __name__ == "__main__":
    main()
