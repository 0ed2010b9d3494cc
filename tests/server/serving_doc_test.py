#!/usr/bin/env python3
"""docs/serving.md against the program: flags, endpoints, client examples and recipes.

Usage: serving_doc_test.py --atom build/atom [--python PYTHON with openai and anthropic]. What needs a tool that is not
installed (systemd-analyze, nginx, curl, PyYAML, the clients) is skipped with the reason.
"""
import argparse
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

from atom_server import HERE, Server, without_reasoning

ATOM, PYTHON = "", sys.executable
TEXT = (HERE.parents[1] / "docs" / "serving.md").read_text(encoding="utf-8")


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```", TEXT, re.M | re.S)


def flags_of(verb):
    text = subprocess.run([ATOM, verb, "--help"], capture_output=True, text=True, check=True).stdout
    return set(re.findall(r"^\s+(?:-\w,)?(--[\w-]+)", text, re.M)) - {"--help"}


def need(tool):
    path = shutil.which(tool) or shutil.which(tool, path="/usr/sbin:/sbin")
    if path is None:
        raise unittest.SkipTest(f"{tool} is not installed")
    return path


class Document(unittest.TestCase):
    def test_its_tables_have_every_flag_and_no_other(self):
        section = TEXT.split("## Flags")[1].split("\n## ")[0]
        rows = [row.split("|")[1] for row in section.splitlines() if row.startswith("| `--")]
        told = set(re.findall(r"--[\w-]+", " ".join(rows)))
        about_the_model = set(re.findall(r"`(--[\w-]+)`", section.split("| flag")[0]))
        self.assertEqual(told | about_the_model, flags_of("serve"))
        self.assertEqual(told & flags_of("generate"), set())

    def test_every_endpoint_answers(self):
        section = TEXT.split("## Endpoints")[1].split("\n## ")[0]
        listed = [(methods, re.findall(r"`(?:[A-Z, `]* )?(/[\w/.]*)", cell))
                  for cell in re.findall(r"^\| (`(?:GET|POST).*?) \|", section, re.M) for methods in [cell.split()[0].strip("`")]]
        paths = [(method, path) for method, found in listed for path in found]
        self.assertGreater(len(paths), 12)
        with tempfile.TemporaryDirectory() as folder, Server(ATOM, model=without_reasoning(folder)) as server:
            for method, path in paths:
                path = path.replace("NAME", "tiny").replace("/responses/ID", "/responses")
                status, _, body = server.request(method, path, "{}" if method == "POST" else None)
                self.assertNotIn(status, (404, 405, 500), (method, path, body[:200]))

    def test_the_client_examples_run(self):
        if subprocess.run([PYTHON, "-c", "import openai, anthropic"], capture_output=True, check=False).returncode != 0:
            self.skipTest("the clients are not installed: tools/test_venv.sh")
        with tempfile.TemporaryDirectory() as folder, Server(ATOM, "--max-model-len", 256, model=without_reasoning(folder)) as server:
            for example in blocks("python"):
                script = example.replace("http://127.0.0.1:8000", server.url).replace('"NAME"', '"tiny"')
                done = subprocess.run([PYTHON, "-c", script], capture_output=True, text=True, timeout=60, check=False)
                self.assertEqual(done.returncode, 0, done.stderr)
            need("curl")
            for example in (b for b in blocks("sh") if b.startswith("curl")):
                script = example.replace("http://127.0.0.1:8000", server.url).replace('"NAME"', '"tiny"')
                done = subprocess.run(["sh", "-ec", script], capture_output=True, text=True, timeout=60, check=True)
                self.assertIn('"choices"', done.stdout)

    def test_the_unit_is_one(self):
        tool = need("systemd-analyze")
        (unit,) = blocks("ini")
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "atom.service")
            path.write_text(unit.replace("/usr/local/bin/atom", str(pathlib.Path(ATOM).resolve())), encoding="utf-8")
            done = subprocess.run([tool, "verify", "--man=no", str(path)], capture_output=True, text=True, check=False)
            self.assertEqual([line for line in done.stderr.splitlines() if "atom.service" in line], [])
        self.assertEqual(set(re.findall(r" (--[\w-]+)", unit)) - flags_of("serve"), set())

    def test_the_proxys_block_is_understood(self):
        tool = need("nginx")
        (location,) = blocks("nginx")
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "nginx.conf")
            path.write_text(f"error_log stderr; pid {folder}/pid; events {{}}\nhttp {{ access_log off; server {{ listen unix:{folder}/socket; {location} }} }}\n",
                            encoding="utf-8")
            done = subprocess.run([tool, "-t", "-c", str(path), "-p", folder], capture_output=True, text=True, check=False)
            self.assertEqual(done.returncode, 0, done.stderr)

    def test_the_manifest_parses_and_uses_flags_and_paths_that_there_are(self):
        try:
            import yaml
        except ImportError:
            self.skipTest("PyYAML is not installed")
        (manifest,) = (yaml.safe_load(block) for block in blocks("yaml"))
        spec = manifest["spec"]["template"]["spec"]
        (container,) = spec["containers"]
        self.assertEqual({a for a in container["args"] if a.startswith("--")} - flags_of("serve"), set())
        drain = int(container["args"][container["args"].index("--drain-seconds") + 1])
        self.assertGreater(spec["terminationGracePeriodSeconds"], drain)
        self.assertEqual(manifest["spec"]["selector"]["matchLabels"], manifest["spec"]["template"]["metadata"]["labels"])
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            self.assertIn(container[probe]["httpGet"]["path"], ("/health", "/"))
        self.assertEqual({m["name"] for m in container["volumeMounts"]}, {v["name"] for v in spec["volumes"]})

    def test_the_container_file_has_the_libraries_that_the_program_needs(self):
        (recipe,) = blocks("Dockerfile")
        for line in re.sub(r"\\\n", " ", recipe).splitlines():
            self.assertIn(line.split()[0], ("FROM", "COPY", "RUN", "USER", "EXPOSE", "ENTRYPOINT"))
        need("dpkg-query")
        release = pathlib.Path("/etc/os-release").read_text(encoding="utf-8")
        if 'VERSION_ID="12"' not in release:
            self.skipTest("the container's packages are those of Debian 12")
        linked = subprocess.run(["ldd", ATOM], capture_output=True, text=True, check=True).stdout
        for library in re.findall(r"=> (/\S+)", linked):
            name = re.sub(r"^/(?:usr/)?", "*/", library)
            found = subprocess.run(["dpkg-query", "-S", name], capture_output=True, text=True, check=False).stdout
            packages = {line.split(":")[0] for line in found.splitlines()}
            direct = re.search(rf"NEEDED\s+{re.escape(pathlib.Path(library).name)}$",
                               subprocess.run(["objdump", "-p", ATOM], capture_output=True, text=True, check=True).stdout, re.M)
            if direct and not packages & {"libc6", "libstdc++6", "libgcc-s1"}:
                self.assertTrue(any(package in recipe for package in packages), (library, packages))


def main():
    global ATOM, PYTHON
    parser = argparse.ArgumentParser()
    parser.add_argument("--atom", required=True)
    parser.add_argument("--python", default=PYTHON)
    args, rest = parser.parse_known_args()
    ATOM = args.atom
    if shutil.which(args.python):
        PYTHON = args.python
    unittest.main(argv=[sys.argv[0], *rest])


if __name__ == "__main__":
    main()
