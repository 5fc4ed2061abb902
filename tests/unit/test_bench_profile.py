"""`proxima bench profile`: how it captures, and what it reads from a timeline."""

from __future__ import annotations

import gzip
import json
import re
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web
from listening import listening
from scripted_server import Script, ScriptedServer

from proxima_bench import servers, trace
from proxima_config.errors import ProximaError
from proxima_server.cli.main import main


def event(name, start_ms, duration_ms, cat="cpu_op", **more):
    return {
        "ph": "X",
        "name": name,
        "cat": cat,
        "ts": start_ms * 1000,
        "dur": duration_ms * 1000,
        "pid": 1,
        "tid": 1,
        **more,
    }


def timeline(*, gpu=False):
    """Two steps of 40 ms with 10 ms between: a prompt of 30 tokens beside 2 answers, then 3 answers."""
    events = [
        event("execute_context_1(30)_generation_2(2)", 1000, 30, "user_annotation"),
        event("gpu_model_runner: forward", 1002, 20, "user_annotation"),
        event("gpu_model_runner: sample", 1030, 10, "user_annotation"),
        event("execute_context_0(0)_generation_3(3)", 1050, 40, "user_annotation"),
        event("aten::linear", 1000, 30),
        event("aten::addmm", 1005, 20),
        event("aten::linear", 1050, 12),
        {"ph": "M", "name": "process_name", "pid": 1},
    ]
    on_gpu = [
        event("gemm", 1002, 25, "kernel", tid=7),
        # The same marks, as long as the GPU takes for them, once for each stream.
        event("execute_context_1(30)_generation_2(2)", 1004, 40, "gpu_user_annotation", tid=7),
        event("gpu_model_runner: forward", 1004, 38, "gpu_user_annotation", tid=7),
        event("execute_context_0(0)_generation_3(3)", 1055, 38, "gpu_user_annotation", tid=7),
        event("execute_context_0(0)_generation_3(3)", 1090, 1, "gpu_user_annotation", tid=20),
    ]
    return events + (on_gpu if gpu else [])


def write(path, events):
    with gzip.open(path, "wt") as file:
        json.dump({"traceEvents": events}, file)
    return path


class TestTrace:
    def test_steps_and_what_lies_between(self, tmp_path):
        found = trace.read(write(tmp_path / "a.pt.trace.json.gz", timeline()))
        assert [(round(each.start_s, 6), each.prompt_tokens, each.decodes) for each in found.steps] == [
            (0, 30, 2),
            (0.05, 0, 3),
        ]
        assert [round(each.duration_s, 6) for each in found.steps] == [0.04, 0.04]
        assert [round(each.forward_s, 6) for each in found.steps] == [0.02, 0]
        assert found.gaps_s == [pytest.approx(0.01)]
        assert found.busy_share == pytest.approx(80 / 90)
        assert found.duration_s == pytest.approx(0.09)

    def test_time_of_an_operator_is_its_own(self, tmp_path):
        found = trace.read(write(tmp_path / "a.json.gz", timeline()))
        assert [(each.name, round(each.total_s, 6), each.calls) for each in found.operators] == [
            ("aten::linear", 0.022, 2),
            ("aten::addmm", 0.02, 1),
        ]
        assert found.device == "cpu"

    def test_kernels_where_there_are_any(self, tmp_path):
        found = trace.read(write(tmp_path / "a.json.gz", timeline(gpu=True)))
        assert ([each.name for each in found.operators], found.device) == (["gemm"], "gpu")

    def test_steps_take_as_long_as_the_gpu_does(self, tmp_path):
        found = trace.read(write(tmp_path / "a.json.gz", timeline(gpu=True)))
        assert [(round(each.start_s, 6), round(each.duration_s, 6)) for each in found.steps] == [
            (0.004, 0.04),
            (0.055, 0.038),
        ]
        assert round(found.steps[0].forward_s, 6) == 0.038

    def test_an_idle_engine(self, tmp_path):
        with pytest.raises(ProximaError, match="no step of the engine"):
            trace.read(write(tmp_path / "a.json.gz", [event("aten::linear", 0, 1)]))

    def test_no_timeline(self, tmp_path):
        (tmp_path / "a.json").write_text("[]")
        with pytest.raises(ProximaError, match="is no trace of the torch profiler"):
            trace.read(tmp_path / "a.json")


class Profiled(ScriptedServer):
    """Writes a timeline where it was told to when it was started."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.started, self.asked, self.folder, self.answers = [], [], None, 200
        self.file = "rank-0.pt.trace.json.gz"

    def app(self):
        app = super().app()
        app.router.add_post("/debug/profile", self._profile)
        return app

    async def _profile(self, request):
        self.asked.append((dict(request.query), len(self.bodies) - len(self.left)))
        if self.answers != 200:
            return web.json_response({"error": {"message": "not set up"}}, status=self.answers)
        write(self.folder / self.file, timeline())
        return web.json_response({})


@pytest.fixture
def profiled(monkeypatch):
    """The command against a server that streams for long."""
    server = Profiled(lambda *_: Script((0.02,) * 100))
    with listening(server) as url:

        @asynccontextmanager
        async def running(arm, _model, _load, extra, log, wrapper, environment):
            assert environment["VLLM_CUSTOM_SCOPES_FOR_PROFILING"] == "1"
            server.started.append((arm.name, extra, wrapper))
            server.folder = log.parent
            yield url

        monkeypatch.setattr(servers, "running", running)
        yield server


LOAD = ["--requests", "64", "--concurrency", "4", "--warmup", "0", "--output-tokens", "50", "--preset", "throughput"]
SHORT = ["--after-s", "0.2", "--duration-s", "0.5"]


def test_each_arm_is_captured_under_load(profiled, tmp_path, capsys):
    assert main(["bench", "profile", "--out", str(tmp_path / "p"), *LOAD, *SHORT]) == 0
    assert [name for name, _, _ in profiled.started] == ["native", "proxima"]
    assert f"--profiler-config.torch_profiler_dir={tmp_path / 'p' / 'native'}" in profiled.started[0][1]
    assert [query for query, _ in profiled.asked] == [{"duration_s": "0.5"}] * 2
    assert all(in_flight > 0 for _, in_flight in profiled.asked)
    text = (tmp_path / "p" / "profile.html").read_text()
    assert re.findall(r"<figcaption>(\w+)</figcaption>", text) == ["native", "proxima"]
    assert text.count("<svg") == 2
    assert re.findall(r'<th scope="row">between steps p50</th>(.*?)</tr>', text) == ["<td>10 ms</td>" * 2]
    assert "proxima/rank-0.pt.trace.json.gz" in text
    assert capsys.readouterr().out.splitlines()[-1] == str(tmp_path / "p" / "profile.html")


@pytest.mark.parametrize("name", ["rank-0.2.pt.trace.json.gz", "rank-0.pt.trace.json.gz"])
def test_into_the_same_folder_again(profiled, tmp_path, capsys, name):
    """vLLM's names change with the time."""
    flags = ["--out", str(tmp_path), "--arms", "native", "--json", *LOAD, *SHORT]
    assert main(["bench", "profile", *flags]) == 0
    (tmp_path / "native" / "log").write_text("of the first call")
    profiled.file = name
    capsys.readouterr()
    assert main(["bench", "profile", *flags]) == 0
    assert json.loads(capsys.readouterr().out)["files"]["native"] == [str(tmp_path / "native" / name)]
    assert not (tmp_path / "native" / "log").exists()


def test_in_chinese(profiled, tmp_path):
    assert main(["bench", "profile", "--out", str(tmp_path), "--lang", "zh", "--arms", "native", *LOAD, *SHORT]) == 0
    assert "引擎内部" in (tmp_path / "profile.html").read_text()


def test_nsys_runs_the_server(profiled, tmp_path, monkeypatch):
    (tmp_path / "nsys").write_text("#!/bin/sh\n")
    (tmp_path / "nsys").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    flags = ["--tool", "nsys", "--arms", "native", "--out", str(tmp_path / "p")]
    assert main(["bench", "profile", *flags, *LOAD, *SHORT]) == 0
    ((_, extra, wrapper),) = profiled.started
    assert extra == ["--profiler-config.profiler=cuda"]
    assert wrapper[:2] == [str(tmp_path / "nsys"), "profile"]
    assert "--capture-range=cudaProfilerApi" in wrapper
    assert f"--output={tmp_path / 'p' / 'native' / 'profile'}" in wrapper
    # What nsys writes is for Nsight; there is no page.
    assert not (tmp_path / "p" / "profile.html").exists()


def test_a_profile_that_is_refused(profiled, tmp_path, capsys):
    profiled.answers = 501
    assert main(["bench", "profile", "--out", str(tmp_path), *LOAD, *SHORT]) == 1
    assert "the profile was refused: 501" in capsys.readouterr().err


def test_a_load_that_is_over_too_soon(profiled, tmp_path, capsys):
    profiled.script = lambda *_: Script()
    assert main(["bench", "profile", "--out", str(tmp_path), *LOAD, "--after-s", "5"]) == 1
    assert "the load had ended 5 s after it began" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--arms", "url:a=http://h:1"], "a cannot be profiled"),
        (["--arms", "vllm"], "vllm cannot be profiled"),
        (["--duration-s", "61"], "--duration-s must be above 0 and at most 60"),
        (["--after-s", "-1"], "--after-s must be at least 0"),
        (["--preset", "overload"], "give --rate"),
    ],
)
def test_wrong_usage(tmp_path, capsys, flags, message):
    assert main(["bench", "profile", "--out", str(tmp_path), *flags]) == 2
    assert message in capsys.readouterr().err


def test_without_nsys(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("PATH", str(Path("/nonexistent")))
    assert main(["bench", "profile", "--tool", "nsys", "--out", str(tmp_path)]) == 2
    assert "there is no nsys on PATH" in capsys.readouterr().err
