#!/usr/bin/env python3
"""Trains a tiny Qwen3-Next or Qwen3.5 with its MTP layer on program text and writes it as it would be published,
with golden_mtp.json: greedy text and the drafts of every verification step, in float32 from the plain definition.

Row t of the draft sequence is fc([norm(embedding of token t+1) ; norm(h_t)]), h_t being the target's hidden state behind
its final norm; one full-attention layer, mtp.norm, the target's own head. A later draft step appends a row made of
the draft's embedding and the drafter's own hidden state behind mtp.norm.

Needs torch, transformers and tokenizers; a few minutes on a GPU. The text is the source of Python's standard library.

    train_mtp.py --family qwen3_5 --out tests/mtp/qwen3_5 [--steps 3000]
"""

import argparse
import json
import random
import sysconfig
from pathlib import Path

import torch
import torch.nn.functional as F
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers.models.qwen3_5 import modeling_qwen3_5
from transformers.models.qwen3_next import modeling_qwen3_next

VOCAB, CONTEXT = 512, 256
SIZES = dict(vocab_size=VOCAB, hidden_size=64, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
             head_dim=32, linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=16,
             linear_value_head_dim=16, linear_conv_kernel_dim=4, max_position_embeddings=2048, rms_norm_eps=1e-6,
             layer_types=["linear_attention"] * 3 + ["full_attention"], tie_word_embeddings=False,
             bos_token_id=0, eos_token_id=0, pad_token_id=0,
             rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25})
EXPERTS = dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=48, shared_expert_intermediate_size=64,
               norm_topk_prob=True, decoder_sparse_step=1, mlp_only_layers=[])


def make_family(family: str):
    """Config, causal model class, decoder layer class and norm class."""
    if family == "qwen3_next":
        config = transformers.Qwen3NextConfig(**SIZES, **EXPERTS, intermediate_size=128,
                                              architectures=["Qwen3NextForCausalLM"])
        return (config, transformers.Qwen3NextForCausalLM, modeling_qwen3_next.Qwen3NextDecoderLayer,
                modeling_qwen3_next.Qwen3NextRMSNorm)
    config = transformers.Qwen3_5TextConfig(**SIZES, intermediate_size=160, architectures=["Qwen3_5ForCausalLM"])
    return (config, transformers.Qwen3_5ForCausalLM, modeling_qwen3_5.Qwen3_5DecoderLayer,
            modeling_qwen3_5.Qwen3_5RMSNorm)


class Drafter(torch.nn.Module):
    def __init__(self, config, layer_class, norm_class, model):
        super().__init__()
        h, eps = config.hidden_size, config.rms_norm_eps
        self.pre_fc_norm_embedding, self.pre_fc_norm_hidden = norm_class(h, eps), norm_class(h, eps)
        self.fc = torch.nn.Linear(2 * h, h, bias=False)
        full = config.layer_types.index("full_attention")
        self.layers = torch.nn.ModuleList([layer_class(config, full)])
        self.norm = norm_class(h, eps)
        self.model = [model]  # in a list: not a submodule

    def forward(self, next_ids, hidden):
        """Rows made of next_ids [batch, rows] and hidden [batch, rows, h] -> hidden behind mtp.norm."""
        model = self.model[0].model
        x = self.fc(torch.cat([self.pre_fc_norm_embedding(model.embed_tokens(next_ids)),
                               self.pre_fc_norm_hidden(hidden)], -1))
        rows = next_ids.shape[1]
        positions = torch.arange(rows, device=x.device)[None]
        if model.config.model_type.startswith("qwen3_5"):  # one row each for time, height and width
            positions = positions.expand(3, 1, rows)
        rope = model.rotary_emb(x, positions)
        mask = torch.full((rows, rows), float("-inf"), device=x.device).triu(1)[None, None]
        out = self.layers[0](x, position_embeddings=rope, attention_mask=mask)
        return self.norm(out[0] if isinstance(out, tuple) else out)


def read_corpus() -> str:
    paths = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    random.Random(1).shuffle(paths)
    return "".join(path.read_text(errors="ignore") for path in paths)[:6_000_000]


def train_tokenizer(text: str) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=VOCAB, special_tokens=["<|end|>"],
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    tokenizer.train_from_iterator([text[i:i + 20000] for i in range(0, len(text), 20000)], trainer)
    return tokenizer


def train(model, drafter, ids: torch.Tensor, steps: int, device: str) -> None:
    parameters = list(model.parameters()) + list(drafter.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=3e-3, betas=(0.9, 0.95), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=steps, pct_start=0.05)
    for step in range(steps):
        starts = torch.randint(0, len(ids) - CONTEXT - 2, (48,))
        batch = torch.stack([ids[s:s + CONTEXT + 2] for s in starts]).to(device)
        hidden = model.model(batch[:, :CONTEXT]).last_hidden_state
        loss = F.cross_entropy(model.lm_head(hidden).flatten(0, 1), batch[:, 1:CONTEXT + 1].flatten())
        draft_hidden = drafter(batch[:, 1:CONTEXT + 1], hidden)
        draft_loss = F.cross_entropy(model.lm_head(draft_hidden).flatten(0, 1), batch[:, 2:].flatten())
        # A second draft step in parallel: every row takes the drafter's own hidden state of the row before.
        again = drafter(batch[:, 2:], draft_hidden)[:, :-1]
        again_loss = F.cross_entropy(model.lm_head(again).flatten(0, 1), batch[:, 3:].flatten())
        optimizer.zero_grad()
        (loss + 0.5 * draft_loss + 0.3 * again_loss).backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        schedule.step()
        if step % 200 == 0 or step == steps - 1:
            print(f"step {step}: loss {loss.item():.3f}, drafts {draft_loss.item():.3f} {again_loss.item():.3f}",
                  flush=True)


@torch.no_grad()
def speculate(model, drafter, prompt: list[int], k: int, new_tokens: int) -> dict:
    """Everything is computed anew in every step: slow and plain."""
    hidden_of = lambda ids: model.model(torch.tensor([ids])).last_hidden_state
    best = lambda hidden: int(model.lm_head(hidden[0, -1]).argmax())
    tokens = prompt + [best(hidden_of(prompt))]
    trace = []
    while len(tokens) - len(prompt) < new_tokens:
        rows_hidden, next_ids = hidden_of(tokens[:-1]), tokens[1:]
        drafts = []
        for _ in range(k):
            out = drafter(torch.tensor([next_ids]), rows_hidden)
            drafts.append(best(out))
            next_ids = next_ids + drafts[-1:]
            rows_hidden = torch.cat([rows_hidden, out[:, -1:]], 1)
        verified = model.lm_head(hidden_of(tokens + drafts))[0, len(tokens) - 1:].argmax(-1).tolist()
        accepted = 0
        while accepted < k and drafts[accepted] == verified[accepted]:
            accepted += 1
        trace.append({"drafts": drafts, "accepted": accepted})
        tokens += drafts[:accepted] + [verified[accepted]]
    drafted = k * len(trace)
    accepted = sum(step["accepted"] for step in trace)
    return {"k": k, "prompt": prompt, "tokens": tokens[len(prompt):], "trace": trace,
            "accept_rate": accepted / drafted, "tokens_per_forward": (accepted + len(trace)) / len(trace)}


def published_names(drafter: Drafter) -> dict[str, torch.Tensor]:
    """The drafter's tensors with one matrix per expert, as checkpoints have them."""
    out = {}
    for name, value in drafter.state_dict().items():
        prefix, found, kind = f"mtp.{name}".partition("mlp.experts.")
        value = value.bfloat16()
        if not found:
            out[f"mtp.{name}"] = value.contiguous()
            continue
        for expert, matrix in enumerate(value):
            parts = {"down_proj": matrix} if kind == "down_proj" else dict(
                zip(("gate_proj", "up_proj"), matrix.chunk(2)))
            for part, rows in parts.items():
                out[f"{prefix}{found}{expert}.{part}.weight"] = rows.clone()
    return out


def write(model, drafter, tokenizer: Tokenizer, out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    model.bfloat16().save_pretrained(out)
    path = out / "model.safetensors"
    save_file(load_file(path) | published_names(drafter), path, {"format": "pt"})
    data = json.loads((out / "config.json").read_text())
    data["mtp_num_hidden_layers"] = 1
    (out / "config.json").write_text(json.dumps(data, indent=2) + "\n")
    tokenizer.save(str(out / "tokenizer.json"), pretty=False)


def read(family: str, out: Path):
    """The written model and drafter in float32."""
    config, model_class, layer_class, norm_class = make_family(family)
    model = model_class.from_pretrained(out, dtype=torch.float32, attn_implementation="eager").eval()
    drafter = Drafter(model.config, layer_class, norm_class, model).eval()
    stored = load_file(out / "model.safetensors")
    state = {}
    for name in drafter.state_dict():
        prefix, found, kind = f"mtp.{name}".partition("mlp.experts.")
        if not found:
            state[name] = stored[f"mtp.{name}"].float()
            continue
        parts = ["down_proj"] if kind == "down_proj" else ["gate_proj", "up_proj"]
        state[name] = torch.stack([torch.cat([stored[f"{prefix}{found}{expert}.{part}.weight"] for part in parts])
                                   for expert in range(config.num_experts)]).float()
    drafter.load_state_dict(state)
    return model, drafter


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--family", choices=["qwen3_next", "qwen3_5"], required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=2200, help="0: only make golden_mtp.json of what is there")
    options = parser.parse_args()
    torch.manual_seed(0)
    random.seed(0)
    text = read_corpus()
    if options.steps > 0:
        device = "cuda" if torch.cuda.is_available() else "cpu"
        tokenizer = train_tokenizer(text)
        ids = torch.tensor(sum((e.ids for e in tokenizer.encode_batch(
            [text[i:i + 20000] for i in range(0, len(text), 20000)])), []))
        config, model_class, layer_class, norm_class = make_family(options.family)
        config._attn_implementation = "eager"
        model = model_class(config).float().to(device)
        drafter = Drafter(config, layer_class, norm_class, model).to(device)
        for name, parameter in drafter.named_parameters():
            if parameter.ndim >= 2:
                torch.nn.init.normal_(parameter, std=0.02 if "fc" not in name else 0.06)
            elif "norm" in name:  # the (1 + w) kind
                torch.nn.init.zeros_(parameter)
        train(model, drafter, ids, options.steps, device)
        write(model.cpu(), drafter.cpu(), tokenizer, options.out)

    torch.set_num_threads(1)
    model, drafter = read(options.family, options.out)
    ids = Tokenizer.from_file(str(options.out / "tokenizer.json")).encode(text[:400_000]).ids
    places = [len(ids) // 5, len(ids) // 2, 4 * len(ids) // 5]
    golden = [speculate(model, drafter, ids[p:p + 64], k, 120) for k in (1, 3) for p in places]
    (options.out / "golden_mtp.json").write_text(json.dumps(golden) + "\n")
    for entry in golden:
        print(f"k {entry['k']}: accepted {entry['accept_rate']:.3f}, {entry['tokens_per_forward']:.2f} tokens per step")


if __name__ == "__main__":
    main()
