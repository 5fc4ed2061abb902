"""How long a request may be, as vLLM derives it from a model and from who says what."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiny_model import write_tiny_model
from vllm.config import ModelConfig

from proxima_engine.bounded_context import BoundedEngineArgs

BOUND = 4096
Make = Callable[..., ModelConfig]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """vLLM's configuration of a tiny model whose config.json has `context` instead of its own."""

    def make(context: dict[str, Any], *, bound: int | None = BOUND, asked: int | None = None) -> ModelConfig:
        path = write_tiny_model(tmp_path) / "config.json"
        config = json.loads(path.read_text())
        del config["max_position_embeddings"]
        path.write_text(json.dumps({**config, **context}))
        args = BoundedEngineArgs(model=str(tmp_path), max_model_len=BOUND if asked is None else asked)
        args.bound_tokens, args.bound_by = bound, "preset this"
        return args.create_model_config()

    return make


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    """By us: whether vLLM's own messages come here, too, hangs on who has set its logging up before."""
    return [record.getMessage() for record in caplog.records if record.name.startswith("proxima_engine")]


@pytest.mark.parametrize(
    ("context", "length", "says"),
    [
        pytest.param({"max_position_embeddings": 512}, 512, "512, the model's own context; preset this allows 4096"),
        pytest.param({"max_position_embeddings": 8192}, BOUND, "4096 by preset this; the model's own context is 8192"),
        pytest.param(
            {"max_position_embeddings": 512, "rope_scaling": {"rope_type": "linear", "factor": 4.0}},
            2048,
            "2048, the model's own context; preset this allows 4096",
            id="stretched",
        ),
        pytest.param(
            {"max_position_embeddings": 8192, "seq_length": 1024},
            1024,
            "1024, the model's own context; preset this allows 4096",
            id="by_another_name",
        ),
    ],
)
def test_the_smaller_of_bound_and_context_counts(
    make: Make, caplog: pytest.LogCaptureFixture, context: dict[str, Any], length: int, says: str
) -> None:
    with caplog.at_level(logging.INFO, "proxima_engine"):
        assert make(context).max_model_len == length
    assert said(caplog) == [f"engine.max_model_len is {says}"]


def test_nothing_is_said_where_they_agree(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "proxima_engine"):
        assert make({"max_position_embeddings": BOUND}).max_model_len == BOUND
    assert not said(caplog)


def test_leave_to_exceed_a_context_is_none_for_a_bound(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_ALLOW_LONG_MAX_MODEL_LEN", "1")
    assert make({"max_position_embeddings": 512}).max_model_len == 512
    assert make({"max_position_embeddings": 512}, bound=None, asked=600).max_model_len == 600


def test_what_the_user_asks_for_is_passed_on(make: Make) -> None:
    assert make({"max_position_embeddings": 512}, bound=None, asked=256).max_model_len == 256
    with pytest.raises(ValueError, match=r"User-specified max_model_len \(4096\) is greater .*=512"):
        make({"max_position_embeddings": 512}, bound=None)
