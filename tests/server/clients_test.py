#!/usr/bin/env python3
"""The official openai and anthropic Python clients against `atom serve` (tools/test_venv.sh makes their environment).

Usage: clients_test.py --atom build/atom. Exit code 77 without the clients.
"""
import argparse
import json
import sys
import tempfile
import unittest
from typing import Literal

from atom_server import Server, without_reasoning

try:
    import anthropic
    import openai
    import pydantic
except ImportError as error:
    print(f"skipped: {error}", file=sys.stderr)
    sys.exit(77)

ATOM = ""
HI = [{"role": "user", "content": "hi"}]
TOOLS = [{"type": "function", "function": {"name": "look", "description": "Looks.", "parameters": {"type": "object", "properties": {}}}}]


class Clients(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.server = Server(ATOM, "--api-key", "secret-key-1", model=without_reasoning(cls.folder.name))
        cls.openai = openai.OpenAI(base_url=cls.server.url + "/v1", api_key="secret-key-1", max_retries=0)
        cls.anthropic = anthropic.Anthropic(base_url=cls.server.url, api_key="secret-key-1", max_retries=0)

    @classmethod
    def tearDownClass(cls):
        cls.server.__exit__()
        cls.folder.cleanup()

    def test_openai_chat(self):
        answer = self.openai.chat.completions.create(model="tiny", messages=HI, max_completion_tokens=6, temperature=0, logprobs=True,
                                                     top_logprobs=2, user="me", extra_body={"ignore_eos": True})
        self.assertEqual(answer.choices[0].finish_reason, "length")
        self.assertEqual(answer.usage.completion_tokens, 6)
        self.assertEqual(len(answer.choices[0].logprobs.content), 6)
        stream = self.openai.chat.completions.create(model="tiny", messages=HI, max_tokens=6, temperature=0, stream=True,
                                                     stream_options={"include_usage": True}, extra_body={"ignore_eos": True})
        chunks = list(stream)
        self.assertEqual(chunks[-1].usage.completion_tokens, 6)
        text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
        self.assertEqual(text, answer.choices[0].message.content)

    def test_openai_chat_with_tools_in_the_history(self):
        call = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": "{\"at\": \"sky\"}"}}
        messages = HI + [{"role": "assistant", "content": None, "tool_calls": [call]}, {"role": "tool", "tool_call_id": "call_1", "content": "blue"}]
        answer = self.openai.chat.completions.create(model="tiny", messages=messages, tools=TOOLS, tool_choice="auto", max_tokens=3)
        self.assertEqual(answer.choices[0].message.role, "assistant")

    def test_openai_completions(self):
        answer = self.openai.completions.create(model="tiny", prompt=["a", "b"], max_tokens=2, n=2, logprobs=1, echo=True, temperature=1, seed=1)
        self.assertEqual(len(answer.choices), 4)
        self.assertTrue(answer.choices[0].text.startswith("a"))
        chunks = list(self.openai.completions.create(model="tiny", prompt="a", max_tokens=4, stream=True))
        self.assertIsNotNone(chunks[-1].choices[0].finish_reason)

    def test_openai_responses(self):
        first = self.openai.responses.create(model="tiny", input="hi", max_output_tokens=5, temperature=0, instructions="Be brief.")
        self.assertEqual(first.object, "response")
        self.assertEqual(self.openai.responses.retrieve(first.id).output_text, first.output_text)
        second = self.openai.responses.create(model="tiny", input="more", previous_response_id=first.id, max_output_tokens=5, temperature=0)
        self.assertEqual(second.previous_response_id, first.id)
        self.openai.responses.delete(first.id)
        with self.assertRaises(openai.NotFoundError):
            self.openai.responses.retrieve(first.id)
        with self.openai.responses.stream(model="tiny", input="hi", max_output_tokens=5, temperature=0) as stream:
            text = "".join(e.delta for e in stream if e.type == "response.output_text.delta")
        self.assertEqual(text, self.openai.responses.create(model="tiny", input="hi", max_output_tokens=5, temperature=0).output_text)

    def test_openai_structured_outputs(self):
        class Sky(pydantic.BaseModel):
            colour: Literal["blue", "grey"]
            clouds: Literal[0, 1, 2]
        answer = self.openai.chat.completions.parse(model="tiny", messages=HI, response_format=Sky, max_completion_tokens=200)
        self.assertIsInstance(answer.choices[0].message.parsed, Sky)
        response = self.openai.responses.parse(model="tiny", input="hi", text_format=Sky, max_output_tokens=200)
        self.assertIsInstance(response.output_parsed, Sky)
        tool = openai.pydantic_function_tool(Sky, name="look")
        answer = self.openai.chat.completions.parse(model="tiny", messages=HI, tools=[tool], tool_choice="required", max_completion_tokens=200)
        self.assertIsInstance(answer.choices[0].message.tool_calls[0].function.parsed_arguments, Sky)

    def test_anthropic_forced_tools_and_output_formats(self):
        schema = {"type": "object", "properties": {"at": {"type": "string", "enum": ["sky", "sea"]}}, "required": ["at"]}
        answer = self.anthropic.messages.create(model="tiny", max_tokens=200, messages=HI, tools=[{"name": "look", "input_schema": schema}],
                                                tool_choice={"type": "tool", "name": "look"})
        self.assertEqual((answer.stop_reason, answer.content[0].name), ("tool_use", "look"))
        self.assertIn(answer.content[0].input["at"], ("sky", "sea"))
        answer = self.anthropic.messages.create(model="tiny", max_tokens=200, messages=HI, extra_body={
            "output_config": {"format": {"type": "json_schema", "schema": {**schema, "additionalProperties": False}}}})
        self.assertIn(json.loads(answer.content[0].text)["at"], ("sky", "sea"))

    def test_openai_models_and_errors(self):
        self.assertEqual([m.id for m in self.openai.models.list()], ["tiny"])
        self.assertEqual(self.openai.models.retrieve("tiny").id, "tiny")
        with self.assertRaises(openai.BadRequestError) as caught:
            self.openai.chat.completions.create(model="tiny", messages=HI, response_format={"type": "xml"})
        self.assertEqual(caught.exception.param, "response_format.type")
        with self.assertRaises(openai.NotFoundError):
            self.openai.chat.completions.create(model="gpt-x", messages=HI)
        with self.assertRaises(openai.AuthenticationError):
            openai.OpenAI(base_url=self.server.url + "/v1", api_key="wrong-key-1", max_retries=0).models.list()
        with self.assertRaises(openai.BadRequestError):
            self.openai.embeddings.create(model="tiny", input="a")

    def test_anthropic_messages(self):
        answer = self.anthropic.messages.create(model="tiny", max_tokens=5, system="Be brief.", messages=HI, extra_body={"temperature": 0})
        self.assertEqual(answer.usage.output_tokens, 5)
        self.assertEqual(answer.stop_reason, "max_tokens")
        with self.anthropic.messages.stream(model="tiny", max_tokens=5, system="Be brief.", messages=HI, extra_body={"temperature": 0}) as stream:
            text = "".join(stream.text_stream)
            final = stream.get_final_message()
        self.assertEqual(text, answer.content[0].text)
        self.assertEqual(final.content[0].text, text)
        self.assertEqual(final.usage.output_tokens, 5)
        count = self.anthropic.messages.count_tokens(model="tiny", system="Be brief.", messages=HI)
        self.assertGreater(count.input_tokens, 10)

    def test_anthropic_errors(self):
        with self.assertRaises(anthropic.NotFoundError):
            self.anthropic.messages.create(model="claude-x", max_tokens=5, messages=HI)
        with self.assertRaises(anthropic.AuthenticationError):
            anthropic.Anthropic(base_url=self.server.url, api_key="wrong-key-1", max_retries=0).messages.create(model="tiny", max_tokens=5, messages=HI)
        with self.assertRaises(anthropic.BadRequestError):
            self.anthropic.messages.create(model="tiny", max_tokens=5, messages=HI, tool_choice={"type": "any"})


def main():
    global ATOM
    parser = argparse.ArgumentParser()
    parser.add_argument("--atom", required=True)
    args, rest = parser.parse_known_args()
    ATOM = args.atom
    unittest.main(argv=[sys.argv[0], *rest])


if __name__ == "__main__":
    main()
