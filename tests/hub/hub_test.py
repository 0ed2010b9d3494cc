#!/usr/bin/env python3
"""`atom --model org/name` against a local server that speaks the hub's protocol, faults included.

Usage: hub_test.py --atom build/atom
"""
import json
import os
import pathlib
import shutil
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
from program import GOLDEN, WithFolder, main, program  # noqa: E402

IDS = "1,2,3,4,5"


class Hub(WithFolder):
    def setUp(self):
        super().setUp()
        shutil.copytree(GOLDEN / "llama_sharded", self.folder / "served" / "acme" / "tiny")

    def serve(self, *flags):
        log = self.folder / "requests.log"
        server = subprocess.Popen([sys.executable, HERE / "hub_server.py", self.folder / "served", "--log", log, *flags],
                                  stdout=subprocess.PIPE, text=True)
        self.addCleanup(server.wait)
        self.addCleanup(server.stdout.close)
        self.addCleanup(server.kill)
        self.endpoint = server.stdout.readline().strip()
        return log

    def atom(self, model="acme/tiny", **env):
        environment = {k: v for k, v in os.environ.items() if not k.startswith("HF_")}
        environment |= {"HF_ENDPOINT": self.endpoint, "HF_HOME": str(self.folder / "home"), **env}
        return subprocess.run([program(), "score", "--model", model, "--token-ids", IDS, "--dtype", "float32"],
                              capture_output=True, text=True, timeout=120, env=environment)

    def expected(self):
        return json.loads(subprocess.run([program(), "score", "--model", GOLDEN / "llama_sharded", "--token-ids", IDS, "--dtype", "float32"],
                                         capture_output=True, text=True, timeout=60, check=True).stdout)

    def good(self, result):
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(json.loads(result.stdout), self.expected())

    def requests(self, log):
        return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []

    def test_a_model_is_downloaded_once_and_then_found_offline(self):
        log = self.serve()
        self.good(self.atom())
        count = len(self.requests(log))
        self.assertGreater(count, 0)
        self.good(self.atom(HF_HUB_OFFLINE="1"))
        self.assertEqual(len(self.requests(log)), count)
        snapshots = list((self.folder / "home" / "hub" / "models--acme--tiny" / "snapshots").iterdir())
        self.assertEqual(len(snapshots), 1)

    def test_a_cut_connection_is_resumed(self):
        self.serve("--cut-times", "2", "--cut-after", "1000")
        self.good(self.atom())

    def test_a_corrupt_file_is_not_accepted(self):
        self.serve("--corrupt-times", "1000")
        result = self.atom()
        self.assertNotEqual(result.returncode, 0)
        self.assertTrue("SHA-256" in result.stderr, result.stderr)

    def test_a_busy_server_is_tried_again(self):
        self.serve("--busy-times", "2")
        self.good(self.atom())

    def test_a_gated_model_says_so_and_takes_a_token(self):
        self.serve("--gated", "acme/tiny")
        refused = self.atom()
        self.assertEqual(refused.returncode, 2, refused.stderr)
        self.assertIn("HF_TOKEN", refused.stderr)
        self.good(self.atom(HF_TOKEN="hf_good"))

    def test_unknown_names_and_revisions_are_told_apart(self):
        self.serve()
        self.assertEqual(self.atom("acme/none").returncode, 2)
        unknown = self.atom("acme/tiny@nowhere")
        self.assertEqual(unknown.returncode, 2)
        self.assertIn("nowhere", unknown.stderr)

    def test_offline_without_a_copy_is_an_error_at_once(self):
        log = self.serve()
        result = self.atom(HF_HUB_OFFLINE="1")
        self.assertEqual(result.returncode, 2)
        self.assertEqual(self.requests(log), [])


if __name__ == "__main__":
    main()
