"""Compares atom's tokenizer with the `tokenizers` package, id for id, on random and hand-picked texts.

usage: tokenizer_equality.py --atom build/atom [--count 2000] [--seed 1] FOLDER...

Each FOLDER holds a tokenizer.json. Texts are encoded with and without the special tokens around them; the ids are
decoded with special tokens kept and skipped. Exit status 1 and the first differences if anything is unequal.
"""

import argparse
import json
import pathlib
import random
import subprocess
import sys
import unicodedata

import tokenizers

HAND_PICKED = [
    "", " ", "  ", "\n", "\r\n", "\t", "a", " a", "a ", "Hello, world!", "Hello  world", "I'M can't WE'LL they're",
    "12345", "1234567", "3.14159 1e-9 0x7fff", "(x):\n", "a\n\n\n b", "a\r\nb", "   x", "\u00a0x", "don\u2019t", "->",
    "def f(x):\n    return x ** 2  # square\n", "\n\n\n", " \n \n ", "\u2581", " \u2581 \u2581a", "\u4e2d\u6587\u5b57",
    "\u65e5\u672c\u8a9e\u306e\u30c6\u30b9\u30c8", "\u1100\u1161\u11a8 \uac00", "e\u0301 \u00e9 n\u0303", "a\u0300\u0301\u0302",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466", "\U0001f44d\U0001f3fd", "\u2764\ufe0f", "\ufeffx", "\ufffd",
    "\u0000", "\u0001\u0002\x7f", "\u0085\u2028\u2029", "\u180e\u200b\u2060", "\u0130\u0131\u017f\u212a", "\u01c5\u02b0\u00aa",
    "<|im_start|>user\nhi<|im_end|>\n", "<s>a</s>", "<unk>", " <s> ", "<0x41>", "<|endoftext|><|endoftext|>", "<think>\n",
    "'ſ 'S 'Ll", "http://a.b/c?d=e&f=g#h", "``` js\n{}\n```", "\u0928\u092e\u0938\u094d\u0924\u0947", "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35",
    "\u0645\u0631\u062d\u0628\u0627 \u05e9\u05dc\u05d5\u05dd", "\u00bd\u00b2\u2460\u0663\u096b\u4e09", "---===***", "a" * 300, " " * 300, "\n" * 100,
    "\u4e2d" * 200, "ab" * 200, "A" * 129, "-" * 257, "\U0001f600" * 70, "/* c */ // d", "\u1e9b\u0323", "\u2126\u212b\ufb01",
]

RANGES = [
    (0x20, 0x7E), (0x20, 0x7E), (0x00, 0x1F), (0x7F, 0xA0), (0xA0, 0x17F), (0x180, 0x24F), (0x250, 0x2FF), (0x300, 0x36F),
    (0x370, 0x3FF), (0x400, 0x4FF), (0x590, 0x5FF), (0x600, 0x6FF), (0x900, 0x97F), (0xE00, 0xE7F), (0x1100, 0x11FF),
    (0x1E00, 0x1EFF), (0x2000, 0x206F), (0x2070, 0x20CF), (0x2100, 0x214F), (0x2150, 0x218F), (0x2190, 0x23FF),
    (0x2460, 0x24FF), (0x2600, 0x27BF), (0x3000, 0x303F), (0x3040, 0x30FF), (0x4E00, 0x9FFF), (0xAC00, 0xD7A3),
    (0xE000, 0xE00F), (0xF900, 0xFAFF), (0xFB00, 0xFB4F), (0xFE00, 0xFE2F), (0xFF00, 0xFFEF), (0x1D400, 0x1D7FF),
    (0x1F300, 0x1FAFF), (0x20000, 0x200FF),
]
WORDS = (
    "the of and Tokenization HTTPServer camelCase snake_case don't I'll YOU'RE it's 'tis naïve Straße привет мир "
    "γειά שלום नमस्ते こんにちは 世界 안녕 2024 007 3.14 1,000,000 foo() => != :: //"
).split()
GLUE = [" ", " ", " ", "  ", "\n", "\n\n", "\r\n", "\t", "", "\u00a0", " \n", "\u3000", "\u200d", "\u2581"]


def random_character(rng):
    while True:
        low, high = rng.choice(RANGES)
        c = chr(rng.randint(low, high))
        # What Unicode versions disagree on is not a matter of the tokenizer.
        if unicodedata.category(c) not in ("Cn", "Cs"):
            return c


def random_text(rng, specials):
    parts = []
    for _ in range(rng.randint(1, 12)):
        kind = rng.randrange(8)
        if kind < 3:
            parts.append(rng.choice(WORDS))
        elif kind == 3:
            parts.append("".join(random_character(rng) for _ in range(rng.randint(1, 6))))
        elif kind == 4:
            parts.append(random_character(rng) * rng.randint(1, 40))
        elif kind == 5 and specials:
            parts.append(rng.choice(specials))
        elif kind == 6:
            low, high = rng.choice(RANGES)
            text = "".join(chr(rng.randint(low, high)) for _ in range(rng.randint(1, 10)))
            parts.append("".join(c for c in text if unicodedata.category(c) not in ("Cn", "Cs")))
        else:
            parts.append("".join(rng.choice("aB0 .,;:!?-_/\\\n\t'\"()[]{}<>|=+*&^%$#@~`") for _ in range(rng.randint(1, 9))))
        parts.append(rng.choice(GLUE))
    return "".join(parts)


def run(atom, verb, folder, flags, batch):
    command = [atom, verb, "--model", str(folder), "--batch", *flags]
    done = subprocess.run(command, input=json.dumps(batch), capture_output=True, text=True, encoding="utf-8")
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: exit status {done.returncode}\n{done.stderr}")
    return json.loads(done.stdout)


def differences(name, inputs, got, want):
    bad = [(i, g, w) for i, g, w in zip(inputs, got, want) if g != w]
    for i, g, w in bad[:5]:
        print(f"{name}: {i!r}\n  atom       {g!r}\n  tokenizers {w!r}")
    return len(bad) + abs(len(got) - len(want))


def compare(atom, folder, count, seed):
    reference = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    reference.no_padding()
    reference.no_truncation()
    specials = [token.content for token in reference.get_added_tokens_decoder().values()][:200]
    rng = random.Random(seed)
    texts = HAND_PICKED + specials[:50] + [random_text(rng, specials) for _ in range(count)]
    bad = 0
    for flags, add in (([], True), (["--no-special-tokens"], False)):
        want = [e.ids for e in reference.encode_batch(texts, add_special_tokens=add)]
        bad += differences(f"{folder.name} encode {flags}", texts, run(atom, "tokenize", folder, flags, texts), want)
    for flags, skip in (([], False), (["--no-special-tokens"], True)):
        decoded = [reference.decode(ids, skip_special_tokens=skip) for ids in want]
        bad += differences(f"{folder.name} decode {flags}", want, run(atom, "detokenize", folder, flags, want), decoded)
    print(f"{folder.name}: {len(texts)} texts, {bad} differences")
    return bad


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--atom", required=True)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("folders", nargs="+", type=pathlib.Path)
    args = parser.parse_args()
    sys.exit(1 if sum(compare(args.atom, folder, args.count, args.seed) for folder in args.folders) else 0)


if __name__ == "__main__":
    main()
