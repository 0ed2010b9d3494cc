"""Writes the expected values beside this file, from the `tokenizers` package (0.23.3 made the committed ones)."""

import json
import pathlib

import tokenizers
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

HERE = pathlib.Path(__file__).parent
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TEXTS = [
    "", " ", "Hello, world!", "  two  spaces  ", "I'm DON'T we'LL", "a1b22c333 4444", "x\n\n y\r\n\tz ", "caf\u00e9 cafe\u0301",
    "\u4e2d\u6587 \u65e5\u672c", "\u0130\u01c5 \u2460\u00bd\u2167", "a--b---c-", "---", "-a", "\u2581x\u2581\u2581y", "\U0001f468\u200d\U0001f469 \U0001f600",
    "\ufb01 \u212b \u1e9b\u0323", "f(x)=y_1;", "\u00a0nb\u00a0sp\u3000", "tab\tq\u2028z", "\u0645\u064e\u0631 \u0928\u0940",
]


def split(pattern, behavior, invert=False):
    return {"type": "Split", "pattern": pattern, "behavior": behavior, "invert": invert}


def byte_level(prefix, regex):
    return {"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": True, "use_regex": regex}


def metaspace(scheme, cut=True):
    return {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": scheme, "split": cut}


def sequence(key, *parts):
    return {"type": "Sequence", key: list(parts)}


BEHAVIORS = ["Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"]
PRE_TOKENIZERS = (
    [split({"String": "-"}, b, i) for b in BEHAVIORS for i in (False, True)]
    + [split({"Regex": r"\s+|\p{N}"}, b, i) for b in BEHAVIORS for i in (False, True)]
    + [byte_level(p, r) for p in (False, True) for r in (False, True)]
    + [metaspace(s, c) for s in ("always", "first", "never") for c in (False, True)]
    + [{"type": "Metaspace", "replacement": "\u2581", "add_prefix_space": True}]
    + [{"type": "Digits", "individual_digits": d} for d in (False, True)]
    + [{"type": "Whitespace"}, {"type": "WhitespaceSplit"}, {"type": "Punctuation"}]
    + [{"type": "Punctuation", "behavior": b} for b in BEHAVIORS]
    + [
        sequence("pretokenizers", split({"Regex": LLAMA3}, "Isolated"), byte_level(False, False)),
        sequence("pretokenizers", {"type": "WhitespaceSplit"}, metaspace("first")),
        sequence("pretokenizers", {"type": "Punctuation", "behavior": "Contiguous"}, byte_level(False, True),
                 {"type": "Digits", "individual_digits": False}),
        split({"Regex": r"[\p{L}&&[^\p{Han}]]+"}, "Isolated"),
        split({"Regex": r"\p{L}{1,2}+"}, "Isolated"),
        split({"Regex": r"(?i:CAF\u00c9|i'm)|[^\w\s]|\d{,2}[a-c]"}, "Isolated"),
        split({"Regex": r"^\s|\W$|[[:punct:]]"}, "Isolated"),
    ]
)
NORMALIZERS = [
    {"type": "NFC"}, {"type": "NFD"}, {"type": "NFKC"}, {"type": "NFKD"}, {"type": "Lowercase"},
    {"type": "Prepend", "prepend": "\u2581"},
    {"type": "Strip", "strip_left": True, "strip_right": True}, {"type": "Strip", "strip_left": True, "strip_right": False},
    {"type": "Strip", "strip_left": False, "strip_right": True},
    {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"},
    {"type": "Replace", "pattern": {"Regex": r"\s{2,}|-+"}, "content": "_"},
    {"type": "Replace", "pattern": {"Regex": "x*"}, "content": "."},
    sequence("normalizers", {"type": "Prepend", "prepend": "\u2581"},
             {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}),
]
TOKENS = [
    ["\u2581Hello", "\u2581world", "!"], ["\u2581\u2581a", "\u2581"], ["a", "\u2581", "b"], ["<0xE4>", "<0xB8>", "<0xAD>", "x"],
    ["\u2581", "<0x0A>", "<0xC3>", "<0xA9>"], ["\u0120Hello", "\u010a", "\u00c3\u00a9"], ["\u4e2d", "\u0120a"], [" a ", "b "], [],
]
REPLACE_MARK = {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}
DECODERS = [
    {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
    metaspace("always"), metaspace("first"), metaspace("never"), {"type": "Fuse"}, REPLACE_MARK, {"type": "ByteFallback"},
    {"type": "Strip", "content": " ", "start": 1, "stop": 1},
    sequence("decoders", REPLACE_MARK, {"type": "ByteFallback"}, {"type": "Fuse"},
             {"type": "Strip", "content": " ", "start": 1, "stop": 0}),
    sequence("decoders", REPLACE_MARK, {"type": "ByteFallback"}, {"type": "Fuse"},
             {"type": "Strip", "content": "a", "start": 2, "stop": 2}),
]


def with_component(key, config):
    root = {"version": "1.0", "added_tokens": [], key: config,
            "model": {"type": "BPE", "vocab": {}, "merges": [], "dropout": None, "unk_token": None}}
    return Tokenizer.from_str(json.dumps(root))


def components():
    return {
        "pre_tokenizer": [
            {"config": c, "cases": [[t, [p for p, _ in with_component("pre_tokenizer", c).pre_tokenizer.pre_tokenize_str(t)]]
                                    for t in TEXTS]} for c in PRE_TOKENIZERS],
        "normalizer": [
            {"config": c, "cases": [[t, with_component("normalizer", c).normalizer.normalize_str(t)] for t in TEXTS if t]}
            for c in NORMALIZERS],
        "decoder": [
            {"config": c, "cases": [[t, with_component("decoder", c).decoder.decode(t)] for t in TOKENS if t]} for c in DECODERS],
    }


CORPUS = [
    "The tokenizer of a language model cuts a text into tokens, and the model reads the tokens one by one.",
    "the theory then there other another mother together with the weather", "hello hello world, low lower lowest newer wider",
    "def encode(text): return [token for token in text.split()]", "2024 1999 100 200 300 caf\u00e9 na\u00efve \u4e2d\u6587 \u65e5\u672c\u8a9e",
] * 3
ADDED = [
    AddedToken("<s>", special=True, normalized=False), AddedToken("<|u|>", special=True, normalized=False, rstrip=True),
    AddedToken("<|l|>", special=True, normalized=False, lstrip=True), AddedToken("<a>", special=False, normalized=False),
    AddedToken("<a><b>", special=False, normalized=False), AddedToken("word", special=False, normalized=False, single_word=True),
    AddedToken("THE end", special=False, normalized=True), AddedToken("<both>", special=True, normalized=True, lstrip=True, rstrip=True),
]
PIPELINE_TEXTS = TEXTS + [
    "<s> hello<|u|>  world", "hello  <|l|> hello", "<a><b><a>", "word words sword word", " word", "the THE end of", "x <both>  y",
    "<s><s>the", "hello world the tokenizer", "<|u|> hello", "\n\n<|u|>\n hello", "the weather in 2024 is 123456", "<a> <b>",
    "wordword word-word \u0301word", "the end", "\u2581the \u2581", "lowest caf\u00e9 \u4e2d\u6587",
]
TEMPLATE = {
    "type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
               {"SpecialToken": {"id": "<|l|>", "type_id": 0}}],
    "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
}


def trained(model, initial, vocab_size, normalizer=None, pre_tokenizer=None):
    t = Tokenizer(model)
    if normalizer:
        t.normalizer = normalizer
    if pre_tokenizer:
        t.pre_tokenizer = pre_tokenizer
    t.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=vocab_size, initial_alphabet=initial, show_progress=False))
    return json.loads(t.to_str())["model"]


def pipeline(model, **parts):
    root = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
            "pre_tokenizer": None, "post_processor": None, "decoder": None, "model": model, **parts}
    t = Tokenizer.from_str(json.dumps(root))
    t.add_tokens(ADDED)
    root = json.loads(t.to_str())
    root["post_processor"] = dict(TEMPLATE, special_tokens={
        s: {"id": s, "ids": [t.token_to_id(s)], "tokens": [s]} for s in ("<s>", "<|l|>")})
    t = Tokenizer.from_str(json.dumps(root))
    normalized = {a["id"] for a in root["added_tokens"] if a["normalized"]}
    cases = []
    for text in PIPELINE_TEXTS:
        t.encode_special_tokens = True
        plain = t.encode(text, add_special_tokens=False).ids
        t.encode_special_tokens = False
        ids = t.encode(text).ids
        bare = t.encode(text, add_special_tokens=False).ids
        case = {"text": text, "ids": ids, "bare": bare, "plain": plain}
        # This release writes a normalized added token as the normalizer leaves it, and then fails to skip it.
        if normalized.isdisjoint(ids):
            case["decoded"] = t.decode(ids, skip_special_tokens=False)
            case["skipped"] = t.decode(ids, skip_special_tokens=True)
        cases.append(case)
    return {"tokenizer": root, "cases": cases}


def pipelines():
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    regex = sequence("pretokenizers", split({"Regex": LLAMA3}, "Isolated"), byte_level(False, False))
    bytes_model = trained(models.BPE(), alphabet, 420, pre_tokenizer=pre_tokenizers.ByteLevel(add_prefix_space=False))
    no_bytes = json.loads(json.dumps(bytes_model))
    for c in ("\u0120", "\u010a", "z"):  # bytes without a token are left out
        del no_bytes["vocab"][c]
    no_bytes["merges"] = [m for m in no_bytes["merges"] if "\u0120" not in m and "\u010a" not in m and "z" not in "".join(m)]
    no_bytes["vocab"] = {token: i for i, token in enumerate(no_bytes["vocab"])}
    as_strings = dict(bytes_model, merges=[" ".join(m) for m in bytes_model["merges"]])
    marks = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    sp = trained(models.BPE(unk_token="<unk>", fuse_unk=True), [], 160, normalizer=marks)
    size = len(sp["vocab"])
    sp["vocab"]["<unk>"] = size
    fallback = dict(sp, byte_fallback=True, vocab={**sp["vocab"], **{f"<0x{b:02X}>": size + 1 + b for b in range(256)}})
    words = trained(models.BPE(), [], 140, pre_tokenizer=pre_tokenizers.Metaspace())
    byte_decoder = json.loads(json.dumps(DECODERS[0]))
    sp_normalizer = NORMALIZERS[-1]
    return [
        pipeline(as_strings, pre_tokenizer=regex, decoder=byte_decoder),
        pipeline(dict(bytes_model, ignore_merges=True), pre_tokenizer=regex, decoder=byte_decoder, normalizer={"type": "NFC"}),
        pipeline(no_bytes, pre_tokenizer=byte_level(True, True), decoder=byte_decoder, normalizer={"type": "Lowercase"}),
        pipeline(sp, normalizer=sp_normalizer, decoder=DECODERS[-2]),
        pipeline(dict(sp, fuse_unk=False), normalizer=sp_normalizer, decoder=DECODERS[-2]),
        pipeline(fallback, normalizer=sp_normalizer, decoder=DECODERS[-2]),
        pipeline(words, pre_tokenizer=metaspace("first"), decoder=metaspace("first")),
        pipeline(words, pre_tokenizer=metaspace("always", False)),
    ]


def write(name, value):
    (HERE / name).write_text(json.dumps(value, separators=(",", ":")) + "\n")


write("components.json", components())
write("pipelines.json", pipelines())
print(tokenizers.__version__)
