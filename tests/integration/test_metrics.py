"""What the shared gateway's `/metrics` shows: what the page about it says, and what autoscalers and routers read."""

from __future__ import annotations

import asyncio
import re
import subprocess
from pathlib import Path

import httpx
import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_server import Prometheus, programs

pytestmark = pytest.mark.engine

PAGE = Path(__file__).resolve().parents[2] / "docs" / "metrics.md"
RUNBOOK = PAGE.with_name("operations.md")
SYMPTOMS = {
    "Throughput does not rise",
    "The 95th percentile rose",
    "Out of memory",
    "The model does not start",
    "Requests fail",
    "Roll back",
}
_ROW = re.compile(r"\| `(?P<name>\w+)`(?P<later> \*\(later\)\*)? \| (?P<type>\w+) \| (?P<labels>[^|]*) \|.*\|")
_BUCKETS = re.compile(r"\| `(?P<name>\w+)` \| (?P<bounds>[\d., ]+) \|")
OURS = ("proxima_", "DCGM_")


def scraped(text: str) -> dict[str, Metric]:
    return {family.name: family for family in text_string_to_metric_families(text)}


def total(families: dict[str, Metric], name: str) -> float:
    return sum(sample.value for sample in families[name].samples)


def test_the_page_about_metrics_is_what_is_shown(http):
    http.post("/v1/completions", json={"prompt": "Hi", "max_tokens": 2})
    shown = {name: family for name, family in scraped(http.get("/metrics").text).items() if name.startswith(OURS)}
    rows = [match.groupdict() for match in map(_ROW.fullmatch, PAGE.read_text().splitlines()) if match]
    assert {row["name"].removesuffix("_total") for row in rows} == set(shown)
    for row in rows:
        family = shown[row["name"].removesuffix("_total")]
        assert family.type == row["type"]
        assert family.samples or row["later"]
        labels = set(re.findall(r"`(\w+)`", row["labels"]))
        assert all(set(sample.labels) - {"le"} == labels for sample in family.samples), row["name"]


def test_the_runbook_names_symptoms_and_what_can_be_looked_at(http):
    text = RUNBOOK.read_text()
    assert set(re.findall(r"^## (.+)$", text, re.MULTILINE)) >= SYMPTOMS
    families = scraped(http.get("/metrics").text)
    shown = {*families} | {sample.name for family in families.values() for sample in family.samples}
    named = set(re.findall(r"\b(?:proxima_|vllm:|process_)[a-z]\w+", text))
    assert len(named) > 10
    assert not {name for name in named if name not in shown and name.removesuffix("_total") not in shown}


def test_buckets_are_those_of_the_page(http):
    shown = scraped(http.get("/metrics").text)
    rows = [match.groupdict() for match in map(_BUCKETS.fullmatch, PAGE.read_text().splitlines()) if match]
    assert len(rows) >= 4
    for row in rows:
        bounds = [sample.labels["le"] for sample in shown[row["name"]].samples if sample.name.endswith("_bucket")]
        told = [*map(float, row["bounds"].split(",")), float("inf")]
        assert [float(bound) for bound in dict.fromkeys(bounds)] == told


def test_every_request_is_counted_once_by_gateway_and_engine(http):
    def counts() -> dict[str, float]:
        families = scraped(http.get("/metrics").text)
        return {
            "gateway": total(families, "proxima_output_tokens"),
            "vllm": total(families, "vllm:generation_tokens"),
            "prompt": total(families, "proxima_prompt_tokens"),
            "vllm prompt": total(families, "vllm:prompt_tokens"),
        }

    before = counts()
    for stream in (True, False):
        body = {"prompt": ["One", "Two"], "max_tokens": 5, "ignore_eos": True, "n": 2, "stream": stream}
        assert http.post("/v1/completions", json=body).status_code == 200
    after = counts()
    grown = {name: after[name] - before[name] for name in before}
    assert grown["gateway"] == grown["vllm"] == 2 * 2 * 2 * 5
    # vLLM counts the prompt of each of the `n` choices.
    assert 0 < grown["prompt"] <= grown["vllm prompt"]


async def test_what_gateway_routers_read_is_right_under_proximas_scheduler(gateway_url):
    """The inference extension of the Gateway API and llm-d route by these series of vLLM."""
    # 19 blocks each, of prompts that share none: ten of them fill the pool.
    streams = 16
    bodies = [{"prompt": [1000 + number] * 600, "max_tokens": 100, "ignore_eos": True} for number in range(streams)]
    async with httpx.AsyncClient(base_url=gateway_url, trust_env=False, timeout=120) as client:
        asking = [asyncio.create_task(client.post("/v1/completions", json=body)) for body in bodies]
        seen: list[tuple[float, float]] = []
        try:
            async with asyncio.timeout(60):
                while True:
                    families = scraped((await client.get("/metrics")).text)
                    running = total(families, "vllm:num_requests_running")
                    waiting = total(families, "vllm:num_requests_waiting")
                    seen.append((running, waiting))
                    if running + waiting == streams and running > 0 and waiting > 0:
                        break
        except TimeoutError:
            pytest.fail(f"{streams} requests were never counted as running and waiting together: {seen}")
        finally:
            for task in asking:
                task.cancel()
            await asyncio.gather(*asking, return_exceptions=True)
        assert total(families, "proxima_scheduler_waiting_tokens") > 0
        assert total(families, "proxima_scheduler_oldest_wait_seconds") > 0
        used = total(families, "vllm:kv_cache_usage_perc")
        assert 0 < used <= 1
        assert used == pytest.approx(
            total(families, "proxima_kv_blocks_used") / total(families, "proxima_kv_blocks"), abs=0.15
        )
        (info,) = families["vllm:cache_config_info"].samples
        assert info.value == 1
        assert info.labels["num_gpu_blocks"] == "192"
        assert info.labels["block_size"] == "32"
        async with asyncio.timeout(30):
            while True:
                families = scraped((await client.get("/metrics")).text)
                left = [total(families, f"vllm:num_requests_{state}") for state in ("running", "waiting")]
                if left == [0, 0] and total(families, "proxima_scheduler_running") == 0:
                    break


@pytest.mark.slow
def test_a_real_prometheus_takes_the_scrape(http, gateway_url, tmp_path_factory, tmp_path):
    folder = programs(tmp_path_factory.mktemp("prometheus"))
    http.post("/v1/completions", json={"prompt": "Hi", "max_tokens": 2})
    text = http.get("/metrics").text

    def check(scrape: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [folder / "promtool", "check", "metrics"], input=scrape, capture_output=True, text=True, check=False
        )

    # vLLM's names have a colon, which promtool finds wrong; ours are to be right in every respect.
    assert check(text).returncode in (0, 3), check(text).stderr
    ours = "".join(line for line in text.splitlines(keepends=True) if re.match(r"(# \w+ )?proxima_", line))
    assert check(ours).returncode == 0, check(ours).stdout + check(ours).stderr
    with Prometheus(folder, gateway_url, tmp_path) as prometheus:
        assert prometheus.query("up")[0]["value"][1] == "1"
        p95 = "histogram_quantile(0.95, sum by (le) (proxima_time_to_first_token_seconds_bucket))"
        assert 0 < float(prometheus.query(p95)[0]["value"][1]) < 120
        assert prometheus.query("vllm:cache_config_info")
