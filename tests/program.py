"""What tests that run the program share: the program, a folder for each test, what a refusal looks like.

A test file calls main() at its end, and is run with --atom build/atom.
"""
import argparse
import json
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest

GOLDEN = pathlib.Path(__file__).resolve().parent / "golden"
_program = ""


def atom(*args, stdin=None, env=None, timeout=120):
    return subprocess.run([_program, *map(str, args)], input=stdin, capture_output=True, text=True, timeout=timeout, env=env)


def program():
    return _program


def read_header(path):
    """The header of a safetensors file, and the bytes behind it."""
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    return json.loads(data[8:8 + size]), data[8 + size:]


class WithFolder(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder)

    def told(self, *args, timeout=120):
        """The JSON that a command which succeeds prints."""
        result = atom(*args, timeout=timeout)
        self.assertEqual(result.returncode, 0, result.stderr)
        return json.loads(result.stdout)

    def refused(self, *args, says, code=2):
        result = atom(*args)
        self.assertEqual(result.returncode, code, result.stderr)
        self.assertTrue(result.stderr.startswith("atom: "), result.stderr)
        for text in says:
            self.assertIn(text, result.stderr)
        self.assertEqual(result.stdout, "")


def main():
    global _program
    parser = argparse.ArgumentParser()
    parser.add_argument("--atom", required=True)
    options, rest = parser.parse_known_args()
    _program = options.atom
    unittest.main(argv=[sys.argv[0], *rest])
