#!/usr/bin/env python3
"""The chat page in real Chromium (Playwright): send, stream, stop, error, reload, narrow screen, dark mode, safety.

Usage: browser_test.py --atom build/atom [--shots FOLDER]. Exit code 77 without Playwright or Chromium.
Uses the demo model where it has been fetched, else the tiny one.
"""
import argparse
import json
import os
import pathlib
import re
import shutil
import sys
import tempfile
import unittest

from atom_server import TINY, Server

try:
    from playwright.sync_api import expect, sync_playwright
except ImportError as error:
    print(f"skipped: {error}", file=sys.stderr)
    sys.exit(77)

ATOM = ""
SHOTS = pathlib.Path(tempfile.gettempdir())
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def demo_model():
    folder = pathlib.Path(os.environ.get("ATOM_HOME") or pathlib.Path.home() / ".cache" / "atom") / "models"
    return next(iter(sorted(folder.glob("*.gguf"))), None)


def stream_of(*deltas, finish="stop"):
    """A recorded answer of the server."""
    def chunk(delta, reason=None):
        return "data: " + json.dumps({"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "usage": None, "choices": [
            {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}]}) + "\n\n"
    usage = {"prompt_tokens": 3, "completion_tokens": 5, "total_tokens": 8, "prompt_tokens_details": {"cached_tokens": 0}}
    last = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [], "usage": usage}
    return "".join(map(chunk, deltas)) + chunk({}, finish) + "data: " + json.dumps(last) + "\n\ndata: [DONE]\n\n"


class Page(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server(ATOM, model=demo_model() or TINY)
        cls.playwright = sync_playwright().start()
        options = {"executable_path": CHROMIUM} if CHROMIUM else {}
        try:
            cls.browser = cls.playwright.chromium.launch(args=["--no-sandbox"], **options)
        except Exception as error:  # no browser at all
            print(f"skipped: {error}", file=sys.stderr)
            os._exit(77)

    @classmethod
    def tearDownClass(cls):
        cls.browser.close()
        cls.playwright.stop()
        cls.server.__exit__()

    def open(self, **context):
        self.context = self.browser.new_context(**context)
        self.addCleanup(self.context.close)
        page = self.context.new_page()
        self.problems = []
        page.on("pageerror", lambda error: self.problems.append(str(error)))
        page.on("console", lambda message: message.type == "error" and self.problems.append(message.text))
        page.on("request", lambda request: request.url.startswith((self.server.url, "data:")) or self.problems.append(request.url))
        page.goto(self.server.url)
        expect(page.locator("#state")).to_have_text("ready")
        return page

    def answer_with(self, page, body, status=200, kind="text/event-stream"):
        page.route("**/v1/chat/completions", lambda route: route.fulfill(status=status, content_type=kind, body=body))

    def send(self, page, text):
        page.fill("#prompt", text)
        page.press("#prompt", "Enter")

    def limit(self, page, tokens):
        page.click("#toggle-settings")
        page.fill("#max_tokens", str(tokens))
        page.fill("#temperature", "0")
        page.click("#toggle-settings")

    def test_a_message_is_answered_and_the_speed_shown(self):
        page = self.open()
        self.limit(page, 24)
        self.send(page, "Name the three primary colours.")
        expect(page.locator(".message.user .body")).to_have_text("Name the three primary colours.")
        expect(page.locator(".regenerate")).to_be_visible(timeout=180000)
        self.assertGreater(len(page.locator(".message.assistant .body").inner_text()), 0)
        self.assertRegex(page.locator("#speed").inner_text(), r"\d+ tokens .* tokens/s")
        page.screenshot(path=SHOTS / "answer.png")
        self.assertEqual(self.problems, [])

    def test_stop_ends_an_answer_and_the_engine_is_free_again(self):
        page = self.open()
        self.limit(page, 1500)
        self.send(page, "Tell a very long story.")
        expect(page.locator("#stop")).to_be_visible()
        expect(page.locator(".assistant .body")).to_have_text(re.compile(".{6,}", re.S), timeout=60000)
        page.screenshot(path=SHOTS / "streaming.png")
        page.keyboard.press("Escape")
        expect(page.locator("#state")).to_have_text("stopped")
        expect(page.locator("#send")).to_be_visible()
        self.assertTrue(self.server.wait_idle(5))
        self.assertEqual(self.problems, [])

    def test_regenerate_replaces_the_answer(self):
        page = self.open()
        self.answer_with(page, stream_of({"content": "first"}))
        self.send(page, "a")
        expect(page.locator(".assistant .body")).to_have_text("first")
        page.unroute("**/v1/chat/completions")
        self.answer_with(page, stream_of({"content": "second"}))
        page.click(".regenerate")
        expect(page.locator(".assistant .body")).to_have_text("second")
        self.assertEqual(page.locator(".message").count(), 2)

    def test_the_system_prompt_and_the_controls_are_sent(self):
        page = self.open()
        page.click("#toggle-settings")
        for name, value in {"system": "Be brief.", "temperature": "0.5", "seed": "3", "top_p": "0.9"}.items():
            page.fill("#" + name, value)
        self.answer_with(page, stream_of({"content": "ok"}))
        with page.expect_request("**/v1/chat/completions") as request:
            self.send(page, "a")
        body = json.loads(request.value.post_data)
        self.assertEqual(body["messages"], [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "a"}])
        self.assertEqual((body["temperature"], body["seed"], body["top_p"]), (0.5, 3, 0.9))
        self.assertNotIn("top_k", body)

    def test_an_error_is_shown_and_the_chat_goes_on(self):
        page = self.open()
        self.answer_with(page, json.dumps({"error": {"message": "the model is tired"}}), status=503, kind="application/json")
        self.send(page, "a")
        expect(page.get_by_role("alert")).to_have_text("the model is tired")
        page.screenshot(path=SHOTS / "error.png")
        page.unroute("**/v1/chat/completions")
        self.answer_with(page, 'data: {"error": {"message": "cut in the middle"}}\n\n')
        self.send(page, "b")
        expect(page.get_by_role("alert").last).to_have_text("cut in the middle")
        page.unroute("**/v1/chat/completions")
        self.answer_with(page, stream_of({"content": "fine"}))
        self.send(page, "c")
        expect(page.locator(".assistant .body").last).to_have_text("fine")

    def test_reasoning_is_folded_and_tool_calls_are_shown(self):
        page = self.open()
        call = {"index": 0, "id": "x", "type": "function", "function": {"name": "look", "arguments": ""}}
        self.answer_with(page, stream_of({"reasoning_content": "hidden thought"}, {"content": "said"}, {"tool_calls": [call]},
                                         {"tool_calls": [{"index": 0, "function": {"arguments": '{"at":"sky"}'}}]}, finish="tool_calls"))
        self.send(page, "a")
        expect(page.locator(".assistant .body")).to_have_text("said")
        expect(page.get_by_text("hidden thought")).to_be_hidden()
        page.get_by_text("Reasoning", exact=True).click()
        expect(page.get_by_text("hidden thought")).to_be_visible()
        expect(page.locator("details.tool")).to_contain_text('{"at":"sky"}')
        page.screenshot(path=SHOTS / "reasoning.png")

    def test_markdown_becomes_elements_and_html_stays_text(self):
        page = self.open()
        text = ("# Title\n\nSome **bold**, *soft* and `code`.\n\n```python\nprint('<b>')\n```\n\n- one\n- two\n  - inner\n\n1. a\n2. b\n\n"
                "> quoted\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n[good](https://example.com) [bad](javascript:alert(1))\n\n"
                "<img src=x onerror=\"window.hacked=1\"><script>window.hacked=1</script>")
        self.answer_with(page, stream_of({"content": text}))
        self.send(page, "a")
        body = page.locator(".assistant .body")
        expect(body.locator("h2")).to_have_text("Title")
        expect(body.locator("strong")).to_have_text("bold")
        expect(body.locator("pre code")).to_have_text("print('<b>')")
        self.assertEqual(body.locator("ul li").count(), 3)
        self.assertEqual(body.locator("ol li").count(), 2)
        expect(body.locator("td").last).to_have_text("2")
        self.assertEqual(body.locator("a").count(), 1)
        self.assertEqual(body.locator("img, script").count(), 0)
        self.assertIn("<img src=x", body.inner_text())
        self.assertIsNone(page.evaluate("window.hacked ?? null"))
        page.screenshot(path=SHOTS / "markdown.png", full_page=True)

    def test_a_reload_keeps_the_conversation_but_not_the_key(self):
        page = self.open()
        self.answer_with(page, stream_of({"content": "kept"}))
        page.click("#toggle-settings")
        page.fill("#key", "secret-key")
        self.send(page, "a")
        expect(page.locator(".regenerate")).to_be_visible()
        page.reload()
        expect(page.locator(".assistant .body")).to_have_text("kept")
        self.assertEqual(page.input_value("#key"), "")
        self.assertNotIn("secret-key", page.evaluate("JSON.stringify(localStorage) + JSON.stringify(sessionStorage)"))
        page.click("#new")
        self.assertEqual(page.locator(".message").count(), 0)

    def test_a_narrow_dark_screen_has_no_sideways_scrolling(self):
        page = self.open(viewport={"width": 320, "height": 568}, color_scheme="dark")
        self.answer_with(page, stream_of({"content": "word " * 60 + "\n\n```\n" + "x" * 300 + "\n```\n\n" + "y" * 300}))
        self.send(page, "z" * 200)
        expect(page.locator(".regenerate")).to_be_visible()
        self.assertLessEqual(page.evaluate("document.documentElement.scrollWidth"), 320)
        red, green, blue = map(int, page.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/g)"))
        self.assertLess(max(red, green, blue), 60)
        page.screenshot(path=SHOTS / "narrow_dark.png")

    def test_everything_can_be_reached_by_keyboard_and_has_a_name(self):
        page = self.open()
        page.locator("#toggle-settings").focus()
        page.keyboard.press("Enter")
        expect(page.locator("#settings")).to_be_visible()
        self.assertEqual(page.get_attribute("#toggle-settings", "aria-expanded"), "true")
        page.keyboard.press("Tab")
        self.assertEqual(page.evaluate("document.activeElement.id"), "system")
        nameless = page.evaluate("""[...document.querySelectorAll('button, input, textarea')]
            .filter((e) => !e.textContent.trim() && !e.labels?.length && !e.ariaLabel).map((e) => e.id)""")
        self.assertEqual(nameless, [])
        page.locator("#anatomy").locator("..").locator("summary").click()
        expect(page.locator("#anatomy")).to_contain_text("architecture")
        inspection = self.server.get("/inspect")[1]
        expect(page.locator("#inspection table")).to_contain_text("parameters")
        self.assertEqual(page.locator("#inspection tr").count(), len(inspection["parameters"]["by_part"]))
        self.assertEqual(page.locator("#inspection .strip span").count(), len(inspection["layers"]))
        page.screenshot(path=SHOTS / "settings.png")


def main():
    global ATOM, SHOTS
    parser = argparse.ArgumentParser()
    parser.add_argument("--atom", required=True)
    parser.add_argument("--shots", type=pathlib.Path, default=SHOTS, help="folder for screenshots")
    args, rest = parser.parse_known_args()
    ATOM, SHOTS = args.atom, args.shots
    unittest.main(argv=[sys.argv[0], *rest])


if __name__ == "__main__":
    main()
