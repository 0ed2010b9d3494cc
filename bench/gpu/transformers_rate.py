#!/usr/bin/env python3
"""What transformers reaches at one sequence with a static cache and torch.compile, in the shapes that run_h200.py times.

    bench/gpu/transformers_rate.py --model llama-3.1-8b [--context 128] [--tokens 128] [--layers N] [--device cuda]

Random bf16 weights, greedy. The first answer compiles (about a minute) and is not counted; every answer is as long as the first,
since another length of the cache would compile again. Needs torch and transformers.
"""

import argparse
import json
import time

import torch
import transformers
from run_h200 import MODELS


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="llama-3.1-8b", choices=[m for m in MODELS if "quantization_config" not in MODELS[m]])
    parser.add_argument("--context", type=int, default=128)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--layers", type=int, help="instead of the model's")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()

    keys = dict(MODELS[options.model])
    kind = keys.pop("model_type")
    if options.layers:
        keys["num_hidden_layers"] = options.layers
    config = transformers.AutoConfig.for_model(kind, **keys)
    with torch.device(options.device):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
        prompt = torch.randint(0, config.vocab_size, (1, options.context))
    settings = {"do_sample": False, "max_new_tokens": options.tokens, "min_new_tokens": options.tokens,
                "cache_implementation": "static", "pad_token_id": 0}
    rates = []
    with torch.inference_mode():
        for _ in range(1 + options.repeat):
            start = time.perf_counter()
            answer = model.generate(prompt, **settings)
            if options.device == "cuda":
                torch.cuda.synchronize()
            rates.append((answer.shape[1] - options.context) / (time.perf_counter() - start))
            print(f"{rates[-1]:.1f} tok/s", flush=True)
    rates = sorted(rates[1:])
    print(json.dumps({"model": options.model, "layers": config.num_hidden_layers, "context": options.context,
                      "tokens": options.tokens, "transformers": transformers.__version__, "torch": torch.__version__,
                      "tokens_per_second": rates[len(rates) // 2]}))


if __name__ == "__main__":
    main()
