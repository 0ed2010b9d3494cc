"""A running `atom serve` for tests, and small HTTP helpers. Standard library only."""
import contextlib
import http.client
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
TINY = HERE.parent / "data" / "server" / "tiny"  # a config and a tokenizer; the weights are random


def without_reasoning(folder):
    """A copy of the tiny model, also called tiny, whose chat template knows no reasoning: random weights never end theirs."""
    model = pathlib.Path(folder, "tiny")
    shutil.copytree(TINY, model)
    config = model / "tokenizer_config.json"
    text = json.loads(config.read_text(encoding="utf-8"))
    text["chat_template"] = re.sub(r"{% if enable_thinking.*?{% endif %}", "", text["chat_template"])
    config.write_text(json.dumps(text), encoding="utf-8")
    return model


class Server:
    """Starts on a free port; `model` answers to its folder's name."""

    def __init__(self, atom, *flags, model=TINY, wait=True, env=None):
        dummy = ["--load-format", "dummy"] if pathlib.Path(model).name == "tiny" else []
        env = {k: v for k, v in os.environ.items() if k != "ATOM_API_KEY"} | (env or {})
        self.process = subprocess.Popen([atom, "serve", "--model", str(model), "--port", "0", *dummy, *map(str, flags)],
                                        stderr=subprocess.PIPE, text=True, errors="replace", env=env)
        self.name = pathlib.Path(model).name
        self.log = []
        self.port = None
        self._listening = threading.Event()
        threading.Thread(target=self._read_log, daemon=True).start()
        if not self._listening.wait(60) or self.port is None:
            raise RuntimeError("the server did not open its port: " + "".join(self.log))
        if wait:
            self.wait_ready()

    def _read_log(self):
        for line in self.process.stderr:
            self.log.append(line)
            if match := re.search(r"listening on http://.*:(\d+)", line):
                self.port = int(match.group(1))
                self._listening.set()
        self._listening.set()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def wait_ready(self, seconds=120):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.get("/health")[0] == 200:
                return
            if self.process.poll() is not None:
                raise RuntimeError("the server ended: " + "".join(self.log))
            time.sleep(0.05)
        raise RuntimeError("the server did not become ready")

    def request(self, method, path, body=None, headers=None, timeout=60):
        """(status, headers, bytes)"""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        with contextlib.closing(connection):
            headers = dict(headers or {})
            if body is not None and not isinstance(body, (bytes, str)):
                body = json.dumps(body)
            if body is not None:
                headers.setdefault("Content-Type", "application/json")
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            return response.status, response.headers, response.read()

    def get(self, path, **kwargs):
        status, _, body = self.request("GET", path, **kwargs)
        return status, json.loads(body)

    def post(self, path, body, **kwargs):
        status, _, answer = self.request("POST", path, body, **kwargs)
        return status, json.loads(answer)

    def events(self, path, body, **kwargs):
        """The data of every server-sent event: JSON, or text such as [DONE]."""
        status, headers, answer = self.request("POST", path, body, **kwargs)
        assert status == 200, (status, answer)
        assert headers["Content-Type"] == "text/event-stream", headers
        return parse_events(answer)

    def metric(self, name):
        """The sum of a metric over its labels."""
        _, _, text = self.request("GET", "/metrics")
        values = [line.rsplit(" ", 1)[1] for line in text.decode().splitlines()
                  if re.match(re.escape(name) + r"(\{| )", line)]
        return sum(map(float, values))

    def wait_idle(self, seconds=10):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.metric("atom_requests_in_engine") == 0:
                return True
            time.sleep(0.02)
        return False

    def stop(self, sig=signal.SIGTERM, seconds=30):
        """Seconds until the process ended."""
        start = time.monotonic()
        if self.process.poll() is None:
            self.process.send_signal(sig)
        self.process.wait(seconds)
        return time.monotonic() - start

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


def parse_events(text):
    blocks = text.decode().split("\n\n")
    assert blocks[-1] == "", "a stream ends with an empty line"
    result = []
    for block in blocks[:-1]:
        data = [line[6:] for line in block.split("\n") if line.startswith("data: ")]
        if data:
            joined = "\n".join(data)
            result.append(json.loads(joined) if joined.startswith("{") else joined)
    return result
