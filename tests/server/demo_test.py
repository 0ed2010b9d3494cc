#!/usr/bin/env python3
"""The demo model held to schemas: what it writes parses and is valid. Exit code 77 without the model.

Usage: demo_test.py --atom build/atom. Standard library only.
"""
import argparse
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

from atom_server import Server

ATOM = ""
STRING = {"type": "string", "maxLength": 40}


def record(**properties):
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


# A question, a schema, and what its answers have in common.
CASES = [
    ("Describe a person.", record(name=STRING, age={"type": "integer", "minimum": 1, "maximum": 120}),
     lambda v: isinstance(v["name"], str) and 1 <= v["age"] <= 120),
    ("List three colours.", {"type": "array", "items": {"enum": ["red", "green", "blue", "yellow"]}, "minItems": 3, "maxItems": 3},
     lambda v: len(v) == 3 and set(v) <= {"red", "green", "blue", "yellow"}),
    ("When was the moon landing?", record(date={"type": "string", "format": "date"}, sure={"type": "boolean"}),
     lambda v: re.fullmatch(r"\d{4}-\d\d-\d\d", v["date"]) and isinstance(v["sure"], bool)),
    ("Draw a tree.", {"$ref": "#/$defs/node", "$defs": {"node": record(value={"type": "integer", "minimum": 0, "maximum": 9}, children={
        "type": "array", "items": {"type": "null"}, "maxItems": 2})}},
     lambda v: 0 <= v["value"] <= 9 and len(v["children"]) <= 2),
    ("Is water wet?", {"anyOf": [{"const": "yes"}, {"const": "no"}, record(why=STRING)]},
     lambda v: v in ("yes", "no") or isinstance(v["why"], str)),
    ("Give me a product code.", record(code={"type": "string", "pattern": "^[A-Z]{2}-[0-9]{4}$"}, price={"type": ["number", "null"]}),
     lambda v: re.fullmatch(r"[A-Z]{2}-[0-9]{4}", v["code"]) and (v["price"] is None or isinstance(v["price"], (int, float)))),
]


def demo_model():
    folder = pathlib.Path(os.environ.get("ATOM_HOME") or pathlib.Path.home() / ".cache" / "atom") / "models"
    return next(iter(sorted(folder.glob("*.gguf"))), None)


class Demo(unittest.TestCase):
    def test_answers_conform_to_schemas(self):
        with Server(ATOM, model=demo_model()) as server:
            name = server.get("/v1/models")[1]["data"][0]["id"]
            for question, schema, valid in CASES:
                for temperature in (0, 1):
                    with self.subTest(question=question, temperature=temperature):
                        status, answer = server.post("/v1/chat/completions", {
                            "model": name, "messages": [{"role": "user", "content": question}], "max_tokens": 200, "temperature": temperature,
                            "seed": 1, "n": 2, "response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}})
                        self.assertEqual(status, 200, answer)
                        for choice in answer["choices"]:
                            self.assertEqual(choice["finish_reason"], "stop", choice)
                            self.assertTrue(valid(json.loads(choice["message"]["content"])), choice)

    def test_generate_keeps_to_a_schema_a_regular_expression_and_a_grammar(self):
        def generate(*flags):
            return subprocess.run([ATOM, "generate", "--prompt", "The answer:", "--max-tokens", "120", "--temperature", "0", *flags],
                                  capture_output=True, text=True, check=True, timeout=120).stdout
        with tempfile.TemporaryDirectory() as folder:
            schema, grammar = pathlib.Path(folder, "schema.json"), pathlib.Path(folder, "grammar.gbnf")
            schema.write_text(json.dumps(CASES[0][1]), encoding="utf-8")
            grammar.write_text('root ::= "yes" | "no"\n', encoding="utf-8")
            self.assertTrue(CASES[0][2](json.loads(generate("--json-schema", str(schema)))))
            self.assertIn(generate("--grammar", str(grammar)).strip(), ("yes", "no"))
            self.assertRegex(generate("--regex", "[0-9]{3} apples").strip(), r"^\d{3} apples$")


def main():
    global ATOM
    parser = argparse.ArgumentParser()
    parser.add_argument("--atom", required=True)
    args, rest = parser.parse_known_args()
    ATOM = args.atom
    if demo_model() is None:
        print("skipped: the demo model has not been fetched", file=sys.stderr)
        sys.exit(77)
    unittest.main(argv=[sys.argv[0], *rest])


if __name__ == "__main__":
    main()
