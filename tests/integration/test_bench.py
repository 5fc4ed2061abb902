"""The load generator and the forced output length against the real engine."""

from __future__ import annotations

import json

import pytest

from proxima_config.forced_length import FIELD
from proxima_server.cli.main import main

pytestmark = pytest.mark.engine


def test_every_answer_has_its_forced_length_though_all_declare_the_same_cap(gateway_url, capsys, tmp_path):
    log = tmp_path / "log.jsonl"
    flags = ["--requests", "16", "--concurrency", "16", "--warmup", "1", "--temperature", "1"]
    shape = ["--input-tokens", "48", "--output-tokens", "1|2|24", "--log-requests", str(log)]
    assert main(["bench", "serve", "--url", gateway_url, *flags, *shape, "--max-error-rate", "0", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    assert {row["wanted_tokens"] for row in rows} == {1, 2, 24}
    assert [row["output_tokens"] for row in rows] == [row["wanted_tokens"] for row in rows]
    assert {row["finish_reason"] for row in rows} == {"stop"}
    assert report["load"]["missed_lengths"] == 0
    assert report["load"]["prompt_lengths"] == "exact, by the server's tokenizer"
    assert {row["prompt_tokens"] for row in rows} == {48}
    assert report["tokens"]["source"] == "usage"
    assert report["server"]["kv_use"]["max"] > 0


@pytest.mark.parametrize("api", ["completions", "generate"])
def test_the_other_endpoints_force_lengths_too(gateway_url, capsys, api):
    flags = ["--requests", "4", "--warmup", "0", "--output-tokens", "7", "--json", "--api", api]
    assert main(["bench", "serve", "--url", gateway_url, *flags]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["requests"]["completed"] == 4
    # The end itself is a token but shows no text; `/generate` has no usage and its lines are counted.
    assert report["tokens"]["output"] == 4 * 7


@pytest.mark.parametrize("length", [0, 1.5, "many"])
def test_a_forced_length_that_is_none_is_refused(http, length):
    body = {"prompt": "a", "max_tokens": 4, "vllm_xargs": {FIELD: length}}
    answer = http.post("/v1/completions", json=body)
    assert answer.status_code == 400
    assert FIELD in answer.json()["error"]["message"]
