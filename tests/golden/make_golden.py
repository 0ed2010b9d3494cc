#!/usr/bin/env python3
"""Makes the tiny random checkpoints in this folder and what transformers computes for them (float32, eager).

A golden folder is a Hugging Face checkpoint plus golden files:
  config.json                 the checkpoint as transformers writes it; what it computes is in golden.safetensors
  config_<case>.json          another configuration of the same weights, with golden_<case>.safetensors
  config[_<case>].<how>.json  the same configuration spelled another way: the golden is that of the part before the dot
golden.safetensors holds
  input_ids   int64   [tokens]
  logits      float32 [tokens, vocab]   of one forward pass over input_ids
  greedy_ids  int64   [steps]           the continuation of input_ids at temperature 0, end-of-sequence ids ignored
  greedy_gap  float32 [steps]           best logit minus second best, per step
and in its metadata, where the folder's end-of-sequence ids stop the continuation early, `eos_at`: the index in
greedy_ids of the id that stops it.

Needs torch, transformers and safetensors.  --check regenerates into a temporary folder and compares.
"""

import argparse
import contextlib
import copy
import importlib
import json
import math
import os
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
import transformers
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import cases_moe

STEPS = 24
ROPE_THETA = 10000.0


def vary(rng: np.random.Generator, name: str, shape: tuple[int, ...], tied: bool) -> np.ndarray:
    """Random values large enough that attention, positions, norms and biases all show in the logits."""
    noise = rng.standard_normal(shape)
    if name.endswith("bias"):
        return 0.5 * noise
    if "norm" in name:
        return (1.3 if "q_norm" in name or "k_norm" in name else 1.0) + 0.3 * noise
    if "embed_tokens" in name:
        return (0.25 if tied else 1.0) * noise  # a large tied embedding would only ever repeat the last token
    if name.endswith("sinks"):
        return noise
    gain = 1.4 if "q_proj" in name or "k_proj" in name else 3.0 if name.endswith("gate_up_proj") else 1.2
    return gain / math.sqrt(shape[-1]) * noise


def randomize(model: torch.nn.Module, seed: int, dtype: torch.dtype, vary=vary, corrections: bool = True) -> None:
    """Fills the weights in the order of their names, rounded to the type they will be stored in."""
    rng = np.random.default_rng(seed)
    buffers = [(name, b) for name, b in model.named_buffers() if name.endswith("e_score_correction_bias") and corrections]
    for name, parameter in sorted([*model.named_parameters(), *buffers]):
        values = torch.from_numpy(vary(rng, name, tuple(parameter.shape), model.config.tie_word_embeddings))
        parameter.data = values.to(dtype).to(torch.float32)


def build(config) -> torch.nn.Module:
    config = copy.deepcopy(config)
    config._attn_implementation = config._experts_implementation = "eager"
    model = getattr(transformers, config.architectures[0])(config)
    return model.to(torch.float32).eval()


@torch.no_grad()
def forward(model: torch.nn.Module, ids: list[int]) -> torch.Tensor:
    return model(torch.tensor([ids]), use_cache=False).logits[0]


@torch.no_grad()
def greedy(model: torch.nn.Module, ids: list[int], steps: int) -> tuple[list[int], list[float]]:
    out, gaps, past, fresh = [], [], None, ids
    for _ in range(steps):
        answer = model(torch.tensor([fresh]), past_key_values=past, use_cache=True)
        past = answer.past_key_values
        best = answer.logits[0, -1].topk(2)
        out.append(int(best.indices[0]))
        gaps.append(float(best.values[0] - best.values[1]))
        fresh = out[-1:]
    return out, gaps


def relative_error(got: torch.Tensor, want: torch.Tensor) -> float:
    return float((got.double() - want.double()).abs().max() / want.double().abs().max())


def prompt(seed: int, tokens: int, vocab: int) -> list[int]:
    return np.random.default_rng(1000 + seed).integers(3, vocab, tokens).tolist()


class Folder:
    """One golden folder being written: the weights are drawn once, each case is another configuration of them."""

    def __init__(self, root: Path, name: str, config, *, seed: int, tokens: int = 48, dtype=torch.float32,
                 shard_size: str | None = None, vary=vary, store=None):
        """`store(folder, config)` may rewrite the saved folder; it returns the state that this then means."""
        self.path, self.config, self.ids = root / name, config, prompt(seed, tokens, config.vocab_size)
        self.path.mkdir(parents=True)
        model = build(config)
        randomize(model, seed, dtype, vary)
        self.state = {k: v.clone() for k, v in model.state_dict().items()}
        self.goldens: dict[str, torch.Tensor] = {}
        model.to(dtype).save_pretrained(self.path, **({"max_shard_size": shard_size} if shard_size else {}))
        if store is not None:
            self.state = store(self.path, config)
        self.add("", config)

    def model(self, config) -> torch.nn.Module:
        model = build(config)
        model.load_state_dict(self.state)
        return model

    def add(self, case: str, config, differs_from: str | None = None) -> "Folder":
        """Writes the golden of `config`, and its config file if it is not the folder's own."""
        logits = forward(self.model(config), self.ids)
        ids, gaps = greedy(self.model(config), self.ids, STEPS)
        exact = forward(self.model(config).double(), self.ids)
        assert relative_error(logits, exact) < 3e-5, f"{self.path.name}/{case}: badly conditioned weights"
        if differs_from is not None:
            difference = relative_error(logits, self.goldens[differs_from])
            assert difference > 1e-2, f"{self.path.name}/{case}: differs from {differs_from!r} by {difference:.1e} only"
        self.goldens[case] = logits
        suffix = f"_{case}" if case else ""
        if case:
            self.write_config(f"config{suffix}.json", self.as_written(config))
        self.write_golden(f"golden{suffix}.safetensors", logits, ids, gaps, {})
        return self

    def respell(self, case: str, how: str, edit) -> "Folder":
        """Adds a config that must mean the same as `case`; `edit` changes the dictionary in place."""
        suffix = f"_{case}" if case else ""
        data = json.loads((self.path / f"config{suffix}.json").read_text())
        edit(data)
        name = f"config{suffix}.{how}.json"
        self.write_config(name, data)
        with tempfile.TemporaryDirectory() as folder:
            shutil.copy(self.path / name, Path(folder) / "config.json")
            again = transformers.AutoConfig.from_pretrained(folder)
        assert torch.equal(forward(self.model(again), self.ids), self.goldens[case]), f"{name} means something else"
        return self

    def stop_at(self, index: int) -> "Folder":
        """Makes greedy_ids[index] one of the end-of-sequence ids of generation_config.json."""
        golden = load_file(self.path / "golden.safetensors")
        ids = golden["greedy_ids"].tolist()
        assert ids.index(ids[index]) == index and 2 not in ids[:index], "the continuation would stop earlier"
        path = self.path / "generation_config.json"
        data = json.loads(path.read_text()) | {"eos_token_id": [1, ids[index]]}
        path.write_text(json.dumps(data, indent=2) + "\n")
        self.write_golden("golden.safetensors", golden["logits"], ids, golden["greedy_gap"].tolist(),
                          {"eos_at": str(index)})
        return self

    def as_written(self, config) -> dict:
        data = json.loads((self.path / "config.json").read_text())
        fresh = json.loads(config.to_json_string())
        return {k: v for k, v in fresh.items() if k in data or v is not None} | {"dtype": data["dtype"]}

    def write_config(self, name: str, data: dict) -> None:
        (self.path / name).write_text(json.dumps(data, indent=2, sort_keys=True) + "\n")

    def write_golden(self, name: str, logits, ids: list[int], gaps: list[float], metadata: dict[str, str]) -> None:
        save_file({"input_ids": torch.tensor(self.ids), "logits": logits.contiguous(), "greedy_ids": torch.tensor(ids),
                   "greedy_gap": torch.tensor(gaps)}, self.path / name,
                  metadata | {"made_by": f"transformers {transformers.__version__}"})


def llama(**overrides):
    values = dict(architectures=["LlamaForCausalLM"], vocab_size=128, hidden_size=64, intermediate_size=96,
                  num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=128,
                  rms_norm_eps=1e-5, tie_word_embeddings=False,
                  rope_parameters={"rope_type": "default", "rope_theta": ROPE_THETA})
    return transformers.LlamaConfig(**(values | overrides))


def mistral(**overrides):
    values = dict(architectures=["MistralForCausalLM"], vocab_size=128, hidden_size=48, intermediate_size=64,
                  num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, head_dim=16, sliding_window=16,
                  max_position_embeddings=128, tie_word_embeddings=False,
                  rope_parameters={"rope_type": "default", "rope_theta": ROPE_THETA})
    return transformers.MistralConfig(**(values | overrides))


def qwen3(**overrides):
    values = dict(architectures=["Qwen3ForCausalLM"], vocab_size=128, hidden_size=48, intermediate_size=64,
                  num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
                  max_position_embeddings=128, rms_norm_eps=1e-6, tie_word_embeddings=False, bos_token_id=1,
                  eos_token_id=2, rope_parameters={"rope_type": "default", "rope_theta": 1000000.0})
    return transformers.Qwen3Config(**(values | overrides))


def rope(kind: str, **extra) -> dict:
    return {"rope_type": kind, "rope_theta": extra.pop("theta", ROPE_THETA)} | extra


def old_spelling(*names: str):
    """Transformers 4: rope_theta at the top, rope_scaling with the kind under `names`, torch_dtype."""
    def edit(data: dict) -> None:
        scaling = data.pop("rope_parameters")
        data["rope_theta"] = scaling.pop("rope_theta")
        kind = scaling.pop("rope_type")
        data["rope_scaling"] = None if kind == "default" else dict.fromkeys(names, kind) | scaling
        data["torch_dtype"] = data.pop("dtype")
    return edit


def theta_on_top(data: dict) -> None:
    data["rope_theta"] = data["rope_parameters"].pop("rope_theta")


def without(*keys: str):
    def edit(data: dict) -> None:
        for key in keys:
            del data[key]
    return edit


def make_llama_rope(root: Path) -> None:
    """One set of weights under every kind of position scaling, the prompt longer than the original context."""
    yarn = dict(factor=4.0, original_max_position_embeddings=32)
    kinds = {
        "theta": rope("default", theta=500000.0),
        "linear": rope("linear", factor=4.0),
        "llama3": rope("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                       original_max_position_embeddings=32),
        "yarn": rope("yarn", theta=500000.0, **yarn),
        "yarn_factor": rope("yarn", theta=500000.0, attention_factor=1.3, **yarn),
        "yarn_mscale": rope("yarn", mscale=1.0, mscale_all_dim=0.4, beta_fast=16.0, beta_slow=2.0, **yarn),
        "yarn_smooth": rope("yarn", truncate=False, beta_fast=8.0, beta_slow=0.7, **yarn),
    }
    folder = Folder(root, "llama_rope", llama(), seed=1, tokens=70, dtype=torch.bfloat16)
    folder.respell("", "v4", old_spelling())
    for case, parameters in kinds.items():
        folder.add(case, llama(rope_parameters=dict(parameters)), differs_from="")
    folder.add("dynamic", llama(rope_parameters=rope("dynamic", factor=4.0), max_position_embeddings=32), "")
    for case in ("linear", "dynamic", "llama3", "yarn_factor", "yarn_mscale"):
        folder.respell(case, "v4", old_spelling("rope_type"))
    folder.respell("yarn", "type", old_spelling("type"))
    folder.respell("yarn", "rope_type", old_spelling("rope_type"))
    folder.respell("yarn", "both", old_spelling("type", "rope_type"))
    folder.respell("yarn", "theta_on_top", theta_on_top)


def make_all(root: Path) -> None:
    make_llama_rope(root)
    cases_moe.make(root, Folder, old_spelling)
    Folder(root, "llama_plain", llama(num_key_value_heads=4, hidden_size=48, head_dim=12), seed=2).stop_at(11)
    Folder(root, "llama_tied", llama(tie_word_embeddings=True, hidden_size=32, intermediate_size=64), seed=3)
    Folder(root, "llama_bias", llama(attention_bias=True, mlp_bias=True, hidden_size=32, intermediate_size=64), seed=4)
    Folder(root, "llama_head_dim", llama(hidden_size=40, num_attention_heads=5, num_key_value_heads=1, head_dim=16,
                                         intermediate_size=56, vocab_size=131), seed=5)
    (Folder(root, "llama_gqa6", llama(hidden_size=48, num_attention_heads=6, num_key_value_heads=3,
                                      intermediate_size=64, num_hidden_layers=3), seed=6, dtype=torch.bfloat16)
     .respell("", "head_dim_null", lambda data: data.update(head_dim=None))
     .respell("", "head_dim_absent", without("head_dim")))
    Folder(root, "llama_sharded", llama(hidden_size=32, intermediate_size=64), seed=7, shard_size="50KB")
    Folder(root, "llama_f16", llama(hidden_size=32, intermediate_size=64), seed=8, dtype=torch.float16)
    (Folder(root, "mistral_window", mistral(), seed=9, tokens=60, dtype=torch.bfloat16)
     .add("full", mistral(sliding_window=None), differs_from=""))
    yarn = rope("yarn", theta=1000000.0, factor=4.0, original_max_position_embeddings=32)
    (Folder(root, "qwen3_plain", qwen3(), seed=10, tokens=70)
     .respell("", "v4", old_spelling())
     .add("yarn", qwen3(rope_parameters=yarn), differs_from="")
     .respell("yarn", "v4", old_spelling("rope_type")))
    Folder(root, "qwen3_tied", qwen3(tie_word_embeddings=True, attention_bias=True, num_attention_heads=6,
                                     num_key_value_heads=2, hidden_size=32), seed=11, dtype=torch.bfloat16)
    window = dict(num_hidden_layers=4, use_sliding_window=True, sliding_window=16)
    mixed = ["sliding_attention", "full_attention", "sliding_attention", "full_attention"]
    (Folder(root, "qwen3_window", qwen3(layer_types=mixed, **window), seed=12, tokens=60, dtype=torch.bfloat16)
     .add("upper", qwen3(max_window_layers=2, **window), differs_from="")
     .respell("upper", "layer_types_absent", without("layer_types"))
     .add("off", qwen3(num_hidden_layers=4, use_sliding_window=False, sliding_window=16), differs_from="")
     .respell("off", "window_present", lambda data: data.update(sliding_window=16, max_window_layers=2)))
    # The cases of other families; imported here because they use what is above.
    import cases_gdn
    cases_gdn.make_all(root)
    import cases_mla  # here, because it imports this module
    cases_mla.make_all(root)
    import cases_quant
    cases_quant.make_all(root)
    import cases_mtp
    cases_mtp.make_all(root)


def compare(made: Path, kept: Path, patterns: list[str]) -> list[str]:
    """What differs between two trees of JSON and safetensors: weights bit by bit, logits within float32 noise."""
    files = {str(p.relative_to(root)) for root in (made, kept) for pattern in patterns for p in root.glob(pattern)}
    problems = []
    for name in sorted(files):
        a, b = made / name, kept / name
        if not a.exists() or not b.exists():
            problems.append(f"{name}: only in {'the committed' if b.exists() else 'the new'} files")
        elif a.suffix == ".json":
            ours, theirs = json.loads(a.read_text()), json.loads(b.read_text())
            for data in (ours, theirs):
                data.pop("transformers_version", None)
            if ours != theirs:
                problems.append(f"{name}: differs")
        else:
            with safe_open(a, "pt") as x, safe_open(b, "pt") as y:
                if set(x.keys()) != set(y.keys()):
                    problems.append(f"{name}: other tensors")
                    continue
                for key in x.keys():
                    ours, theirs = x.get_tensor(key), y.get_tensor(key)
                    near = key in ("logits", "greedy_gap") and ours.shape == theirs.shape
                    if not (relative_error(ours, theirs) < 1e-5 if near else torch.equal(ours, theirs)):
                        problems.append(f"{name}: {key} differs")
    return problems


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare with the committed files and change nothing")
    here = Path(__file__).resolve().parent
    parser.add_argument("--only", metavar="MODULE", help="make the cases of one module, such as cases_quant")
    options = parser.parse_args()
    check = options.check
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(sys.stderr):
        made = Path(folder)
        if options.only:
            importlib.import_module(options.only).make_all(made)
        else:
            make_all(made)
        if check:
            kept = [path.name for path in made.iterdir()] if options.only else ["*"]
            problems = compare(made, here, [f"{name}/*.{kind}" for name in kept for kind in ("json", "safetensors")])
            print("\n".join(problems) or "the committed golden files are what this script makes")
            return 1 if problems else 0
        for path in sorted(made.iterdir()):
            shutil.rmtree(here / path.name, ignore_errors=True)
            shutil.copytree(path, here / path.name, copy_function=shutil.copyfile)
            size = sum(f.stat().st_size for f in path.iterdir())
            print(f"{path.name:16} {size / 1024:7.0f} KiB  {len(list(path.glob('config*.json')))} configurations")
    return 0


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    sys.exit(main())
