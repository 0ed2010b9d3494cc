"""Golden cases of speculation: tiny checkpoints with a drafter, and what it drafts and the model accepts.

The drafter is one more decoder layer of the architecture. It is computed here by the plain definition, without a
cache: row t of the draft sequence joins the embedding of token t + 1 with the model's hidden state of row t after the
final norm; a later draft step appends a row made of the last draft and of the drafter's own normalised output.

golden_mtp.json is a list of {"k", "prompt", "tokens", "trace": [{"drafts", "accepted"}]}: with k drafts per step, the
greedy continuation of the prompt, and per step what was drafted and how much of it was right.
"""

import copy
import json
import math
import tempfile
from pathlib import Path

import cases_gdn
import cases_mla
import cases_moe
import make_golden
import numpy as np
import torch
from safetensors.torch import load_file, save_file

TOKENS, SMALLEST_GAP = 40, 3e-4


def varying(strength: float, plus_one: bool):
    """With weak blocks, what the model says depends most on the last token, as what the drafter says does."""
    def vary(rng: np.random.Generator, name: str, shape: tuple[int, ...], tied: bool) -> np.ndarray:
        values = (cases_gdn.vary if "linear_attn" in name else make_golden.vary)(rng, name, shape, tied)
        if "layernorm.weight" in name or name == "model.norm.weight":
            return (0.0 if plus_one else 1.0) + 0.1 * rng.standard_normal(shape)
        if any(part in name for part in ("o_proj", "out_proj", "down_proj")):
            return strength * values
        return values
    return vary


class Drafter:
    """The drafter of a model that was built with one layer more than it has."""

    def __init__(self, model, seed: int, plus_one: bool):
        rng, hidden = np.random.default_rng(seed), model.config.hidden_size
        self.model, self.layer = model, model.model.layers[-1]
        one = 0.0 if plus_one else 1.0
        self.embed_norm, self.hidden_norm, self.norm = (
            torch.from_numpy(one + 0.1 * rng.standard_normal(hidden)).float() for _ in range(3))
        join = np.concatenate([np.eye(hidden), 0.1 * np.eye(hidden)], axis=1)
        self.join = torch.from_numpy(join + 0.04 / math.sqrt(hidden) * rng.standard_normal(join.shape)).float()
        self.plus_one = plus_one
        self.shares_selection, self.chosen = False, None  # the choice of the last row of the first step
        if hasattr(self.layer.self_attn, "indexer"):
            self.select = self.layer.self_attn.indexer.forward
            self.layer.self_attn.indexer.forward = self.selection

    def rms(self, x, weight):
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.model.config.rms_norm_eps)
        return x * (weight + 1.0 if self.plus_one else weight)

    def selection(self, *args, **more):
        """Rows behind `self.first_rows` use the choice of the last of those, if the model shares it."""
        indices = self.select(*args, **more)
        last, topk = self.first_rows - 1, self.model.config.index_topk
        if indices.shape[1] == self.first_rows:
            self.chosen = indices[0, last] if last >= topk else torch.arange(topk)
        elif self.shares_selection:
            for row in range(self.first_rows, indices.shape[1]):
                if row >= topk:
                    indices[0, row] = self.chosen
        return indices

    def rows(self, next_tokens: list[int], hidden: torch.Tensor) -> torch.Tensor:
        embedded = self.model.model.embed_tokens(torch.tensor(next_tokens))
        x = torch.cat([self.rms(embedded, self.embed_norm), self.rms(hidden, self.hidden_norm)], -1) @ self.join.T
        positions = torch.arange(len(next_tokens))[None]
        mask = torch.full((len(next_tokens),) * 2, torch.finfo(torch.float32).min).triu(1)[None, None]
        sections = positions.expand(3, 1, -1) if "Qwen3_5" in type(self.model).__name__ else positions
        out = self.layer(x[None], attention_mask=mask, position_ids=positions,
                         position_embeddings=self.model.model.rotary_emb(x[None], position_ids=sections))
        return self.rms((out[0] if isinstance(out, tuple) else out)[0], self.norm)

    def draft(self, tokens: list[int], hidden: torch.Tensor, k: int) -> tuple[list[int], float]:
        """Drafts behind `tokens`, of which `hidden` has all rows but the last; and the smallest gap on the way."""
        next_tokens, drafts, gap = tokens[1:], [], math.inf
        self.first_rows = len(next_tokens)
        for _ in range(k):
            out = self.rows(next_tokens, hidden)[-1]
            best = self.model.lm_head(out).topk(2)
            drafts.append(int(best.indices[0]))
            gap = min(gap, float(best.values[0] - best.values[1]))
            next_tokens, hidden = next_tokens + drafts[-1:], torch.cat([hidden, out[None]])
        return drafts, gap


@torch.no_grad()
def trace(model, drafter: Drafter, prompt: list[int], k: int) -> dict:
    def run(ids):
        hidden = model.model(torch.tensor([ids]), use_cache=False).last_hidden_state[0]
        return hidden, model.lm_head(hidden)

    def best(logits):
        top = logits.topk(2, -1)
        gap = min(float(g) for g in top.values[..., 0].flatten() - top.values[..., 1].flatten())
        return top.indices[..., 0].flatten().tolist(), gap

    hidden, logits = run(prompt)
    ids, smallest = best(logits[-1])
    tokens, steps = prompt + ids, []
    while len(tokens) - len(prompt) < TOKENS:
        drafts, gap = drafter.draft(tokens, hidden, k)
        rows, logits = run(tokens + drafts)
        ids, own_gap = best(logits[len(tokens) - 1:])
        right = next((i for i in range(k) if ids[i] != drafts[i]), k)
        steps.append({"drafts": drafts, "accepted": right})
        smallest = min(smallest, gap, own_gap)
        tokens += ids[:right + 1]
        hidden = rows[:len(tokens) - 1]
    assert smallest > SMALLEST_GAP, f"a near tie: {smallest:.1e}"
    return {"k": k, "prompt": prompt, "tokens": tokens[len(prompt):], "trace": steps}


def make(root: Path, name: str, config, longer, *, seed: int, qwen: bool = False, edit=None, own: str = "") -> None:
    """`longer` is the config with one layer more. `own`: the drafter has an embedding or head of its own."""
    path = root / name
    path.mkdir(parents=True)
    for attempt in range(100):
        big = make_golden.build(longer)
        strength = (0.05, 0.03, 0.02, 0.01, 0.005)[attempt % 5]
        make_golden.randomize(big, seed + 1000 * attempt, torch.bfloat16, varying(strength, qwen))
        model = make_golden.build(config)
        model.load_state_dict({k: v for k, v in big.state_dict().items() if k in model.state_dict()})
        drafter = Drafter(big, seed + 1000 * attempt, qwen)
        for part in ("join", "embed_norm", "hidden_norm", "norm"):
            setattr(drafter, part, getattr(drafter, part).bfloat16().float())
        drafter.shares_selection = bool(edit and edit.get("index_share_for_mtp_iteration"))
        vocab = config.vocab_size
        try:
            goldens = [trace(model, drafter, make_golden.prompt(seed + i, tokens, vocab), k)
                       for i, (k, tokens) in enumerate([(1, 9), (2, 21), (4, 14)])]
        except AssertionError as problem:
            print(f"{name}: attempt {attempt}: {problem}", flush=True)
            continue
        right = sum(step["accepted"] for golden in goldens for step in golden["trace"])
        drafted = sum(golden["k"] * len(golden["trace"]) for golden in goldens)
        print(f"{name}: attempt {attempt}: {right} of {drafted} drafts right", flush=True)
        if 0.25 < right / drafted < 0.85:
            break
    else:
        raise SystemExit(f"{name}: no seed without near ties")
    write(path, config, model, big, drafter, qwen, edit, own)
    (path / "golden_mtp.json").write_text(json.dumps(goldens) + "\n")


def write(path: Path, config, model, big, drafter: Drafter, qwen: bool, edit, own: str) -> None:
    """The checkpoint in `path`: the tensors of `big` under the names that published checkpoints have."""
    with tempfile.TemporaryDirectory() as folder:
        big.to(torch.bfloat16).save_pretrained(folder)
        tensors = load_file(Path(folder) / "model.safetensors")
    layer = f"model.layers.{config.num_hidden_layers}."
    parts = {"join": "fc", "embed_norm": "pre_fc_norm_embedding", "hidden_norm": "pre_fc_norm_hidden", "norm": "norm"} \
        if qwen else {"join": "eh_proj", "embed_norm": "enorm", "hidden_norm": "hnorm", "norm": "shared_head.norm"}
    scope = "mtp." if qwen else layer
    if qwen:
        tensors = {k.replace(layer, "mtp.layers.0."): v for k, v in tensors.items()}
    for part, stored in parts.items():
        tensors[f"{scope}{stored}.weight"] = getattr(drafter, part).bfloat16()
    if own == "copies":  # as DeepSeek-V3 stores them
        tensors[f"{scope}embed_tokens.weight"] = tensors["model.embed_tokens.weight"].clone()
        tensors[f"{scope}shared_head.head.weight"] = tensors["lm_head.weight"].clone()
    save_file(tensors, path / "model.safetensors", {"format": "pt"})
    with tempfile.TemporaryDirectory() as folder:
        model.to(torch.bfloat16).save_pretrained(folder)
        for file in ("config.json", "generation_config.json"):
            data = json.loads((Path(folder) / file).read_text())
            if file == "config.json":
                data |= edit or {}
            (path / file).write_text(json.dumps(data, indent=2, sort_keys=True) + "\n")


def make_echo(root: Path, name: str, source: str) -> None:
    """`source` with blocks that add nothing, and a drafter that passes the next token's embedding through."""
    tensors = load_file(root / source / "model.safetensors")
    for key, value in tensors.items():
        if any(part in key for part in ("o_proj", "down_proj")):
            value.zero_()
        if "norm" in key and value.dim() == 1:
            value.fill_(1)
        if key.endswith("eh_proj.weight"):
            value[:] = torch.eye(*value.shape)
    path = root / name
    path.mkdir(parents=True)
    save_file(tensors, path / "model.safetensors", {"format": "pt"})
    for file in ("config.json", "generation_config.json"):
        (path / file).write_text((root / source / file).read_text())


def make_all(root: Path) -> None:
    def deeper(config, **edit):
        longer = copy.deepcopy(config)
        longer.num_hidden_layers += 1
        for key, value in edit.items():
            setattr(longer, key, getattr(longer, key) + [value])
        return longer

    nextn = {"num_nextn_predict_layers": 1}
    v3 = cases_mla.deepseek(num_hidden_layers=2)
    make(root, "deepseek_v3_mtp", v3, deeper(v3), seed=200, edit=nextn, own="copies")
    make_echo(root, "deepseek_v3_mtp_echo", "deepseek_v3_mtp")
    v32 = cases_mla.deepseek_v32(num_hidden_layers=2)
    make(root, "deepseek_v32_mtp", v32, deeper(v32, layer_types="deepseek_sparse_attention", mlp_layer_types="sparse"), seed=210, edit=nextn)
    glm5 = cases_mla.glm(num_hidden_layers=3, indexer_types=["full", "shared", "full"])
    make(root, "glm_moe_dsa_mtp", glm5,
         deeper(glm5, layer_types="deepseek_sparse_attention", indexer_types="full", mlp_layer_types="sparse"),
         seed=220, edit=nextn | {"index_share_for_mtp_iteration": True})
    glm4 = cases_moe.glm4_moe(num_hidden_layers=2)
    make(root, "glm4_moe_mtp", glm4, deeper(glm4), seed=230, edit=nextn)
    types = ["linear_attention", "full_attention", "linear_attention"]
    next_ = cases_gdn.qwen3_next(num_hidden_layers=3, layer_types=types)
    make(root, "qwen3_next_mtp", next_, deeper(next_, layer_types="full_attention"), seed=240, qwen=True)
    dense = cases_gdn.qwen3_5(num_hidden_layers=3, layer_types=types)
    make(root, "qwen3_5_mtp", dense, deeper(dense, layer_types="full_attention"), seed=250, qwen=True)


if __name__ == "__main__":
    make_all(Path(__file__).resolve().parent)
