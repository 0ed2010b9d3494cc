#!/usr/bin/env python3
"""`atom inspect` and `atom plan` as their users meet them, a published checkpoint of 755 GB included.

The large checkpoint is made of sparse files whose headers are true (make_sparse_glm.py): it is skipped, and reported so,
where the file system keeps no holes. Usage: inspect_test.py --atom build/atom
"""
import importlib.util
import json
import os
import pathlib
import shutil
import time

from program import GOLDEN, WithFolder, atom, main, read_header

HERE = pathlib.Path(__file__).resolve().parent
CONFIGS = HERE / "data" / "configs"
KEYS = ["architecture", "supported", "parameters", "layers", "indexer", "mtp", "cache", "quantization", "tensors"]


class WithConfigs(WithFolder):
    def config_only(self, name):
        model = self.folder / name
        model.mkdir()
        shutil.copyfile(CONFIGS / f"{name}.json", model / "config.json")
        return model


class Inspect(WithConfigs):
    def test_a_config_alone_is_enough(self):
        told = self.told("inspect", "--json", "--model", self.config_only("glm-5.2"))
        self.assertEqual(list(told), KEYS)
        self.assertEqual(told["architecture"], "GlmMoeDsaForCausalLM")
        parameters = told["parameters"]
        self.assertEqual(sum(parameters["by_part"].values()), parameters["total"])
        self.assertEqual(sum(parameters["active_by_part"].values()), parameters["active_per_token"])
        self.assertEqual(round(parameters["total"] / 1e9, 1), 753.3)
        self.assertEqual(round(parameters["active_per_token"] / 1e9, 2), 41.25)
        self.assertEqual(told["indexer"], {"full_layers": 21, "shared_layers": 57})
        self.assertEqual(told["layers"][3], {"index": 3, "attention": "latent", "mlp": "experts", "indexer": "shared"})
        self.assertEqual(told["cache"]["kv_bytes_per_token"], 89856)
        self.assertIsNone(told["cache"]["kv_bytes_per_token_fp8"])  # latents
        self.assertEqual(told["cache"]["index_bytes_per_token"], 2772)
        self.assertEqual(told["mtp"]["layers"], 1)
        self.assertIsNone(told["quantization"])
        self.assertIsNone(told["tensors"]["count"])
        self.assertEqual(told["tensors"]["bytes"], 2 * parameters["total"])

    def test_headers_are_counted(self):
        for name in ("llama_sharded", "qwen3_moe_fused", "qwen3_5_multimodal"):
            told = self.told("inspect", "--json", "--model", GOLDEN / name)
            stored = told["tensors"]
            self.assertEqual(stored["source"], "headers")
            self.assertEqual(sum(kind["bytes"] for kind in stored["by_dtype"].values()), stored["bytes"])
            self.assertEqual(sum(kind["count"] for kind in stored["by_dtype"].values()), stored["count"])
            size = sum(file.stat().st_size for file in (GOLDEN / name).glob("model*.safetensors"))
            self.assertLess(stored["bytes"], size)

    def test_an_architecture_that_cannot_run_is_told_and_said_to_be_so(self):
        model = self.config_only("deepseek-v4-flash")
        told = self.told("inspect", "--json", "--model", model)
        self.assertEqual(list(told), KEYS)
        self.assertFalse(told["supported"])
        self.assertIn("cannot run", atom("inspect", "--model", model).stdout)
        self.refused("plan", "--model", model, says=["DeepseekV4ForCausalLM", "supported are", "LlamaForCausalLM"])

    def test_every_golden_model_and_gguf_file_is_told(self):
        models = [path.parent for path in sorted(GOLDEN.glob("*/config.json"))]
        models += sorted((HERE / "data" / "gguf").glob("*.gguf"))
        for model in models:
            told = self.told("inspect", "--json", "--model", model)
            self.assertEqual(sum(told["parameters"]["by_part"].values()), told["parameters"]["total"], model)
            self.assertGreaterEqual(told["parameters"]["total"], told["parameters"]["active_per_token"])

    def test_parameters_are_those_that_are_stored(self):
        for name in ("qwen3_plain", "mixtral_plain", "qwen3_next_r2"):
            told = self.told("inspect", "--json", "--model", GOLDEN / name)
            stored = 0
            for file in (GOLDEN / name).glob("model*.safetensors"):
                header, _ = read_header(file)
                for tensor, entry in header.items():
                    if tensor == "__metadata__":
                        continue
                    size = 1
                    for dim in entry["shape"]:
                        size *= dim
                    stored += size
            self.assertEqual(told["parameters"]["total"], stored, name)

    def test_the_page_for_the_terminal_has_the_schedule(self):
        result = atom("inspect", "--model", self.config_only("gpt-oss-20b"), "--layer", "3")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("wFwFwFwFwFwFwFwFwFwFwFwF", result.stdout)
        self.assertIn("window of 128", result.stdout)
        self.assertIn("layer 3 ", result.stdout)
        self.assertIn("self_attn.sinks", result.stdout)

    def test_mistral_without_the_key_has_the_window_of_its_class(self):
        for key, window in (({"sliding_window": 16}, 16), ({"sliding_window": None}, None), ({}, 4096)):
            model = self.folder / f"mistral{window}"
            shutil.copytree(GOLDEN / "mistral_window", model)
            config = json.loads((model / "config.json").read_text())
            config.pop("sliding_window")
            (model / "config.json").write_text(json.dumps(config | key))
            layers = json.loads(atom("inspect", "--model", str(model), "--json").stdout)["layers"]
            self.assertEqual([layer.get("window") for layer in layers], [window] * len(layers), key)

    def test_dense_layers_need_their_width(self):
        model = self.folder / "qwen"
        shutil.copytree(GOLDEN / "qwen3_5_dense", model)
        config = json.loads((model / "config.json").read_text())
        del config["intermediate_size"]
        (model / "config.json").write_text(json.dumps(config))
        result = atom("inspect", "--model", str(model))
        self.assertEqual(result.returncode, 2)
        self.assertIn("intermediate_size", result.stderr)

    def test_the_html_page_needs_nothing_else(self):
        model = self.folder / "<b>odd&name"
        shutil.copytree(GOLDEN / "qwen3_5_moe", model)
        page = self.folder / "page.html"
        result = atom("inspect", "--model", model, "--html", page)
        self.assertEqual(result.returncode, 0, result.stderr)
        text = page.read_text()
        for outside in ("http:", "https:", "<script", "src=", "@import", "url("):
            self.assertNotIn(outside, text)
        self.assertIn("&lt;b&gt;odd&amp;name", text)
        self.assertNotIn("<b>odd", text)

    def test_wrong_places_are_named(self):
        self.refused("inspect", "--model", self.config_only("qwen3-32b"), "--layer", "64", says=["--layer 64", "0 to 63"])
        self.refused("inspect", "--model", self.folder / "none", says=["none"])
        huge = self.config_only("qwen3-30b-a3b")
        config = json.loads((huge / "config.json").read_text())
        (huge / "config.json").write_text(json.dumps(config | {"hidden_size": 1 << 39, "vocab_size": 1 << 39}))
        for verb in ("inspect", "plan"):
            self.refused(verb, "--model", huge, says=["parameters"])
        broken = self.folder / "broken"
        shutil.copytree(GOLDEN / "llama_sharded", broken)
        shard = sorted(broken.glob("model-*.safetensors"))[-1]
        shard.write_bytes(shard.read_bytes()[:40])
        self.refused("inspect", "--model", broken, says=[shard.name])
        shard.unlink()
        self.refused("inspect", "--model", broken, says=[shard.name])


class Plan(WithConfigs):
    def test_the_bill_adds_up(self):
        plan = self.told("plan", "--model", self.config_only("gpt-oss-20b"), "--max-num-seqs", 32, "--max-model-len", 8192,
                         "--output", "json")
        (rank,) = plan["ranks"]
        self.assertEqual(rank["total_bytes"], rank["weight_bytes"] + rank["kv_bytes"] + rank["state_bytes"] +
                         rank["workspace_bytes"])
        self.assertEqual(plan["cache_bytes_without_windows"], 12 << 30)
        self.assertEqual(round(rank["kv_bytes"] / (1 << 30), 1), 6.1)
        for line in rank["cache"]:
            self.assertEqual(line["bytes"], line["layers"] * line["bytes_per_token"] * line["tokens"])

    def test_ranks_and_fits(self):
        model = self.config_only("glm-5.2")
        plan = self.told("plan", "--model", model, "--tp", 4, "--pp", 4, "--device-memory", "141GiB", "--output", "json")
        self.assertEqual(len(plan["ranks"]), 16)
        for rank in plan["ranks"]:
            self.assertLessEqual(rank["total_bytes"], 141 << 30)
        self.assertEqual(plan["fits"][-1]["context"], plan["max_model_len"])
        text = atom("plan", "--model", model, "--tp", 4, "--pp", 4, "--device-memory", "141GiB")
        self.assertEqual(text.returncode, 0, text.stderr)
        self.assertIn("1152 bytes", text.stdout)

    def test_too_little_memory_is_an_error_with_the_length_that_fits(self):
        model = self.config_only("qwen3-32b")
        self.refused("plan", "--model", model, "--device-memory", "80GiB", "--max-model-len", 131072,
                     says=["lower --max-model-len to"])
        self.refused("plan", "--model", model, "--device-memory", "8GiB", says=["no room for a token", "--tp"])
        self.refused("plan", "--model", model, "--tp", 3, says=["self_attn"])
        self.refused("plan", "--model", model, "--max-model-len", 1 << 40, says=["--max-model-len"])
        self.refused("plan", "--model", model, "--kv-cache-dtype", "int3", says=["--kv-cache-dtype"])
        self.refused("plan", "--model", model, "--kv-cache-bytes", "1GiB", says=["--device"])

    def test_an_fp8_cache_takes_half_and_is_refused_for_latents_alone(self):
        model = self.config_only("qwen3-32b")
        plans = {cache: self.told("plan", "--model", model, "--max-num-seqs", 4, "--max-model-len", 4096,
                                  "--kv-cache-dtype", cache, "--output", "json") for cache in ("auto", "fp8")}
        self.assertEqual(plans["fp8"]["kv_cache_dtype"], "f8e4m3")
        self.assertEqual(2 * plans["fp8"]["ranks"][0]["kv_bytes"], plans["auto"]["ranks"][0]["kv_bytes"])
        told = self.told("inspect", "--json", "--model", model)["cache"]
        self.assertEqual(2 * told["kv_bytes_per_token_fp8"], told["kv_bytes_per_token"])
        self.refused("plan", "--model", self.config_only("deepseek-v3"), "--kv-cache-dtype", "fp8",
                     says=["model.layers.0.self_attn", "latents", "bfloat16"])

    def test_an_fp8_cache_of_index_keys_takes_what_inspect_says(self):
        model = self.config_only("glm-5.2")
        plan = self.told("plan", "--model", model, "--kv-cache-dtype", "fp8", "--num-speculative-tokens", 0, "--output", "json")
        (rank,) = plan["ranks"]
        lines = {line["bytes_per_token"]: line["layers"] for line in rank["cache"]}
        self.assertEqual(lines, {1152: 78, 132: 21})
        told = self.told("inspect", "--json", "--model", model)["cache"]
        self.assertEqual(told["kv_bytes_per_token"], 78 * 1152)
        self.assertEqual(told["index_bytes_per_token"], 21 * 132)
        text = atom("plan", "--model", model, "--kv-cache-dtype", "fp8", "--num-speculative-tokens", 0)
        self.assertIn("cache in f8e4m3, latents in bf16", text.stdout)


class LargeCheckpoint(WithFolder):
    def setUp(self):
        super().setUp()
        spec = importlib.util.spec_from_file_location("make_sparse_glm", HERE / "make_sparse_glm.py")
        maker = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(maker)
        probe = self.folder / "probe"
        with open(probe, "wb") as file:
            file.truncate(1 << 24)
        if os.stat(probe).st_blocks * 512 > 1 << 20:
            self.skipTest("the file system keeps no holes")
        self.model = self.folder / "GLM-5.2-FP8"
        self.model.mkdir()
        config = json.loads((CONFIGS / "glm-5.2.json").read_text())
        self.assertEqual(maker.write_checkpoint(config, self.model, 141), 755_617_140_416)

    def test_755_gb_are_inspected_in_seconds_and_a_late_error_is_found(self):
        start = time.monotonic()
        told = self.told("inspect", "--json", "--model", self.model, timeout=60)
        self.assertLess(time.monotonic() - start, 30)  # one or two on an idle machine
        self.assertEqual(told["tensors"]["bytes"], 755_617_140_416)
        self.assertEqual(told["quantization"]["method"], "fp8")
        self.assertEqual(round(told["parameters"]["total"] / 1e9, 1), 753.3)

        result = atom("check", "--model", self.model, timeout=60)
        if "quantization_config" not in result.stderr:  # where block-scaled weights are supported
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertIn("every tensor is accounted for", result.stdout)

        shard = self.model / "model-00140-of-00141.safetensors"
        with open(shard, "r+b") as file:
            file.seek(8)
            file.write(b"[")
        for verb in ("inspect", "plan", "check"):
            self.refused(verb, "--model", self.model, says=[shard.name])


if __name__ == "__main__":
    main()
