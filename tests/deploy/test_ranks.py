"""Pods with several ranks, executed on this CPU: tensor parallel and data parallel, under Proxima's scheduler."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from chart import Rendered, render
from pod_process import PodProcess
from ports import free_ports
from tiny_model import write_tiny_model
from transformers import LlamaForCausalLM

pytestmark = [pytest.mark.slow, pytest.mark.engine]
LENGTH = 48


def rendered(engine: dict[str, Any], **config: Any) -> Rendered:
    http, admin = free_ports(2)
    ports = {"server": {"port": http, "host": "127.0.0.1"}, "admin": {"port": admin, "host": "127.0.0.1"}}
    memory = {"kv_cache_memory_bytes": 200_000_000}
    shutdown = {"preStopSeconds": 1}
    return render({"config": {**ports, "engine": memory | engine, **config}, "shutdown": shutdown})


def complete(pod: PodProcess, prompt: list[int]) -> list[int]:
    """Greedy."""
    body = {"prompt": prompt, "max_tokens": LENGTH, "ignore_eos": True, "temperature": 0, "return_token_ids": True}
    answer = httpx.post(f"{pod.url('http')}/v1/completions", json=body, trust_env=False, timeout=180)
    assert answer.status_code == 200, answer.text
    token_ids: list[int] = answer.json()["choices"][0]["token_ids"]
    return token_ids


def prompts() -> list[list[int]]:
    return [[(7 * each + step * step) % 250 + 2 for step in range(5 + 40 * each)] for each in range(4)]


def test_two_tensor_parallel_ranks_answer_as_the_undivided_model_does(tmp_path: Path):
    model = write_tiny_model(tmp_path / "cache" / "tiny")
    (model / "model.safetensors").chmod(0o644)  # The pod has a user of its own.
    values = {"tensor_parallel_size": 2, "enforce_eager": True, "max_model_len": 1024}
    with PodProcess(rendered(values, model="/cache/tiny"), tmp_path) as pod:
        pod.wait_ready()
        with ThreadPoolExecutor(4) as clients:
            answers = list(clients.map(lambda prompt: complete(pod, prompt), prompts()))
        log = pod.log()
    undivided = LlamaForCausalLM.from_pretrained(model, dtype=torch.float32)
    for prompt, answer in zip(prompts(), answers, strict=True):
        expected = undivided.generate(
            torch.tensor([prompt]), do_sample=False, max_new_tokens=LENGTH, min_new_tokens=LENGTH
        )
        assert answer == expected[0, len(prompt) :].tolist()
    assert "world_size=2" in log


def test_two_data_parallel_ranks_share_the_requests(tmp_path: Path):
    with PodProcess(rendered({"data_parallel_size": 2}), tmp_path) as pod:
        pod.wait_ready()
        with ThreadPoolExecutor(8) as clients:
            answers = list(clients.map(lambda _: complete(pod, prompts()[1]), range(8)))
        metrics = httpx.get(f"{pod.url('admin')}/metrics", trust_env=False).text
    assert answers == answers[:1] * 8
    counted = re.findall(
        r'^vllm:request_success_total\{engine="(\d)",finished_reason="length".*\} (\S+)$', metrics, re.MULTILINE
    )
    finished = {engine: float(count) for engine, count in counted}
    assert set(finished) == {"0", "1"}
    assert sum(finished.values()) == 8
    assert min(finished.values()) >= 1
    steps = dict(re.findall(r'^proxima_scheduler_steps_total\{.*engine="(\d)".*\} (\S+)$', metrics, re.MULTILINE))
    assert min(float(steps[engine]) for engine in "01") >= LENGTH - 1, "each rank has a Proxima scheduler of its own"
