#!/usr/bin/env python3
"""Many streams at once: none lost, none corrupt, /health quick meanwhile, memory back afterwards.

Usage: load_test.py --atom build/atom [--streams 1000] [--seconds 60] [--rounds 1]

Every stream asks for the same greedy text, so each must be equal to the one computed alone. A client sends its next
request as soon as its stream has ended. With more rounds it is a soak: from the second round on memory must not grow.
Standard library only.
"""
import argparse
import asyncio
import json
import resource
import sys
import time

from atom_server import Server, parse_events

TOKENS = 24
HEALTH_LIMIT_MS = 50
GROWTH_LIMIT = 8 << 20  # bytes between rounds of a soak

# Milliseconds that /health took, one measurement after another.
HEALTH = """
import http.client, json, sys, time
port, seconds, taken = int(sys.argv[1]), float(sys.argv[2]), []
end = time.monotonic() + seconds
while time.monotonic() < end:
    start = time.monotonic()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", "/health")
    assert connection.getresponse().status == 200
    connection.close()
    taken.append(round((time.monotonic() - start) * 1e3, 1))
    time.sleep(0.1)
print(json.dumps(taken))
"""


def request_of(prompt):
    body = json.dumps({"model": "tiny", "prompt": prompt, "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True, "stream": True}).encode()
    return (b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
            % len(body) + body)


def unchunk(body):
    data = b""
    while body:
        size, _, body = body.partition(b"\r\n")
        n = int(size, 16)
        if n == 0:
            return data
        data, body = data + body[:n], body[n + 2:]
    raise ValueError("the stream was cut")


def text_of(answer):
    head, _, body = answer.partition(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 200"):
        raise ValueError(head[:60])
    events = parse_events(unchunk(body))
    if events[-1] != "[DONE]":
        raise ValueError("no [DONE]")
    return "".join(e["choices"][0]["text"] for e in events[:-1])


async def fetch(port, request):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request)
        await writer.drain()
        return await reader.read(-1)
    finally:
        writer.close()


def resident(pid):
    with open(f"/proc/{pid}/statm", encoding="ascii") as f:
        return int(f.read().split()[1]) * 4096


async def load(server, streams, seconds):
    prompts = [f"prompt {i}" for i in range(8)]
    expected = [text_of(await fetch(server.port, request_of(p))) for p in prompts]
    before = resident(server.process.pid)
    end = time.monotonic() + seconds
    done = wrong = 0
    errors = []

    async def client(i):
        nonlocal done, wrong
        while time.monotonic() < end:
            try:
                text = text_of(await fetch(server.port, request_of(prompts[i % 8])))
                wrong += text != expected[i % 8]
                done += 1
            except (OSError, ValueError) as error:
                errors.append(repr(error))

    # In a process of its own: this one is too busy to measure milliseconds.
    watch = await asyncio.create_subprocess_exec(sys.executable, "-c", HEALTH, str(server.port), str(seconds),
                                                 stdout=asyncio.subprocess.PIPE)
    start = time.monotonic()
    await asyncio.gather(*(client(i) for i in range(streams)))
    wall = time.monotonic() - start
    health = sorted(json.loads((await watch.communicate())[0]))
    idle = await asyncio.to_thread(server.wait_idle)
    result = {"streams": streams, "answers": done, "wrong": wrong, "errors": len(errors), "first_errors": errors[:3],
              "tokens_per_second": round(done * TOKENS / wall), "seconds": round(wall, 1), "idle_afterwards": idle,
              "health_ms_median": health[len(health) // 2], "health_ms_p99": health[len(health) * 99 // 100], "health_ms_max": health[-1],
              "memory_before_mib": before >> 20, "memory_after_mib": resident(server.process.pid) >> 20,
              "connections_afterwards": server.metric("atom_connections")}
    print(json.dumps(result, indent=1))
    ok = done > 0 and wrong == 0 and not errors and idle and result["health_ms_p99"] < HEALTH_LIMIT_MS
    return ok, resident(server.process.pid)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--atom", required=True)
    parser.add_argument("--streams", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--rounds", type=int, default=1)
    args = parser.parse_args()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, args.streams + 256)), hard))
    with Server(args.atom, "--max-num-seqs", 64, "--write-seconds", 60) as server:
        rounds = [asyncio.run(load(server, args.streams, args.seconds)) for _ in range(args.rounds)]
    memory = [after for _, after in rounds[1:]]
    if memory and max(memory) - memory[0] > GROWTH_LIMIT:
        print(f"memory grows: {[m >> 20 for m in memory]} MiB", file=sys.stderr)
        return 1
    return 0 if all(ok for ok, _ in rounds) else 1


if __name__ == "__main__":
    sys.exit(main())
