"""A model whose own context is shorter than what the default preset allows a request."""

from __future__ import annotations

from pathlib import Path

import pytest
from gateway_process import GatewayProcess
from tiny_model import write_tiny_model

pytestmark = [pytest.mark.engine, pytest.mark.slow]

CONTEXT_TOKENS = 512


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("models") / "short", context_tokens=CONTEXT_TOKENS)


def test_it_starts_with_all_of_its_context(model, tmp_path):
    with GatewayProcess([str(model)], tmp_path / "log") as gateway:
        gateway.wait_ready()
        assert (
            f"engine.max_model_len is {CONTEXT_TOKENS}, the model's own context; preset cpu-embedded" in gateway.log()
        )
        with gateway.client() as client:
            (listed,) = client.get("/v1/models").json()["data"]
            assert listed["max_model_len"] == CONTEXT_TOKENS
            body = {"prompt": [20] * (CONTEXT_TOKENS - 12), "max_tokens": 12, "ignore_eos": True}
            fits = client.post("/v1/completions", json=body)
            assert fits.json()["usage"]["total_tokens"] == CONTEXT_TOKENS
            refused = client.post("/v1/completions", json={**body, "prompt": [20] * (CONTEXT_TOKENS + 1)})
            assert (refused.status_code, refused.json()["error"]["code"]) == (400, "context_length_exceeded")


def test_a_length_that_the_user_set_is_refused(model, tmp_path):
    with GatewayProcess([str(model), "--max-model-len", "4096"], tmp_path / "log") as gateway:
        assert gateway.wait_exit() == 1
        cause = gateway.log().strip().splitlines()[-1]
        assert "User-specified max_model_len (4096) is greater than the derived max_model_len" in cause
        assert f"max_position_embeddings={CONTEXT_TOKENS}" in cause
