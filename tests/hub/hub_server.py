#!/usr/bin/env python3
"""A local server that speaks the part of the Hugging Face hub protocol that a download uses, faults included.

Serves ROOT/<owner>/<name>/... as models at revision `main` and at their commit id. Prints one line, the value for
HF_ENDPOINT, once it listens. Large-file types go through a redirect to a "CDN" on another host name, which, like the
real one, refuses a request that still carries the hub's token. Standard library only.

  GET  /api/models/<id>[/revision/<rev>][?blobs=true]     names, sizes and hashes of the files, commit id
  GET  /api/models/<id>/tree/<rev>
  HEAD, GET  /<id>/resolve/<rev>/<file>                   Range, ETag, X-Repo-Commit, X-Linked-ETag, X-Linked-Size
"""

import argparse
import hashlib
import json
import re
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, quote, unquote, urlsplit

LARGE_FILE_TYPES = (".safetensors", ".gguf", ".bin")
CHUNK = 64 * 1024


class Blob:
    """A file of a repository with the two hashes that the hub names it by."""

    def __init__(self, path: Path, name: str):
        data = path.read_bytes()
        self.path, self.name, self.size = path, name, len(data)
        self.git_id = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
        self.sha256 = hashlib.sha256(data).hexdigest()
        self.large = name.endswith(LARGE_FILE_TYPES)

    def etag(self) -> str:
        return self.sha256 if self.large else self.git_id


class Repository:
    def __init__(self, folder: Path):
        files = sorted(p for p in folder.rglob("*") if p.is_file())
        self.blobs = {b.name: b for b in (Blob(p, p.relative_to(folder).as_posix()) for p in files)}
        text = "".join(f"{b.name} {b.git_id}\n" for b in self.blobs.values())
        self.commit = hashlib.sha1(text.encode()).hexdigest()

    def describe(self, identity: str, gated: bool, with_blobs: bool) -> dict:
        siblings = []
        for blob in self.blobs.values():
            entry = {"rfilename": blob.name}
            if with_blobs:
                entry |= {"size": blob.size, "blobId": blob.git_id}
                if blob.large:
                    entry["lfs"] = {"sha256": blob.sha256, "size": blob.size, "pointerSize": 134}
            siblings.append(entry)
        return {"id": identity, "modelId": identity, "sha": self.commit, "private": False, "disabled": False,
                "gated": "manual" if gated else False, "siblings": siblings}

    def tree(self) -> list[dict]:
        return [{"type": "file", "oid": b.git_id, "size": b.size, "path": b.name}
                | ({"lfs": {"oid": b.sha256, "size": b.size, "pointerSize": 134}} if b.large else {})
                for b in self.blobs.values()]


class Refusal(Exception):
    def __init__(self, status: int, code: str | None, message: str):
        self.status, self.code, self.message = status, code, message


class Hub:
    """What the server serves, and how often each fault is still to happen. Shared by the connections."""

    def __init__(self, options: argparse.Namespace):
        self.options = options
        self.repositories = {f"{p.parent.name}/{p.name}": Repository(p)
                             for p in sorted(Path(options.root).glob("*/*")) if p.is_dir()}
        self.by_sha256 = {b.sha256: b for r in self.repositories.values() for b in r.blobs.values()}
        self.lock = threading.Lock()
        self.left = {"cut": options.cut_times, "busy": options.busy_times, "corrupt": options.corrupt_times}

    def take(self, fault: str) -> bool:
        with self.lock:
            self.left[fault] -= 1
            return self.left[fault] >= 0

    def repository(self, identity: str, token: str | None) -> Repository:
        if token is not None and token not in (self.options.token, self.options.other_token):
            raise Refusal(401, None, "Invalid credentials in Authorization header")
        if identity not in self.repositories:
            if token is None:  # the real hub does not say whether a repository is missing or private
                raise Refusal(401, "RepoNotFound", "Invalid username or password.")
            raise Refusal(404, "RepoNotFound", "Repository not found")
        if identity in self.options.gated and token != self.options.token:
            status = 401 if token is None else 403
            raise Refusal(status, "GatedRepo", f"Access to model {identity} is restricted. You must have access to it "
                                               "and be authenticated to access it. Please log in.")
        return self.repositories[identity]

    def at_revision(self, identity: str, token: str | None, revision: str) -> Repository:
        repository = self.repository(identity, token)
        if revision not in ("main", repository.commit):
            raise Refusal(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        return repository


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def do_GET(self) -> None:
        self.answer(with_body=True)

    def do_HEAD(self) -> None:
        self.answer(with_body=False)

    def answer(self, with_body: bool) -> None:
        self.with_body = with_body
        words = self.headers.get("Authorization", "").split(" ", 1)
        token = words[1] if words[0] == "Bearer" and len(words) == 2 else None
        url = urlsplit(self.path)
        try:
            if self.hub.take("busy"):
                raise Refusal(self.hub.options.busy_status, None, "try again later")
            self.route(unquote(url.path), parse_qs(url.query), token)
        except Refusal as refusal:
            body = json.dumps({"error": refusal.message}).encode()
            headers = {"X-Error-Message": refusal.message, "Content-Type": "application/json"}
            if refusal.code:
                headers["X-Error-Code"] = refusal.code
            if refusal.status in (429, 503):
                headers["Retry-After"] = "0"
            self.send(refusal.status, headers, body)

    def route(self, path: str, query: dict, token: str | None) -> None:
        hub = self.hub
        if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/(revision|tree)/(.+))?", path):
            identity, kind, revision = match.groups()
            repository = hub.at_revision(identity, token if identity not in hub.options.gated else hub.options.token,
                                         revision or "main")  # the list of a gated model is public
            answer = repository.tree() if kind == "tree" else repository.describe(
                identity, identity in hub.options.gated, "blobs" in query)
            self.send(200, {"Content-Type": "application/json"}, json.dumps(answer).encode())
        elif match := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            identity, revision, name = match.groups()
            repository = hub.at_revision(identity, token, revision)
            if name not in repository.blobs:
                raise Refusal(404, "EntryNotFound", "Entry not found")
            self.resolve(repository, repository.blobs[name], identity)
        elif match := re.fullmatch(r"/cdn/([0-9a-f]{64})", path):
            if "Authorization" in self.headers:
                raise Refusal(400, None, "Only one auth mechanism allowed; the hub's token must not be sent here")
            if match[1] not in hub.by_sha256:
                raise Refusal(403, None, "AccessDenied")
            blob = hub.by_sha256[match[1]]
            self.send_file(blob, {"ETag": f'"{hashlib.md5(blob.sha256.encode()).hexdigest()}"'})
        elif match := re.fullmatch(r"/api/resolve-cache/models/([^/]+/[^/]+)/([^/]+)/(.+)", path):
            repository = hub.at_revision(match[1], token, match[2])
            self.send_file(repository.blobs[match[3]], self.file_headers(repository, repository.blobs[match[3]]))
        else:
            raise Refusal(404, None, f"no such page: {path}")

    def file_headers(self, repository: Repository, blob: Blob) -> dict:
        return {"X-Repo-Commit": repository.commit, "ETag": f'"{blob.etag()}"'}

    def resolve(self, repository: Repository, blob: Blob, identity: str) -> None:
        headers = self.file_headers(repository, blob)
        if blob.large:
            port = self.server.server_address[1]
            headers |= {"X-Linked-ETag": f'"{blob.sha256}"', "X-Linked-Size": str(blob.size),
                        "Location": f"http://localhost:{port}/cdn/{blob.sha256}?Signature=abc~%3D&Expires=1"}
            self.send(302, headers, b"Found. Redirecting")
        elif self.hub.options.redirect_small_files:
            headers["Location"] = f"/api/resolve-cache/models/{identity}/{repository.commit}/{quote(blob.name)}"
            self.send(307, headers, b"Temporary Redirect")
        else:
            self.send_file(blob, headers)

    def send_file(self, blob: Blob, headers: dict) -> None:
        data, status = blob.path.read_bytes(), 200
        headers |= {"Accept-Ranges": "bytes", "Content-Type": "application/octet-stream"}
        if match := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "")):
            begin, end = int(match[1]), min(int(match[2] or blob.size - 1), blob.size - 1)
            if begin > end:
                self.send(416, headers | {"Content-Range": f"bytes */{blob.size}"}, b"")
                return
            if not self.hub.options.ignore_ranges:
                status, data = 206, data[begin:end + 1]
                headers["Content-Range"] = f"bytes {begin}-{end}/{blob.size}"
        if blob.large and self.with_body and self.hub.take("corrupt"):
            data = data[:-1] + bytes([data[-1] ^ 0xFF])
        self.send(status, headers, data, faulty=blob.large)

    def send(self, status: int, headers: dict, body: bytes, faulty: bool = False) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.log(status)
        if not self.with_body:
            return
        options = self.hub.options
        if faulty and len(body) > options.cut_after and self.hub.take("cut"):
            body = body[:options.cut_after]
            self.close_connection = True
        for begin in range(0, len(body), CHUNK):
            try:
                self.wfile.write(body[begin:begin + CHUNK])
            except OSError:  # the client has left
                self.close_connection = True
                return
            if faulty and options.bytes_per_second:
                time.sleep(min(CHUNK, len(body) - begin) / options.bytes_per_second)

    def log(self, status: int) -> None:
        if self.hub.options.log:
            entry = {"method": self.command, "path": self.path, "status": status, "range": self.headers.get("Range"),
                     "authorized": "Authorization" in self.headers}
            with self.hub.lock, open(self.hub.options.log, "a", encoding="utf-8") as out:
                out.write(json.dumps(entry) + "\n")

    def log_message(self, *_) -> None:
        pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", help="folder of <owner>/<name> folders")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--log", metavar="FILE", help="append each request as a line of JSON")
    parser.add_argument("--gated", action="append", default=[], metavar="ID", help="needs --token to be downloaded")
    parser.add_argument("--token", default="hf_good", help="token with access to gated models")
    parser.add_argument("--other-token", default="hf_stranger", help="valid token without access to them")
    parser.add_argument("--redirect-small-files", action="store_true", help="by a relative redirect, as the hub does now")
    parser.add_argument("--ignore-ranges", action="store_true", help="answer Range with the whole file")
    faults = parser.add_argument_group("faults, of large files; they stop after the given number of times")
    faults.add_argument("--cut-times", type=int, default=0, help="cut the connection in the middle of a file")
    faults.add_argument("--cut-after", type=int, default=1000, metavar="BYTES")
    faults.add_argument("--corrupt-times", type=int, default=0, help="send a wrong last byte")
    faults.add_argument("--busy-times", type=int, default=0, help="answer any request with --busy-status")
    faults.add_argument("--busy-status", type=int, default=503)
    faults.add_argument("--bytes-per-second", type=int, default=0, help="send slowly")
    options = parser.parse_args()
    Handler.hub = Hub(options)
    server = ThreadingHTTPServer(("127.0.0.1", options.port), Handler)
    server.daemon_threads = True
    print(f"http://127.0.0.1:{server.server_address[1]}", flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        sys.exit(0)


if __name__ == "__main__":
    main()
