#!/usr/bin/env python3
"""The command line as its users meet it: errors that name the place and exit with 2, and output that keeps its form.

Usage: cli_test.py --atom build/atom
"""
import json
import os
import pathlib
import shutil
import struct
import subprocess

from program import GOLDEN, WithFolder, atom, main, program, read_header

HERE = pathlib.Path(__file__).resolve().parent


def write_file(path, header, body):
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)


class CommandLine(WithFolder):
    def copy(self, name):
        target = self.folder / name
        shutil.copytree(GOLDEN / name, target)
        return target

    def test_wrong_command_lines_exit_with_2(self):
        self.refused("generate", "--no-such-flag", says=["--no-such-flag"])
        self.refused("frobnicate", says=["frobnicate"])
        self.refused("generate", "--model", GOLDEN / "llama_plain", says=["--prompt"])
        self.refused("generate", "--model", GOLDEN / "llama_plain", "--token-ids", "1,x", says=["--token-ids", "x"])
        self.refused("generate", "--model", GOLDEN / "llama_plain", "--prompt", "a", says=["tokenizer.json"])
        self.refused("generate", "--model", GOLDEN / "llama_plain", "--token-ids", "1", "--device", "cuda:99", says=["--device"])
        self.refused("generate", "--model", GOLDEN / "llama_plain", "--token-ids", "1", "--dtype", "int3", says=["--dtype"])
        self.refused("generate", "--model", GOLDEN / "llama_plain", "--token-ids", "100000", says=["100000"])
        self.refused("generate", "--model", GOLDEN / "llama_plain", "--token-ids", "1", "--temperature", "-1",
                     says=["temperature"])
        self.refused("score", "--model", self.folder / "nowhere", "--token-ids", "1", says=["nowhere"])

    def test_flags_may_be_written_in_snake_case(self):
        result = atom("generate", "--model", GOLDEN / "llama_plain", "--token_ids", "1,2", "--max_tokens=3", "--ignore_eos",
                      "--output", "json")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(len(json.loads(result.stdout)["token_ids"]), 3)

    def test_an_unsupported_architecture_is_named_with_the_supported_ones(self):
        model = self.copy("llama_plain")
        config = json.loads((model / "config.json").read_text())
        config["architectures"] = ["LlamaForCausalML"]
        (model / "config.json").write_text(json.dumps(config))
        self.refused("check", "--model", model, says=["LlamaForCausalML", "Qwen3ForCausalLM", "did you mean LlamaForCausalLM"])

    def test_a_layer_that_owns_an_indexer_must_have_its_tensors(self):
        model = self.copy("glm_moe_dsa_shared")
        config = json.loads((model / "config.json").read_text())
        self.assertEqual(config["indexer_types"][4], "shared")
        config["indexer_types"][4] = "full"
        (model / "config.json").write_text(json.dumps(config))
        self.refused("score", "--model", model, "--token-ids", "1,2",
                     says=["model.layers.4.self_attn.indexer.wq_b.weight: missing"])

    def test_a_missing_tensor_is_named_with_the_nearest(self):
        model = self.copy("llama_plain")
        header, body = read_header(model / "model.safetensors")
        header["model.layers.0.mlp.gate_prj.weight"] = header.pop("model.layers.0.mlp.gate_proj.weight")
        write_file(model / "model.safetensors", header, body)
        self.refused("generate", "--model", model, "--token-ids", "1",
                     says=["model.layers.0.mlp.gate_proj.weight: missing; did you mean model.layers.0.mlp.gate_prj.weight"])
        result = atom("check", "--model", model, "--json")
        self.assertEqual(result.returncode, 2)
        self.assertEqual(len(json.loads(result.stdout)["problems"]), 2)  # one missing, one unclaimed

    def test_a_misshaped_tensor_is_named(self):
        model = self.copy("llama_plain")
        config = json.loads((model / "config.json").read_text())
        config["intermediate_size"] += 1
        (model / "config.json").write_text(json.dumps(config))
        self.refused("score", "--model", model, "--token-ids", "1,2", says=["mlp.gate_proj.weight", "the config asks for"])

    def test_a_truncated_file_is_an_error_at_load(self):
        model = self.copy("llama_plain")
        data = (model / "model.safetensors").read_bytes()
        (model / "model.safetensors").write_bytes(data[:-1])
        self.refused("score", "--model", model, "--token-ids", "1,2", says=["model.safetensors"])

    def test_a_missing_shard_is_an_error_and_a_consolidated_duplicate_is_not_read(self):
        model = self.copy("llama_sharded")
        before = atom("score", "--model", model, "--token-ids", "1,2,3", "--dtype", "float32").stdout
        shards = sorted(model.glob("model-*.safetensors"))
        shutil.copy(shards[0], model / "consolidated.safetensors")
        after = atom("score", "--model", model, "--token-ids", "1,2,3", "--dtype", "float32").stdout
        self.assertEqual(before, after)
        shards[1].unlink()
        self.refused("score", "--model", model, "--token-ids", "1,2,3", says=[shards[1].name])

    def test_old_rotary_buffers_are_ignored_with_a_reason(self):
        model = self.copy("llama_plain")
        header, body = read_header(model / "model.safetensors")
        end = max(entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__")
        header["model.layers.0.self_attn.rotary_emb.inv_freq"] = {"dtype": "F32", "shape": [2], "data_offsets": [end, end + 8]}
        write_file(model / "model.safetensors", header, body + bytes(8))
        result = atom("check", "--model", model)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("ignored 1", result.stdout)

    def test_reading_and_mapping_give_the_same_numbers(self):
        for name in ("llama_sharded", "llama_gqa6"):
            for flags in ([], ["--tp", "3"] if name == "llama_gqa6" else ["--tp", "2"]):
                runs = [atom("score", "--model", GOLDEN / name, "--token-ids", "1,2,3,4", "--dtype", "float32", *flags, *extra)
                        for extra in ([], ["--no-mmap"], ["--no-mmap", "--loader-threads", "1"])]
                self.assertEqual({r.returncode for r in runs}, {0}, [r.stderr for r in runs])
                self.assertEqual(len({r.stdout for r in runs}), 1)

    def test_verify_holds_a_model_to_the_float32_reference(self):
        for name, flags in [("llama_plain", ["--dtype", "bfloat16"]), ("llama_plain", ["--kv-cache-dtype", "fp8"]),
                            ("glm_moe_dsa", ["--dtype", "float32", "--tp", "2", "--block-size", "5"])]:
            result = atom("verify", "--model", GOLDEN / name, *flags, "--json")
            self.assertEqual(result.returncode, 0, result.stderr)
            told = json.loads(result.stdout)
            self.assertTrue(told["ok"])
            self.assertEqual(len(told["contexts"]), 2)
        # In float32, too, it is not compared with itself: other sums in another order.
        self.assertGreater(told["contexts"][1]["worst_error"], 0)
        self.assertIn("plain kernels", told["reference"])
        self.assertEqual(told["contexts"][1]["experts"]["chosen"], told["contexts"][1]["experts"]["same"])
        self.assertGreater(told["contexts"][1]["positions"]["chosen"], 0)
        result = atom("verify", "--model", GOLDEN / "llama_plain", "--dtype", "bfloat16", "--limit", "1e-6")
        self.assertEqual(result.returncode, 1)
        self.assertIn("does not agree", result.stderr)
        self.refused("verify", "--model", GOLDEN / "llama_plain", "--long-tokens", "4096", says=["--long-tokens"])

    def test_more_ranks_than_heads_are_refused(self):
        self.refused("score", "--model", GOLDEN / "llama_head_dim", "--token-ids", "1,2", "--tp", "10",
                     says=["o_proj.weight", "at most 5 ranks"])

    def test_dummy_weights_need_no_tensors(self):
        model = self.copy("qwen3_plain")
        for path in model.glob("*.safetensors"):
            path.unlink()
        result = atom("generate", "--model", model, "--token-ids", "1,2", "--load-format", "dummy", "--max-tokens", "4",
                      "--ignore-eos", "--output", "json")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(len(json.loads(result.stdout)["token_ids"]), 4)

    def test_generate_json_has_the_promised_keys(self):
        result = atom("generate", "--model", GOLDEN / "llama_plain", "--token-ids", "1,2,3", "--max-tokens", "5", "--ignore-eos",
                      "--n", "2", "--seed", "1", "--temperature", "1", "--logprobs", "2", "--prompt-logprobs", "1", "--output", "json")
        self.assertEqual(result.returncode, 0, result.stderr)
        answer = json.loads(result.stdout)
        for key in ("text", "token_ids", "finish_reason", "usage", "timing", "speculation", "choices", "logprobs"):
            self.assertIn(key, answer)
        self.assertEqual(set(answer["speculation"]), {"steps", "drafted", "accepted", "accepted_by_position"})
        self.assertEqual(len(answer["choices"]), 2)
        self.assertEqual(answer["finish_reason"], "length")
        self.assertEqual(len(answer["prompt_logprobs"]), 2)
        self.assertEqual(len(answer["logprobs"]), 5)

    def test_what_cannot_be_written_is_told_by_the_exit_code(self):
        command = [program(), "generate", "--model", GOLDEN / "llama_plain", "--token-ids", "1,2", "--max-tokens", "2", "--threads", "1"]
        with open("/dev/full", "w") as full:
            for flags in ([], ["--output", "json"], ["--n", "2"]):
                done = subprocess.run([*command, *flags], stdout=full, stderr=subprocess.PIPE, text=True)
                self.assertEqual(done.returncode, 1)
                self.assertIn("atom: standard output: ", done.stderr)
            self.assertEqual(subprocess.run(command, stdout=subprocess.PIPE, stderr=full).returncode, 0)
            self.assertEqual(subprocess.run([program(), "generate", "--n", "x"], stderr=full).returncode, 2)
        for closed, code in ((1, 1), (2, 0)):
            line = " ".join(map(str, command)) + f" {closed}>&-"
            self.assertEqual(subprocess.run(line, shell=True, capture_output=True).returncode, code, line)

    def test_logits_are_written_through_links_and_over_files_alone(self):
        link, file, pipe = self.folder / "link", self.folder / "file", self.folder / "pipe"
        file.touch()
        link.symlink_to(file)
        os.mkfifo(pipe)
        for out, code in ((link, 0), (pipe, 1)):
            result = atom("score", "--model", GOLDEN / "llama_plain", "--token-ids", "1,2", "--logits-out", out)
            self.assertEqual(result.returncode, code, result.stderr)
        self.assertTrue(link.is_symlink() and file.stat().st_size > 0 and pipe.is_fifo())

    def test_numbers_are_not_cut_to_a_range(self):
        for flags, said in ((["--max-tokens", "-1"], "-1 is less than 0"), (["--max-tokens", "9" * 20], "is out of range"),
                            (["--seed", "18446744073709551616"], "is out of range"), (["--max-model-len", "x"], "x is not a whole number")):
            result = atom("generate", "--model", GOLDEN / "llama_plain", "--token-ids", "1", *flags)
            self.assertEqual(result.returncode, 2)
            self.assertIn(said, result.stderr)

    def test_a_server_does_not_start_with_settings_that_cannot_be_meant(self):
        keys = self.folder / "keys"
        for text, said in (("", "holds no key"), ("\n# none\n", "holds no key"), ("long-enough\n short \n", "line 2")):
            keys.write_text(text)
            result = atom("serve", "--api-key-file", keys, "--model", self.folder)
            self.assertEqual((result.returncode, said in result.stderr), (2, True), result.stderr)
        for flags in (["--host", ""], ["--model", ""], ["--served-model-name", ""], ["--cors-origin", "foo"],
                      ["--max-body-bytes", "0"], ["--max-seconds", "9223372036854775807"]):
            result = atom("serve", *flags)
            self.assertEqual((result.returncode, flags[0] in result.stderr), (2, True), result.stderr)

    def test_tools_are_a_list_of_them(self):
        messages = self.folder / "messages.json"
        messages.write_text('[{"role": "user", "content": "Hi"}]')
        for tools in (messages.read_text(), "[]", '{"type": "function"}'):
            (self.folder / "tools.json").write_text(tools)
            result = atom("template", "--model", HERE / "data/server/tiny", "--messages", messages, "--tools", self.folder / "tools.json")
            self.assertEqual(result.returncode, 2)
            self.assertIn("not a list of tools", result.stderr)

    def test_a_pipe_in_place_of_a_file_is_an_error(self):
        os.mkfifo(self.folder / "config.json")
        result = atom("check", "--model", self.folder)
        self.assertEqual(result.returncode, 2)
        self.assertIn("not a regular file", result.stderr)

    def test_an_absent_key_is_what_its_architecture_assumes(self):
        def remade(name, **changes):
            folder = self.copy(name)
            config = json.loads((folder / "config.json").read_text())
            for part in (config, config.get("text_config", {}), config.get("text_config", {}).get("rope_parameters", {})):
                for key, value in changes.items():
                    if key in part:
                        part.pop(key) if value is None else part.update({key: value})
            (folder / "config.json").write_text(json.dumps(config))
            result = atom("score", "--model", folder, "--token-ids", "1,2,3,4,5,6,7,8", "--dtype", "float32")
            shutil.rmtree(folder)
            self.assertEqual(result.returncode, 0, result.stderr)
            return result.stdout
        for name, key, value in (("qwen3_5_multimodal", "partial_rotary_factor", 0.25),
                                 ("deepseek_v3_groups", "routed_scaling_factor", 2.5),
                                 ("glm_moe_dsa", "rms_norm_eps", 1e-5)):
            self.assertEqual(remade(name, **{key: None}), remade(name, **{key: value}), (name, key))

    def test_heads_that_cannot_share_keys_are_refused_before_anything_is_loaded(self):
        for key, value, named in (("num_key_value_heads", 3, "num_key_value_heads 3"), ("head_dim", 1026, "head_dim 1026")):
            config = json.loads((GOLDEN / "llama_plain" / "config.json").read_text())
            (self.folder / "config.json").write_text(json.dumps(config | {key: value}))
            for verb, flags in (("plan", []), ("bench", ["--load-format", "dummy"])):
                self.refused(verb, "--model", self.folder, *flags, says=["config.json", named])

    def test_standard_input_that_cannot_be_read_is_an_error(self):
        result = subprocess.run(["sh", "-c", 'exec "$0" tokenize --model "$1" < /', str(program()), str(HERE / "data" / "gguf" / "llama_f32.gguf")],
                                capture_output=True, text=True)
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertIn("standard input", result.stderr)

    def test_flags_that_would_change_nothing_are_refused(self):
        for verb, flags, named in (("generate", ["--token-ids", "1", "--logprobs", "1"], "--output json"),
                                   ("generate", ["--token-ids", "1", "--prompt-logprobs", "1"], "--output json"),
                                   ("generate", ["--token-ids", "1", "--no-special-tokens"], "--prompt"),
                                   ("generate", ["--token-ids", "1", "--device", "cpu", "--gpu-memory-utilization", "0.5"],
                                    "--kv-cache-bytes"),
                                   ("generate", ["--token-ids", "1", "--kv-cache-bytes", "0"], "--kv-cache-bytes"),
                                   ("generate", ["--token-ids", "1", "--output", "json", "--logprobs", "-1"], "--logprobs"),
                                   ("plan", ["--device", "cpu", "--kv-cache-bytes", "5KiB"], "--device cuda:i"),
                                   ("verify", ["--num-speculative-tokens", "2"], "--num-speculative-tokens"),
                                   ("verify", ["--max-model-len", "16"], "17 at least"),
                                   ("bench", ["--decode-tokens", "1"], "--decode-tokens"),
                                   ("bench", ["--prompt-tokens", "9223372036854775807"], "--prompt-tokens"),
                                   ("score", ["--token-ids", "1", "--logits-out", ""], "--logits-out"),
                                   ("inspect", ["--html", ""], "--html"),
                                   ("chat", ["--logprobs", "1"], "--logprobs")):
            result = atom(verb, "--model", GOLDEN / "llama_plain", *flags)
            self.assertEqual(result.returncode, 2, flags)
            self.assertIn(named, result.stderr)

    def test_speculation_is_reported_and_changes_no_token(self):
        answers = []
        for drafts in ("0", "3"):
            result = atom("generate", "--model", GOLDEN / "deepseek_v3_mtp", "--token-ids", "5,6,7", "--max-tokens", "20",
                          "--dtype", "float32", "--ignore-eos", "--num-speculative-tokens", drafts, "--output", "json")
            self.assertEqual(result.returncode, 0, result.stderr)
            answers.append(json.loads(result.stdout))
        self.assertEqual(answers[0]["token_ids"], answers[1]["token_ids"])
        self.assertEqual(answers[0]["speculation"]["steps"], 0)
        counts = answers[1]["speculation"]
        self.assertEqual(sum(counts["accepted_by_position"]), counts["accepted"])
        self.assertGreater(counts["drafted"], counts["accepted"])

    def test_a_drafter_that_is_not_there_is_refused(self):
        ids = ("--token-ids", "1", "--num-speculative-tokens")
        self.refused("generate", "--model", GOLDEN / "llama_plain", *ids, "1", says=["--num-speculative-tokens 1", "use 0"])
        self.refused("generate", "--model", GOLDEN / "deepseek_v3_groups", *ids, "2", says=["model.layers.3.*"])
        self.refused("generate", "--model", GOLDEN / "deepseek_v3_mtp", *ids, "5", says=["--num-speculative-tokens"])
        model = self.copy("deepseek_v3_mtp")
        header, body = read_header(model / "model.safetensors")
        header["model.layers.2.hnorm.wheight"] = header.pop("model.layers.2.hnorm.weight")
        write_file(model / "model.safetensors", header, body)
        self.refused("generate", "--model", model, *ids, "2", says=["model.layers.2.hnorm.weight", "missing"])

    def test_check_counts_the_drafter_as_asked(self):
        for drafts, ignored in (("0", True), ("1", False)):
            result = atom("check", "--model", GOLDEN / "qwen3_next_mtp", "--num-speculative-tokens", drafts, "--json")
            self.assertEqual(result.returncode, 0, result.stderr)
            stored = {t["tensor"]: t for t in json.loads(result.stdout)["stored"]}
            self.assertEqual("ignored" in stored["mtp.fc.weight"], ignored)

    def test_a_cache_too_small_for_the_context_is_refused_with_what_would_fit(self):
        self.refused("generate", "--model", GOLDEN / "llama_plain", "--token-ids", "1", "--kv-cache-bytes", "4096",
                     "--max-model-len", "100", says=["too small", "largest context"])

    def test_bench_prints_json_lines(self):
        result = atom("bench", "--model", GOLDEN / "qwen3_plain", "--load-format", "dummy", "--prompt-tokens", "16",
                      "--decode-tokens", "4", "--repeat", "1")
        self.assertEqual(result.returncode, 0, result.stderr)
        lines = [json.loads(line) for line in result.stdout.splitlines()]
        self.assertEqual([line["phase"] for line in lines], ["prefill", "decode"])
        self.assertGreater(lines[1]["fraction"], 0)

    def test_tokenizer_verbs_round_trip(self):
        gguf = HERE / "data" / "gguf" / "llama_f32.gguf"
        ids = atom("tokenize", "--model", gguf, "--no-special-tokens", "--batch", stdin='["ab", ""]')
        self.assertEqual(ids.returncode, 0, ids.stderr)
        text = atom("detokenize", "--model", gguf, "--batch", stdin=ids.stdout)
        self.assertEqual(json.loads(text.stdout), ["ab", ""])
        self.assertEqual(atom("detokenize", "--model", gguf, stdin="[999999]").returncode, 2)
        self.assertEqual(atom("tokenize", "--model", gguf, "--batch", stdin="[1]").returncode, 2)


if __name__ == "__main__":
    main()
