#!/usr/bin/env python3
"""What the server adds to the engine: decode tokens per second of `atom bench` and of streams through HTTP, in turns.

Usage: overhead.py --atom build/atom [--model M] [--streams 64] [--tokens 128] [--rounds 3]

Prints one JSON line: both rates, their ratio, and the share of the server's processor time that its HTTP threads took,
which other work on the machine does not distort. The client runs on the same machine and takes its part of it.
"""
import argparse
import json
import os
import pathlib
import selectors
import socket
import statistics
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests" / "server"))
from atom_server import Server  # noqa: E402


def engine_rate(args):
    command = [args.atom, "bench", "--prompt-tokens", "0", "--decode-tokens", str(args.tokens), "--batch", str(args.streams), "--repeat", "1",
               "--no-prefix-caching"]
    if args.model:
        command += ["--model", args.model]
    line = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[-1]
    return json.loads(line)["tokens_per_second"]


def stream_rate(port, name, args):
    """Tokens per second from the moment when every stream has begun."""
    body = json.dumps({"model": name, "prompt": [1], "max_tokens": args.tokens, "temperature": 0, "ignore_eos": True, "stream": True}).encode()
    request = (b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
               % len(body) + body)
    selector = selectors.DefaultSelector()
    begun = set()
    for i in range(args.streams):
        connection = socket.create_connection(("127.0.0.1", port))
        connection.sendall(request)
        selector.register(connection, selectors.EVENT_READ, i)
    chunks = at_start = 0
    start = end = 0.0
    while selector.get_map():
        for key, _ in selector.select():
            data = key.fileobj.recv(65536)
            if not data:
                selector.unregister(key.fileobj)
                key.fileobj.close()
                continue
            new = data.count(b'"text_completion"')
            chunks += new
            if new:
                end = time.monotonic()
                begun.add(key.data)
            if len(begun) == args.streams and not start:
                start, at_start = end, chunks
    return (chunks - at_start) / (end - start)


def thread_seconds(pid):
    """Processor seconds of the HTTP threads and of all threads."""
    http = total = 0
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        stat = (task / "stat").read_text()
        fields = stat.rsplit(")", 1)[1].split()
        ticks = int(fields[11]) + int(fields[12])
        total += ticks
        http += ticks if "(atom-http)" in stat else 0
    hertz = os.sysconf("SC_CLK_TCK")
    return http / hertz, total / hertz


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--atom", required=True)
    parser.add_argument("--model")
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--no-engine", action="store_true", help="the server's side alone")
    args = parser.parse_args()
    flags = ["--max-num-seqs", args.streams, "--max-model-len", args.tokens + 8, "--served-model-name", "m"]
    model = args.model or next(iter(sorted((pathlib.Path.home() / ".cache" / "atom" / "models").glob("*.gguf"))))
    engine, server_rates = [], []
    with Server(args.atom, *flags, model=model) as server:
        stream_rate(server.port, "m", args)  # touches every page once
        http_before, all_before = thread_seconds(server.process.pid)
        for _ in range(args.rounds):
            server_rates.append(stream_rate(server.port, "m", args))
            if not args.no_engine:
                engine.append(engine_rate(args))
        http_after, all_after = thread_seconds(server.process.pid)
    result = {"streams": args.streams, "tokens": args.tokens, "server_tokens_per_second": round(statistics.median(server_rates), 1),
              "http_share_of_processor_time": round((http_after - http_before) / (all_after - all_before), 4)}
    if engine:
        result["engine_tokens_per_second"] = round(statistics.median(engine), 1)
        result["ratio"] = round(result["server_tokens_per_second"] / result["engine_tokens_per_second"], 3)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
