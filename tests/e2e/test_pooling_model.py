"""A model that makes embeddings, behind the same door. It has an engine of its own."""

from __future__ import annotations

import math

import pytest
from gateway_process import GatewayProcess

pytestmark = [pytest.mark.engine, pytest.mark.slow]

POOLING = ["--runner", "pooling", "--max-model-len", "512", "--kv-cache-memory-bytes", "100000000", "--enforce-eager"]


def test_embeddings_and_nothing_else(tiny_model, tmp_path):
    with GatewayProcess([str(tiny_model), *POOLING], tmp_path / "log") as gateway:
        gateway.wait_ready()
        with gateway.client() as client:
            answer = client.post("/v1/embeddings", json={"input": ["a", "b", "a"], "dimension": 3})
            assert answer.headers["x-proxima-ignored-params"] == "dimension"
            vectors = [item["embedding"] for item in answer.json()["data"]]
            assert vectors[0] == vectors[2] != vectors[1]
            assert math.isclose(sum(x * x for x in vectors[0]), 1, rel_tol=1e-2)
            assert isinstance(
                client.post("/v1/embeddings", json={"input": "a", "encoding_format": "base64"}).json()["data"][0][
                    "embedding"
                ],
                str,
            )
            refused = client.post("/v1/embeddings", json={"input": "a", "model": "other"})
            assert (refused.status_code, refused.json()["error"]["code"]) == (404, "model_not_found")
            refused = client.post("/v1/embeddings", json={"input": 5})
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, "input")
            refused = client.post("/v1/embeddings", json={"input": "a" * 5000})
            assert (refused.status_code, refused.json()["error"]["code"]) == (400, "context_length_exceeded")
            refused = client.post("/v1/completions", json={"prompt": "a"})
            assert (refused.status_code, refused.json()["error"]["code"]) == (400, "not_supported")
            document = client.get("/openapi.json").json()
    assert "/v1/embeddings" in document["paths"]
