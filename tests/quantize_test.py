#!/usr/bin/env python3
"""atom quantize and --quantize: what is written, that both are the same model, and what is refused.

Usage: quantize_test.py --atom build/atom
"""
import json
import math
import pathlib
import shutil
import struct

from program import GOLDEN, WithFolder, atom, main, read_header

HERE = pathlib.Path(__file__).resolve().parent
IDS = ["--token-ids", "1,5,9,4,7,3,2,8", "--dtype", "float32"]

# Checkpoints, and how each can be quantised.
MODELS = {
    "llama_f16": ["fp8", "fp8_channel", "mxfp4"],
    "llama_sharded": ["fp8", "fp8_channel", "mxfp4"],
    "qwen3_moe_plain": ["fp8", "fp8_channel", "mxfp4"],
    "qwen3_moe_fused": ["fp8", "fp8_channel", "mxfp4"],
    "deepseek_v3_mtp": ["fp8"],
    "glm_moe_dsa_mtp": ["fp8", "mxfp4"],
    "qwen3_next_mtp": ["fp8"],
    "qwen3_5_multimodal": ["fp8"],
    "gpt_oss_plain": ["mxfp4"],
}
E2M1 = [0, 0.5, 1, 1.5, 2, 3, 4, 6]


def weight_files(folder):
    return sorted(folder.glob("model*.safetensors"))


def read_folder(folder):
    """name -> (dtype, shape, bytes) of all files."""
    tensors = {}
    for path in weight_files(folder):
        header, body = read_header(path)
        for name, entry in header.items():
            if name != "__metadata__":
                begin, end = entry["data_offsets"]
                tensors[name] = (entry["dtype"], entry["shape"], body[begin:end])
    return tensors


def plain_numbers(dtype, data):
    if dtype == "F32":
        return struct.unpack(f"<{len(data) // 4}f", data)
    if dtype == "F16":
        return struct.unpack(f"<{len(data) // 2}e", data)
    return [struct.unpack("<f", b"\0\0" + data[i:i + 2])[0] for i in range(0, len(data), 2)]


def e4m3(byte):
    exponent, mantissa = byte >> 3 & 15, byte & 7
    value = math.ldexp(mantissa, -9) if exponent == 0 else math.ldexp(8 + mantissa, exponent - 10)
    return -value if byte & 0x80 else value


class Quantize(WithFolder):
    def quantized(self, model, target):
        out = self.folder / f"{pathlib.Path(model).name}-{target}"
        result = atom("quantize", "--model", model, "--to", target, "--out", out)
        self.assertEqual(result.returncode, 0, result.stderr)
        return out

    def score(self, model, *flags):
        return self.told("score", "--model", model, *IDS, *flags)["logprobs"][1:]

    def near_fp8(self, name, plain, made):
        """Every element is the nearest E4M3 of its scale, whose largest is the block's largest."""
        dtype, shape, data = plain[name]
        x = plain_numbers(dtype, data)
        _, _, elements = made[name]
        scale_name = name + ("_scale_inv" if name + "_scale_inv" in made else "_scale")
        scale_type, scale_shape, scale_data = made[scale_name]
        self.assertEqual(scale_type, "F32")
        scales = plain_numbers("F32", scale_data)
        rows, cols = shape[-2:]
        down, across = scale_shape[-2:]
        block_rows, block_cols = (1, cols) if across == 1 and down == rows else (128, 128)
        self.assertEqual([down, across], [-(-rows // block_rows), -(-cols // block_cols)])
        for i, (want, code) in enumerate(zip(x, elements)):
            flat_row, column = divmod(i, cols)
            slice_, row = divmod(flat_row, rows)
            scale = scales[(slice_ * down + row // block_rows) * across + column // block_cols]
            self.assertLessEqual(abs(e4m3(code) * scale - want), max(abs(want) / 16, scale * 2**-10) * 1.001, (name, i))

    def near_mxfp4(self, plain, name, turned, made):
        """Turned: stacked experts of GPT-OSS are [in, out] as plain numbers. Others are one matrix, flat."""
        dtype, shape, data = plain[name]
        x = plain_numbers(dtype, data)
        if name + "_packed" in made:
            _, (rows, half), blocks = made[name + "_packed"]
            cols = 2 * half
            _, scale_shape, scales = made[name + "_scale"]
            self.assertEqual(scale_shape, [rows, cols // 32])
            self.assertEqual(shape, [rows, cols])
        else:
            _, (experts, rows, groups, _), blocks = made[name + "_blocks"]
            cols = groups * 32
            _, scale_shape, scales = made[name + "_scales"]
            self.assertEqual(scale_shape, [experts, rows, groups])
        error = total = 0
        for i, byte in enumerate(blocks):
            for half in range(2):
                element = 2 * i + half
                code = byte >> 4 * half & 15
                got = E2M1[code & 7] * (-1 if code & 8 else 1) * 2.0**(scales[element // 32] - 127)
                expert, rest = divmod(element, rows * cols)
                row, column = divmod(rest, cols)
                want = x[(expert * cols + column) * rows + row if turned else element]
                error += (got - want)**2
                total += want**2
        self.assertLess(error, 0.02 * total, name)

    def test_both_ways_are_one_model_and_near_the_plain_one(self):
        for model, targets in MODELS.items():
            plain = read_folder(GOLDEN / model)
            for target in targets:
                with self.subTest(model=model, target=target):
                    out = self.quantized(GOLDEN / model, target)
                    checked = atom("check", "--model", out)
                    self.assertEqual(checked.returncode, 0, checked.stderr)
                    written = self.score(out)
                    self.assertEqual(written, self.score(GOLDEN / model, "--quantize", target))
                    self.assertEqual(written, self.score(GOLDEN / model, "--quantize", target, "--no-mmap"))
                    for a, b in zip(written, self.score(GOLDEN / model, "--quantize", target, "--tp", "2")):
                        self.assertAlmostEqual(a, b, delta=1e-4)
                    self.assertNotEqual(written, self.score(GOLDEN / model))

                    made = read_folder(out)
                    quantized = 0
                    for name, tensor in plain.items():
                        if name + "_blocks" in made or name + "_packed" in made:
                            self.near_mxfp4(plain, name, model.startswith("gpt_oss"), made)
                        elif made[name][0] == "F8_E4M3":
                            self.near_fp8(name, plain, made)
                        else:
                            self.assertEqual(made[name], tensor)
                            continue
                        quantized += 1
                    self.assertGreater(quantized, 0)
                    for name in ("lm_head.weight", "model.embed_tokens.weight", "model.norm.weight"):
                        if name in plain:
                            self.assertEqual(made[name], plain[name])

    def test_a_folder_is_written_as_it_is_published(self):
        source = self.folder / "source"
        shutil.copytree(GOLDEN / "llama_sharded", source)
        (source / "tokenizer_config.json").write_text('{"x": 1}')
        (source / "pytorch_model.bin").write_bytes(b"weights in another form")
        out = self.quantized(source, "fp8")
        self.assertEqual((out / "tokenizer_config.json").read_text(), '{"x": 1}')
        self.assertFalse((out / "pytorch_model.bin").exists())
        self.assertEqual([p.name for p in weight_files(out)], [p.name for p in weight_files(source)])
        index = json.loads((out / "model.safetensors.index.json").read_text())
        made = read_folder(out)
        self.assertEqual(set(index["weight_map"]), set(made))
        self.assertEqual(index["metadata"]["total_size"], sum(len(data) for _, _, data in made.values()))
        config = json.loads((out / "config.json").read_text())
        quantization = config.pop("quantization_config")
        self.assertEqual(config, json.loads((source / "config.json").read_text()))
        self.assertEqual((quantization["quant_method"], quantization["weight_block_size"]), ("fp8", [128, 128]))
        self.assertIn("lm_head", quantization["modules_to_not_convert"])
        self.assertFalse(any("proj" in m for m in quantization["modules_to_not_convert"]))

    def test_a_drafter_is_quantised_with_its_model(self):
        for model in ("deepseek_v3_mtp", "qwen3_next_mtp"):
            out = self.quantized(GOLDEN / model, "fp8")
            flags = ["--token-ids", "1,2,3", "--max-tokens", "12", "--ignore-eos", "--dtype", "float32", "--output", "json",
                     "--num-speculative-tokens", "1"]
            told = [self.told("generate", "--model", *args, *flags)
                    for args in ([out], [GOLDEN / model, "--quantize", "fp8"])]
            self.assertEqual(told[0]["token_ids"], told[1]["token_ids"])
            self.assertEqual(told[0]["speculation"], told[1]["speculation"])
            self.assertGreater(told[0]["speculation"]["drafted"], 0)

    def test_plan_and_dummy_weights_know_the_quantised_model(self):
        def weights(*flags):
            return self.told("plan", "--model", self.folder / "m", "--output", "json", *flags)["ranks"][0]["weight_bytes"]

        shutil.copytree(GOLDEN / "llama_head_dim", self.folder / "m")
        plain, fp8 = weights(), weights("--quantize", "fp8")
        out = self.quantized(self.folder / "m", "fp8")
        written = self.told("plan", "--model", out, "--output", "json")["ranks"][0]["weight_bytes"]
        self.assertEqual(fp8, written)
        self.assertLess(fp8, plain)
        for path in (self.folder / "m").glob("*.safetensors"):
            path.unlink()
        self.assertLess(weights("--quantize", "fp8"), weights())
        bench = atom("bench", "--model", self.folder / "m", "--load-format", "dummy", "--quantize", "fp8", "--decode-tokens", "4",
                     "--prompt-tokens", "0", "--repeat", "1")
        self.assertEqual(bench.returncode, 0, bench.stderr)
        plain = atom("bench", "--model", self.folder / "m", "--load-format", "dummy", "--decode-tokens", "4",
                     "--prompt-tokens", "0", "--repeat", "1")
        read = [json.loads(r.stdout.splitlines()[0])["bytes_per_step"] for r in (bench, plain)]
        self.assertLess(read[0], read[1])

    def test_what_cannot_be_quantised_is_refused(self):
        out = self.folder / "out"
        to = ["--to", "fp8", "--out", out]
        self.refused("quantize", "--model", GOLDEN / "llama_plain", "--to", "nf4", "--out", out, says=["--to", "nf4", "mxfp4"])
        self.refused("quantize", "--model", GOLDEN / "llama_plain", "--to", "fp8", says=["--out"])
        self.refused("quantize", "--model", GOLDEN / "fp8_qwen3", *to, says=["fp8_qwen3", "quantised already", "config.json"])
        self.refused("generate", "--model", GOLDEN / "fp8_qwen3", "--token-ids", "1", "--quantize", "fp8", says=["quantised already"])
        for path in sorted(HERE.glob("**/*.gguf"))[:1]:
            self.refused("quantize", "--model", path, *to, says=[path.name, "only folders"])
        self.assertFalse(out.exists())
        out.mkdir()
        (out / "mine").write_text("text")
        self.refused("quantize", "--model", GOLDEN / "llama_plain", *to, says=["--out", "holds files"])
        self.assertEqual([p.name for p in out.iterdir()], ["mine"])
        self.refused("quantize", "--model", GOLDEN / "llama_plain", "--to", "fp8", "--out", out / "mine", says=["--out", "mine"], code=1)

    def test_numbers_that_have_no_scale_are_named(self):
        source = self.folder / "source"
        shutil.copytree(GOLDEN / "llama_f16", source)
        path = source / "model.safetensors"
        header, body = read_header(path)
        name = "model.layers.1.mlp.down_proj.weight"
        data = bytearray(path.read_bytes())
        at = len(data) - len(body) + header[name]["data_offsets"][0]
        data[at + 6:at + 8] = struct.pack("<e", math.nan)
        path.write_bytes(data)
        out = self.folder / "out"
        self.refused("quantize", "--model", source, "--to", "fp8", "--out", out, says=[name, "NaN"], code=1)
        self.assertFalse((out / "config.json").exists())
        self.refused("score", "--model", source, *IDS, "--quantize", "fp8", says=[name, "NaN"], code=1)


if __name__ == "__main__":
    main()
