#!/usr/bin/env python3
"""Trains small Qwen3.5 and Qwen3-Next checkpoints with a drafter on bytes of text, and writes what they draft.

Usage: train_mtp.py --out FOLDER [--family qwen3_5|qwen3_next] [--text FILE ...] [--steps N]

The drafter learns to predict the token after the next beside the model (multi-token prediction). The result is a
checkpoint with golden_mtp.json (see cases_mtp.py), whose acceptance is that of a drafter that knows its model; tokens are
bytes, so no tokenizer is needed. Needs torch, transformers and safetensors, and a few minutes.
"""

import argparse
import copy
import json
import time
from pathlib import Path

import cases_gdn
import cases_mtp
import make_golden
import numpy as np
import torch

SHAPE = dict(vocab_size=256, hidden_size=128, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
             head_dim=32, linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=16,
             linear_value_head_dim=16, intermediate_size=256,
             layer_types=["linear_attention", "full_attention", "linear_attention", "linear_attention"])


class TrainedDrafter(cases_mtp.Drafter, torch.nn.Module):
    """A drafter whose own weights are parameters; see cases_mtp.Drafter."""

    def __init__(self, model):
        torch.nn.Module.__init__(self)
        hidden = model.config.hidden_size
        object.__setattr__(self, "model", model)  # not a child: its parameters are trained with the model's
        object.__setattr__(self, "layer", model.model.layers[-1])
        self.plus_one, self.shares_selection = True, False
        for part in ("embed_norm", "hidden_norm", "norm"):
            setattr(self, part, torch.nn.Parameter(torch.zeros(hidden)))
        self.join = torch.nn.Parameter(torch.cat([torch.eye(hidden), 0.1 * torch.eye(hidden)], 1))


def losses(model, base, drafter, batch):
    hidden = base.model(batch, use_cache=False).last_hidden_state
    own = torch.nn.functional.cross_entropy(base.lm_head(hidden[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
    drafted = [model.lm_head(drafter.rows(ids[1:].tolist(), rows[:-1].detach())[:-1]) for ids, rows in zip(batch, hidden)]
    ahead = torch.nn.functional.cross_entropy(torch.cat(drafted), batch[:, 2:].flatten())
    return own, ahead


def train(family: str, text: np.ndarray, steps: int):
    config = getattr(cases_gdn, family)(**SHAPE)
    longer = copy.deepcopy(config)
    longer.num_hidden_layers += 1
    longer.layer_types = longer.layer_types + ["full_attention"]
    torch.manual_seed(0)
    model = make_golden.build(longer)
    base = copy.copy(model)  # the same weights, one layer less
    base._modules = dict(model._modules)
    base._modules["model"] = inner = copy.copy(model.model)
    inner._modules = dict(model.model._modules)
    inner._modules["layers"] = model.model.layers[:-1]
    inner.config = base.config = copy.deepcopy(model.config)  # with its ways of computing
    base.config.num_hidden_layers, base.config.layer_types = config.num_hidden_layers, config.layer_types
    drafter = TrainedDrafter(model)
    optimizer = torch.optim.AdamW([*model.parameters(), *drafter.parameters()], lr=3e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=steps)
    rng, started = np.random.default_rng(0), time.monotonic()
    for step in range(steps):
        at = rng.integers(0, len(text) - 129, 8)
        batch = torch.from_numpy(np.stack([text[i:i + 128] for i in at]).astype(np.int64))
        own, ahead = losses(model, base, drafter, batch)
        optimizer.zero_grad()
        (own + 0.5 * ahead).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 20 == 19:
            print(f"step {step + 1}: {own:.3f}, two ahead {ahead:.3f}, {time.monotonic() - started:.0f} s", flush=True)
    return config, longer, model, drafter


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--family", default="qwen3_5", choices=["qwen3_5", "qwen3_next"])
    parser.add_argument("--text", type=Path, nargs="*", help="default: the C++ files of this repository")
    parser.add_argument("--steps", type=int, default=400)
    options = parser.parse_args()
    files = options.text or sorted((Path(__file__).resolve().parents[2] / "src").glob("*/*.cc"))
    text = np.frombuffer(b"\n".join(f.read_bytes() for f in files), np.uint8)
    config, _, model, drafter = train(options.family, text, options.steps)
    with torch.no_grad():  # as it will be stored
        for parameter in [*model.parameters(), *drafter.parameters()]:
            parameter.copy_(parameter.bfloat16().float())
    base = make_golden.build(config)
    base.load_state_dict({k: v for k, v in model.state_dict().items() if k in base.state_dict()})
    cases_mtp.SMALLEST_GAP = 0.0
    prompts = [text[i:i + 48].tolist() for i in (1000, 50000, 200000)]
    goldens = [cases_mtp.trace(base, drafter, prompt, k) for k in (1, 3) for prompt in prompts]
    for golden in goldens:
        right = sum(step["accepted"] for step in golden["trace"])
        golden["accept_rate"] = right / (golden["k"] * len(golden["trace"]))
        print(f"k {golden['k']}: {golden['accept_rate']:.3f}")
    options.out.mkdir(parents=True)
    cases_mtp.write(options.out, config, base, model, drafter, qwen=True, edit=None, own="")
    (options.out / "golden_mtp.json").write_text(json.dumps(goldens) + "\n")


if __name__ == "__main__":
    main()
