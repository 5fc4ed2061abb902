"""A quantised file becomes a folder that transformers and vLLM read alike."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from tiny_wheel import CONTEXT_TOKENS, write_gguf
from tokenizers import Tokenizer

from proxima_config.errors import ModelError
from proxima_engine.models.gguf_llama import convert, to_bfloat16


class Silent:
    def stage(self, text: str, total: int) -> None:
        pass

    def advance(self, amount: int) -> None:
        pass


@pytest.fixture
def converted(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    return write_gguf(tmp_path / "tiny.gguf"), convert(tmp_path / "tiny.gguf", folder, Silent()) or folder


def test_weights_keep_their_values_names_and_order_of_rows(converted):
    expected, folder = converted
    with safe_open(folder / "model.safetensors", "pt") as file:
        assert set(file.keys()) == set(expected)
        for name, values in expected.items():
            assert torch.equal(file.get_tensor(name), torch.from_numpy(values).to(torch.bfloat16)), name


def test_config_describes_the_model(converted):
    config = json.loads((converted[1] / "config.json").read_text())
    assert (config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]) == (4, 2, 16)
    assert config["rms_norm_eps"] == 1e-5
    assert config["tie_word_embeddings"] is True
    assert config["eos_token_id"] == 2


def test_tokenizer_splits_numbers_and_knows_its_special_tokens(converted):
    folder = converted[1]
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    # "12" is a token of the vocabulary, but numbers are read digit by digit.
    assert tokenizer.encode("ab12<|im_end|>").tokens == ["ab", "1", "2", "<|im_end|>"]
    assert tokenizer.decode(tokenizer.encode("ab 12").ids) == "ab 12"
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    assert settings["model_max_length"] == CONTEXT_TOKENS
    assert (settings["eos_token"], settings["bos_token"]) == ("<|im_end|>", "<|im_start|>")
    assert (folder / "chat_template.jinja").read_text() == "{{ messages[0]['content'] }}"


def test_other_architectures_are_refused(tmp_path):
    write_gguf(tmp_path / "other.gguf", architecture="qwen2")
    with pytest.raises(ModelError, match="not a Llama model"):
        convert(tmp_path / "other.gguf", tmp_path, Silent())


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1))
def test_rounds_to_bfloat16_as_torch_does(values):
    array = np.array(values, np.float32)
    assert torch.equal(torch.from_numpy(to_bfloat16(array)).view(torch.bfloat16), torch.from_numpy(array).bfloat16())
