"""Converts a Llama-architecture GGUF file with a byte-level BPE vocabulary into a Hugging Face folder.

transformers can do this too, but takes 25 s of imports for it, and forgets that this family of tokenizers splits
numbers into single digits: "2024" would become other tokens than the ones the model was trained on.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from proxima_config.errors import ModelError
from proxima_engine.models.progress import Reporter

if TYPE_CHECKING:
    from gguf import GGUFReader

_MODEL_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_BLOCK_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
# gguf.TokenType: NORMAL 1, UNKNOWN 2, CONTROL 3, USER_DEFINED 4.
_CONTROL = 3


def convert(source: Path, target: Path, report: Reporter) -> None:
    """Write config, tokenizer and bfloat16 weights of ``source`` into the folder ``target``.

    Raises ModelError if the file is of another architecture or tokenizer family.
    """
    from gguf import GGUFReader

    report.stage(f"reading {source.name}", 1)
    reader = GGUFReader(source)
    meta = _Metadata(reader)
    if (meta["general.architecture"], meta["tokenizer.ggml.model"]) != ("llama", "gpt2"):
        raise ModelError(f"{source.name} is not a Llama model with a byte-level BPE tokenizer")
    report.advance(1)
    _write_json(target / "config.json", _config(meta, tied=all(t.name != "output.weight" for t in reader.tensors)))
    _write_json(target / "generation_config.json", _special_ids(meta))
    report.stage("writing the tokenizer", 1)
    _write_tokenizer(meta, target)
    report.advance(1)
    _write_weights(reader, meta, target / "model.safetensors", report)


class _Metadata:
    """The key-value part of a GGUF file."""

    def __init__(self, reader: GGUFReader) -> None:
        self._fields = reader.fields

    def __getitem__(self, key: str) -> Any:
        if key not in self._fields:
            raise ModelError(f"the GGUF file has no {key}")
        return self._fields[key].contents()


def _config(meta: _Metadata, *, tied: bool) -> dict[str, Any]:
    heads = meta["llama.attention.head_count"]
    hidden = meta["llama.embedding_length"]
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": meta["llama.feed_forward_length"],
        "num_hidden_layers": meta["llama.block_count"],
        "num_attention_heads": heads,
        "num_key_value_heads": meta["llama.attention.head_count_kv"],
        "head_dim": hidden // heads,
        "hidden_act": "silu",
        # GGUF keeps it in single precision: 9.999999747378752e-06.
        "rms_norm_eps": float(f"{meta['llama.attention.layer_norm_rms_epsilon']:.6g}"),
        "rope_theta": meta["llama.rope.freq_base"],
        "max_position_embeddings": meta["llama.context_length"],
        "vocab_size": meta["llama.vocab_size"],
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": tied,
        "torch_dtype": "bfloat16",
        **_special_ids(meta),
    }


def _special_ids(meta: _Metadata) -> dict[str, int]:
    return {
        "bos_token_id": meta["tokenizer.ggml.bos_token_id"],
        "eos_token_id": meta["tokenizer.ggml.eos_token_id"],
        "pad_token_id": meta["tokenizer.ggml.padding_token_id"],
    }


def _write_tokenizer(meta: _Metadata, target: Path) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    tokens: list[str] = meta["tokenizer.ggml.tokens"]
    kinds: list[int] = meta["tokenizer.ggml.token_type"]
    merges = [tuple(merge.split(" ")) for merge in meta["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            *([pre_tokenizers.Digits(individual_digits=True)] if meta["tokenizer.ggml.pre"] == "smollm" else []),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [
            AddedToken(token, special=True, normalized=False)
            for token, kind in zip(tokens, kinds, strict=True)
            if kind == _CONTROL
        ]
    )
    tokenizer.save(str(target / "tokenizer.json"))
    (target / "chat_template.jinja").write_text(meta["tokenizer.chat_template"])
    named = {**_special_ids(meta), "unk_token_id": meta["tokenizer.ggml.unknown_token_id"]}
    _write_json(
        target / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": meta["llama.context_length"],
            "clean_up_tokenization_spaces": False,
            **{key.removesuffix("_id"): tokens[index] for key, index in named.items()},
        },
    )


def _write_weights(reader: GGUFReader, meta: _Metadata, path: Path, report: Reporter) -> None:
    from gguf import dequantize
    from safetensors import TensorSpec, serialize_file

    heads = {
        "attn_q": meta["llama.attention.head_count"],
        "attn_k": meta["llama.attention.head_count_kv"],
    }
    converted: dict[str, NDArray[np.uint16]] = {}
    report.stage("converting the weights", len(reader.tensors))
    for tensor in reader.tensors:
        weights: NDArray[np.float32] = dequantize(tensor.data, tensor.tensor_type)
        part = tensor.name.split(".")[-2]
        if part in heads:
            weights = _undo_rope_order(weights, heads[part])
        converted[_hugging_face_name(tensor.name)] = to_bfloat16(weights)
        report.advance(1)
    # By address, because numpy has no bfloat16; `converted` keeps the memory alive.
    specs = {
        name: TensorSpec(dtype="bfloat16", shape=list(data.shape), data_ptr=data.ctypes.data, data_len=data.nbytes)
        for name, data in converted.items()
    }
    serialize_file(specs, path, metadata={"format": "pt"})


def _hugging_face_name(name: str) -> str:
    if name in _MODEL_NAMES:
        return _MODEL_NAMES[name]
    words = name.split(".")
    if len(words) != 4 or words[0] != "blk" or words[2] not in _BLOCK_NAMES:
        raise ModelError(f"the GGUF file has a tensor of unknown purpose: {name}")
    return f"model.layers.{words[1]}.{_BLOCK_NAMES[words[2]]}.{words[3]}"


def _undo_rope_order(weights: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """Rows of q and k from llama.cpp's order (pairs interleaved) back to Hugging Face's (halves)."""
    rows, columns = weights.shape
    pairs = weights.reshape(heads, rows // heads // 2, 2, columns)
    return pairs.swapaxes(1, 2).reshape(rows, columns)


def to_bfloat16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """The upper halves of finite float32 values, rounded to nearest, ties to even, as torch does."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n")
