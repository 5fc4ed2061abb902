"""The endpoints beside OpenAI's, and what comes over the wire."""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest
from prometheus_client.parser import text_string_to_metric_families

pytestmark = pytest.mark.engine

MODEL = "smollm2-135m"


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_curl_gets_server_sent_events(gateway_url):
    body = {"model": MODEL, "prompt": "Once upon a time", "max_tokens": 64, "ignore_eos": True, "stream": True}
    command = ["curl", "-sSN", "-i", "--noproxy", "*", f"{gateway_url}/v1/completions"]
    command += ["-H", "Content-Type: application/json", "-d", json.dumps(body)]
    answer = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout
    head, _, events = answer.replace("\r\n", "\n").partition("\n\n")
    assert head.startswith("HTTP/1.1 200")
    assert "content-type: text/event-stream" in head
    assert "x-accel-buffering: no" in head
    lines = [line for line in events.split("\n") if line]
    assert lines[-1] == "data: [DONE]"
    assert all(line.startswith("data: ") for line in lines)
    assert "\n\n\n\n" in events, "no client may trip over what keeps proxies patient"
    reasons = [json.loads(line.removeprefix("data: "))["choices"][0]["finish_reason"] for line in lines[:-1]]
    assert [reason for reason in reasons if reason] == ["length"]


def test_generate_as_the_old_server(http):
    body = {"prompt": "The capital of France is", "max_tokens": 4, "temperature": 0}
    text = http.post("/generate", json=body).json()["text"]
    assert len(text) == 1
    assert text[0].startswith(body["prompt"])
    assert len(text[0]) > len(body["prompt"])
    lines = http.post("/generate", json={**body, "stream": True}).text.splitlines()
    assert json.loads(lines[-1]) == {"text": text}
    assert all(text[0].startswith(json.loads(line)["text"][0]) for line in lines)


def test_generate_several_choices(http):
    body = {"prompt": "The sea", "max_tokens": 4, "temperature": 1.0, "seed": 5, "n": 2}
    text = http.post("/generate", json=body).json()["text"]
    last = http.post("/generate", json={**body, "stream": True}).text.splitlines()[-1]
    assert len(text) == 2
    assert json.loads(last) == {"text": text}


def test_tokens_and_back(http):
    tokenized = http.post("/tokenize", json={"prompt": "Hello, world"}).json()
    assert tokenized["count"] == len(tokenized["tokens"])
    assert http.post("/detokenize", json={"tokens": tokenized["tokens"]}).json() == {"prompt": "Hello, world"}
    refused = http.post("/detokenize", json={"tokens": [1, 10**6]})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "tokens[1]")
    chat = http.post("/tokenize", json={"messages": [{"role": "user", "content": "Hello"}]}).json()
    assert chat["count"] > tokenized["count"]


def test_health_and_version(http):
    for path in ("/health", "/health/live", "/health/ready", "/health/startup"):
        assert http.get(path).json()["status"] == "ok"
    assert http.get("/version").json()["version"] == "0.32.0"


def test_docs_describe_the_models_of_the_engine(http):
    document = http.get("/openapi.json").json()
    chat = document["paths"]["/v1/chat/completions"]["post"]
    schema = chat["requestBody"]["content"]["application/json"]["schema"]
    assert {"messages", "tools", "response_format", "seed"} <= schema["properties"].keys()
    referenced = set(_references(document))
    assert referenced <= {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}


def _references(node: object) -> list[str]:
    if isinstance(node, dict):
        own = [node["$ref"]] if isinstance(node.get("$ref"), str) else []
        return own + [each for value in node.values() for each in _references(value)]
    return [each for value in node for each in _references(value)] if isinstance(node, list) else []


def test_metrics_of_engine_scheduler_and_gateway(http):
    http.post("/v1/completions", json={"prompt": "Hi", "max_tokens": 2})
    families = {family.name: family for family in text_string_to_metric_families(http.get("/metrics").text)}
    assert families["vllm:generation_tokens"].samples[0].value > 0
    assert families["proxima_kv_blocks"].samples[0].value == 191
    steps = families["proxima_scheduler_steps"].samples[0].value
    assert steps > 0, "the scheduler's snapshots arrive"


def test_a_schema_whose_grammar_would_fill_the_memory_is_refused(http):
    schema = {"type": "array", "minItems": 1_000_000_000}
    body = {
        "model": "smollm2-135m",
        "messages": [{"role": "user", "content": "Hi"}],
        "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}},
    }
    answer = http.post("/v1/chat/completions", json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "response_format.json_schema.schema.minItems"
