"""`proxima tune`: what it tries, what it keeps, how engines fail, how it goes on, and what it says in the end."""

from __future__ import annotations

import json
import sys
from contextlib import asynccontextmanager

import pytest
from result_files import served

from proxima_bench import servers
from proxima_bench.arms import Arm
from proxima_bench.html.results import read
from proxima_bench.loads import Load
from proxima_bench.tune import proof, run, search
from proxima_bench.tune.configuration import Configuration
from proxima_bench.tune.record import Record
from proxima_bench.tune.search import KV_BYTES, UTILISATION, Start
from proxima_bench.tune.trials import Status, Trial, Trials, failure, oom_kills
from proxima_config import hardware
from proxima_config.errors import ProximaError, UsageError
from proxima_config.layering import load_settings
from proxima_server.cli.main import main

GIB = 1 << 30
CPU = hardware.Hardware(has_gpu=False, cpu_flags=frozenset(), cores=2, memory_bytes=24 * GIB)
CONDITIONS = {"model": "tiny", "objective": "goodput_rps", "machine": "this"}
GOODPUT = proof.figure_of("goodput_rps")
SEQUENCES, TOKENS = "engine.max_num_seqs", "engine.max_num_batched_tokens"


class Machine:
    """Runs trials without an engine: ``speed`` gives tokens a second, or the reason why there are none."""

    def __init__(self, speed, **others):
        self.speed, self.others = speed, others
        self.tried = []

    async def run(self, configuration):
        self.tried.append(str(configuration))
        value = self.speed(configuration)
        return failure(value) if isinstance(value, str) else Trial(Status.MEASURED, "", value, **self.others)


def start(**changes):
    values = {
        "max_num_batched_tokens": 2048,
        "max_num_seqs": 128,
        "in_flight": 64,
        "memory": KV_BYTES,
        "memory_value": GIB,
        "kv_dtypes": (),
        "compile": False,
        "quick": True,
    }
    return Start(**values | changes)


@pytest.fixture
def trials(tmp_path):
    def trials(machine, **conditions):
        record = Record.begin(tmp_path / "trials.json", {**CONDITIONS, **conditions}, lambda _text: None)
        return Trials(machine.run, record, lambda _text: None)

    return trials


class TestSearch:
    async def test_one_dimension_after_the_other(self, trials):
        def speed(configuration):
            gain = 1.2 if configuration.settings.get(SEQUENCES) == 32 else 1.0
            return 100.0 * gain * (1.1 if configuration.scheduler == "proxima" else 1.0)

        machine = Machine(speed, kv_full=True)
        found = await search.search(trials(machine), start(), {})
        assert (str(found.baseline), str(found.default)) == ("native", "proxima")
        assert str(found.tuned) == "proxima --max-num-seqs=32"
        assert machine.tried == [
            "native",
            "proxima",
            "proxima --max-num-batched-tokens=4096",
            "proxima --max-num-seqs=32",
            "proxima --max-num-seqs=16",
            f"proxima --kv-cache-memory-bytes={2 * GIB} --max-num-seqs=32",
            f"proxima --kv-cache-memory-bytes={4 * GIB} --max-num-seqs=32",
            "proxima --max-num-seqs=32 --swap",
        ]

    async def test_a_gain_within_the_noise_is_none(self, trials):
        machine = Machine(lambda configuration: 102.0 if TOKENS in configuration.settings else 100.0)
        found = await search.search(trials(machine), start(), {})
        assert found.tuned == found.default

    async def test_native_has_to_win_clearly(self, trials):
        found = await search.search(
            trials(Machine(lambda each: 110.0 if each.scheduler == "native" else 100.0)), start(), {}
        )
        assert found.tuned == found.baseline

    async def test_what_the_user_gave_stays(self, trials):
        machine = Machine(lambda _configuration: 100.0, kv_full=True)
        await search.search(trials(machine), start(quick=False), {SEQUENCES: 7, KV_BYTES: GIB, "swap.enabled": False})
        assert all("--max-num-seqs=7" in name and f"bytes={GIB}" in name for name in machine.tried)
        assert not [name for name in machine.tried if "--swap" in name]

    async def test_memory_grows_until_it_fails_and_is_then_set_back(self, trials):
        def speed(configuration):
            share = configuration.settings.get(UTILISATION, 0.8)
            return "torch.OutOfMemoryError: CUDA out of memory" if share > 0.91 else 1000 * share

        machine = Machine(speed)
        wanted = start(memory=UTILISATION, memory_value=0.8, quick=False)
        found = await search.search(trials(machine), wanted, {SEQUENCES: 8, TOKENS: 512})
        tried = [name.partition("utilization=")[2].split()[0] for name in machine.tried if "utilization" in name]
        assert tried == ["0.85", "0.9", "0.95", "0.88"]
        assert found.tuned.settings[UTILISATION] == 0.88

    async def test_a_quick_search_leaves_memory_that_nobody_waits_for(self, trials):
        machine = Machine(lambda _: 100.0)
        await search.search(trials(machine), start(), {})
        assert not [name for name in machine.tried if "memory" in name or "--swap" in name]

    async def test_batches_become_smaller_until_that_serves_less(self, trials):
        best = {50: 95.0, 25: 120.0, 12: 80.0, 6: 500.0}
        machine = Machine(lambda each: best.get(each.settings.get(SEQUENCES), 90.0))
        found = await search.search(trials(machine), start(in_flight=100), {})
        assert [name.partition("seqs=")[2] for name in machine.tried if "seqs" in name] == ["50", "25", "12"]
        assert found.tuned.settings[SEQUENCES] == 25

    async def test_a_limit_that_the_load_never_reaches_is_not_tried(self, trials):
        machine = Machine(lambda each: each.settings.get(SEQUENCES, 128), prompt_tokens=100.0)
        await search.search(trials(machine), start(in_flight=16), {})
        assert machine.tried == ["native", "proxima", "proxima --max-num-seqs=8"]

    async def test_where_nothing_attains_by_default_any_is_better(self, trials):
        machine = Machine(lambda each: 1.0 if each.settings.get(SEQUENCES) == 8 else 0.0)
        found = await search.search(trials(machine), start(), {})
        assert str(found.tuned) == "proxima --max-num-seqs=8"

    async def test_compiling_and_the_kv_type_where_this_machine_has_them(self, trials):
        machine = Machine(lambda _: 100.0)
        await search.search(trials(machine), start(compile=True, kv_dtypes=("fp8",), quick=False), {})
        assert "proxima --no-enforce-eager" in machine.tried
        assert "proxima --kv-cache-dtype=fp8" in machine.tried

    async def test_a_trial_that_fails_is_not_kept(self, trials):
        speed = lambda each: "it crashed" if each.settings.get(SEQUENCES) == 32 else 100.0  # noqa: E731
        found = await search.search(trials(Machine(speed)), start(), {})
        assert SEQUENCES not in found.tuned.settings

    async def test_a_baseline_that_fails_ends_it(self, trials):
        with pytest.raises(ProximaError, match=r"the baseline native failed \(crashed\): no such model"):
            await search.search(trials(Machine(lambda _: "no such model")), start(), {})


# Stand-ins for `proxima serve`: real processes that die in real ways.
DIES_WHEN_ASKED = """
import http.server, os, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
        if self.path == "/v1/models": self.wfile.write(b'{"data": [{"id": "m"}]}')
    def do_POST(self):
        print('the engine died: RuntimeError: bad kernel', flush=True); os._exit(1)
    def log_message(self, *_): pass
port = int([word for word in sys.argv if word.startswith("--port=")][0].partition("=")[2])
http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""
ALLOCATES = "bytearray(1 << 60)"
EXITS = "import sys; sys.exit('NotImplementedError: no such layer')"
IS_KILLED = "import os, signal, sys; print('a line', flush=True); os.kill(os.getpid(), signal.SIGKILL)"


class TestFailures:
    @pytest.fixture
    def measured(self, monkeypatch, tmp_path):
        """A trial whose engine is a process that runs ``code``."""
        monkeypatch.setattr(hardware, "detect", lambda: CPU)

        def measured(code, **load):
            async def command(*words):
                return [sys.executable, "-c", code, f"--port={words[-1]}"]

            monkeypatch.setattr(servers, "command", command)
            given = run.given_settings(None, [])
            from rich.console import Console

            engines = run.Engines(given, Load(**load), "goodput_rps", tmp_path, Console(quiet=True))
            return engines.trial(Configuration({"scheduler.kind": "native"}))

        return measured

    async def test_python_finds_no_memory(self, measured):
        trial = await measured(ALLOCATES)
        assert trial.status is Status.OUT_OF_MEMORY
        assert "MemoryError" in trial.reason

    async def test_it_exits_by_itself(self, measured):
        trial = await measured(EXITS)
        assert trial.status is Status.CRASHED
        assert "ended with exit code 1 before it was ready" in trial.reason
        assert "no such layer" in trial.reason

    async def test_somebody_kills_it(self, measured):
        trial = await measured(IS_KILLED)
        assert trial.status is Status.CRASHED
        assert "exit code -9" in trial.reason

    async def test_the_kernel_kills_it_for_memory(self, measured, monkeypatch):
        kills = iter([3, 4])
        monkeypatch.setattr(run, "oom_kills", lambda: next(kills))
        assert (await measured(IS_KILLED)).status is Status.OUT_OF_MEMORY

    async def test_it_dies_while_it_is_measured(self, measured):
        trial = await measured(DIES_WHEN_ASKED, warmup=1, requests=1, timeout_s=5)
        assert trial.status is Status.CRASHED
        assert "died with exit code 1" in trial.reason
        assert "bad kernel" in trial.reason

    @pytest.mark.parametrize(
        ("reason", "status"),
        [
            ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", Status.OUT_OF_MEMORY),
            ("RuntimeError: DefaultCPUAllocator: can't allocate memory: you tried to allocate", Status.OUT_OF_MEMORY),
            ("RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate`", Status.OUT_OF_MEMORY),
            ("ValueError: No available memory for the cache blocks.", Status.OUT_OF_MEMORY),
            ("Free memory on device (5/80 GiB) on startup is less than desired GPU memory", Status.OUT_OF_MEMORY),
            ("Available memory on node 0 (9/23 GiB) on kv cache allocation is less than", Status.OUT_OF_MEMORY),
            ("process EngineCore was ended by SIGKILL (out of memory?)", Status.CRASHED),
            ("native ended with exit code 1 before it was ready:\nNotImplementedError", Status.CRASHED),
        ],
    )
    def test_what_engines_say(self, reason, status):
        assert failure(reason).status is status

    def test_the_kernel_counts_its_kills(self, tmp_path):
        (tmp_path / "vmstat").write_text("pgfree 3\noom_kill 17\n")
        assert oom_kills(tmp_path / "vmstat") == 17
        assert oom_kills(tmp_path / "none") == 0


class TestGoingOn:
    async def test_one_that_was_stopped_goes_on(self, trials):
        class Stopped(BaseException):
            pass

        def killed(configuration):
            if SEQUENCES in configuration.settings:
                raise Stopped
            return 100.0

        with pytest.raises(Stopped):
            await search.search(trials(Machine(killed)), start(), {})
        machine = Machine(fast_with_few)
        found = await search.search(trials(machine), start(), {})
        assert machine.tried == ["proxima --max-num-seqs=32", "proxima --max-num-seqs=16"]
        again = Machine(lambda _: pytest.fail("everything is known"))
        assert await search.search(trials(again), start(), {}) == found

    async def test_trials_of_another_model_are_not_gone_on_with(self, trials, tmp_path):
        await search.search(trials(Machine(lambda _: 1.0)), start(), {})
        with pytest.raises(UsageError, match="holds trials of another model"):
            trials(Machine(lambda _: 1.0), model="other")
        (tmp_path / "trials.json").write_text("[]")
        with pytest.raises(UsageError, match="holds no trials"):
            trials(Machine(lambda _: 1.0))

    async def test_a_failed_trial_is_remembered_with_its_reason(self, trials):
        configuration = Configuration({"scheduler.kind": "native"})
        first = await trials(Machine(lambda _: "MemoryError")).of(configuration)
        kept = await trials(Machine(lambda _: pytest.fail("it is known"))).of(configuration)
        assert (kept, kept.status) == (first, Status.OUT_OF_MEMORY)

    async def test_a_crash_is_tried_again_by_the_next_call_only(self, trials):
        configuration = Configuration({"scheduler.kind": "native", SEQUENCES: 8})
        machine = Machine(lambda _: "the device is busy")
        first_call = trials(machine)
        await first_call.of(configuration)
        assert (await first_call.of(configuration)).status is Status.CRASHED
        assert len(machine.tried) == 1
        assert (await trials(Machine(lambda _: 100.0)).of(configuration)).status is Status.MEASURED

    @pytest.mark.parametrize("reason", ["the device is busy", "CUDA out of memory"])
    async def test_a_baseline_that_failed_is_tried_again(self, trials, reason):
        with pytest.raises(ProximaError, match="the baseline native failed"):
            await search.search(trials(Machine(lambda _: reason)), start(), {})
        machine = Machine(lambda _: 100.0)
        await search.search(trials(machine), start(), {})
        assert machine.tried[:2] == ["native", "proxima"]


class Rounds:
    """Arms that are measured again: ``speeds`` by name and round."""

    def __init__(self, speeds):
        self.speeds = speeds
        self.measured, self.started = [], 0

    @asynccontextmanager
    async def servers(self):
        self.started += 1

        @asynccontextmanager
        async def running(arm):
            yield arm.name

        yield running

    async def measure(self, arm, url, number):
        self.measured.append((url, number))
        return {**served(), "goodput_rps": float(self.speeds[arm.name][number - 1])}


NATIVE, TUNED = Arm("native", "native"), Arm("proxima --max-num-seqs=8", "proxima")


class TestProof:
    def prove(self, rounds, tmp_path, count=5):
        record = Record.begin(tmp_path / "trials.json", CONDITIONS, lambda _text: None)
        return proof.prove(record, [NATIVE, TUNED], Load(), count, rounds.servers, rounds.measure)

    async def test_takes_turns_and_says_how_sure_it_is(self, tmp_path):
        rounds = Rounds({"native": [100, 110, 90, 100, 105], TUNED.name: [150, 160, 140, 150, 155]})
        compared = await self.prove(rounds, tmp_path)
        assert [name for name, _ in rounds.measured[:4]] == ["native", TUNED.name, TUNED.name, "native"]
        found = proof.gain(compared, GOODPUT, TUNED, NATIVE)
        assert (found.ratio.value, found.won, found.chance) == (1.5, 5, 1 / 32)
        assert found.sure

    @pytest.mark.parametrize(
        "speeds",
        [
            pytest.param([101, 99, 102, 98, 103], id="now_here_now_there"),
            pytest.param([90, 90, 90, 90, 90], id="worse"),
        ],
    )
    async def test_is_not_sure_of_chance(self, tmp_path, speeds):
        compared = await self.prove(Rounds({"native": [100] * 5, TUNED.name: speeds}), tmp_path)
        assert not proof.gain(compared, GOODPUT, TUNED, NATIVE).sure

    async def test_of_a_base_that_never_attains_there_is_a_difference(self, tmp_path):
        compared = await self.prove(Rounds({"native": [0] * 5, TUNED.name: [1.5] * 5}), tmp_path)
        found = proof.gain(compared, GOODPUT, TUNED, NATIVE)
        assert (found.ratio, found.sure) == (None, True)
        assert str(found) == "1.5 against 0, 1.5 [1.5, 1.5] more; better in 5 of 5 rounds (by chance alone: 3%)"

    async def test_rounds_are_compared_in_pairs(self, tmp_path):
        """In a round that is good for both, the base is better than the other elsewhere."""
        rounds = Rounds({"native": [0, 0, 1.6, 0, 0], TUNED.name: [3.4, 3.2, 1.7, 1.6, 1.5]})
        compared = await self.prove(rounds, tmp_path)
        assert proof.gain(compared, GOODPUT, TUNED, NATIVE).sure

    async def test_one_round_lost_to_a_base_of_zeros_is_not_sure(self, tmp_path):
        rounds = Rounds({"native": [0, 0, 2.0, 0, 0], TUNED.name: [3.4, 3.2, 1.7, 1.6, 1.5]})
        compared = await self.prove(rounds, tmp_path)
        assert not proof.gain(compared, GOODPUT, TUNED, NATIVE).sure

    async def test_three_rounds_prove_nothing(self, tmp_path):
        compared = await self.prove(Rounds({"native": [100] * 3, TUNED.name: [150] * 3}), tmp_path, 3)
        assert not proof.gain(compared, GOODPUT, TUNED, NATIVE).sure

    async def test_goes_on_after_the_last_whole_round(self, tmp_path):
        speeds = {"native": [100] * 5, TUNED.name: [150] * 5}
        await self.prove(Rounds(speeds), tmp_path, 2)
        rounds = Rounds(speeds)
        await self.prove(rounds, tmp_path)
        assert {number for _, number in rounds.measured} == {3, 4, 5}
        again = Rounds(speeds)
        await self.prove(again, tmp_path)
        assert again.started == 0


@pytest.fixture
def tune(monkeypatch, tmp_path, capsys):
    """The command, with trials and rounds that need no engine."""

    monkeypatch.setattr(hardware, "detect", lambda: CPU)

    def tune(speed, *words, rounds=lambda name: 150.0 if "seqs" in name else 100.0, others=lambda _: {}):
        machine = Machine(speed)

        async def trial(_self, configuration):
            return await machine.run(configuration)

        async def again(_self, arm, _url, _number):
            return {**served(), "goodput_rps": rounds(arm.name), **others(arm.name)}

        @asynccontextmanager
        async def started(_self, _arm):
            yield "http://h"

        monkeypatch.setattr(run.Engines, "trial", trial)
        monkeypatch.setattr(run.Engines, "again", again)
        monkeypatch.setattr(run.Engines, "_running", started)
        code = main(["tune", "--out", str(tmp_path / "tuned.yaml"), "--logs", str(tmp_path / "logs"), *words])
        captured = capsys.readouterr()
        return code, captured.out, captured.err, machine

    return tune


def fast_with_few(configuration):
    return 150.0 if configuration.settings.get(SEQUENCES) in (24, 32) else 100.0


class TestCommand:
    def test_writes_settings_that_serve_takes(self, tune, tmp_path):
        code, out, _, machine = tune(fast_with_few, "--", "--max-model-len", "1024", "--ttft-s", "3")
        assert code == 0
        assert out.startswith(
            "goodput_rps of proxima --max-model-len=1024 --max-num-seqs=24 --ttft-s=3.0 over native "
            "--max-model-len=1024 --ttft-s=3.0: 150 against 100, 1.50 [1.50, 1.50] times as much; "
            "better in 5 of 5 rounds (by chance alone: 3%)"
        )
        assert "surely better than the defaults of proxima serve" in out
        assert machine.tried[0] == "native --max-model-len=1024 --ttft-s=3.0"
        loaded = load_settings(environ={}, config_file=tmp_path / "tuned.yaml")
        assert (loaded.settings.scheduler.kind, loaded.settings.engine["max_num_seqs"]) == ("proxima", 24)
        assert (loaded.settings.engine["max_model_len"], loaded.settings.scheduler.ttft_s) == (1024, 3.0)
        # Trials knew the load's targets: what is served knows them too, but for those that were given.
        assert loaded.settings.scheduler.stall_s == 0.4
        assert (tmp_path / "tuned.yaml").read_text().startswith("# Found by proxima tune.\n# goodput_rps of ")
        assert main(["config", "check", str(tmp_path / "tuned.yaml")]) == 0

    def test_says_what_it_costs(self, tune, monkeypatch):
        slower = lambda arm: {"output_tokens_per_s": 90.0 if "seqs" in arm else 100.0}  # noqa: E731
        _, out, _, _ = tune(fast_with_few, "--quick", others=slower)
        assert "its price: output tokens/s 90 instead of 100\n" in out

    def test_a_report_shows_the_comparison(self, tune, tmp_path):
        tune(fast_with_few)
        result = read(tmp_path / "tuned.trials.json")
        assert result.arms == ["native", "proxima", "proxima --max-num-seqs=24"]
        assert main(["bench", "report", str(tmp_path / "tuned.trials.json"), "--out", str(tmp_path / "t.html")]) == 0
        assert "What was tried" in (tmp_path / "t.html").read_text()

    def test_a_quick_one_proves_it_against_the_defaults_only(self, tune, tmp_path):
        tune(fast_with_few, "--quick")
        assert read(tmp_path / "tuned.trials.json").arms == ["proxima", "proxima --max-num-seqs=24"]

    def test_nothing_better_is_said_and_the_defaults_are_written(self, tune, tmp_path):
        code, out, _, _ = tune(lambda _: 100.0, "--quick", "--json")
        found = json.loads(out)
        assert code == 0
        assert found["said"][-2].startswith("nothing that was tried was clearly better than the defaults")
        assert found["chosen"] == "proxima"
        settings = load_settings(environ={}, config_file=tmp_path / "tuned.yaml").settings
        assert settings.scheduler.kind == "proxima"

    def test_a_gain_that_is_not_there_again_is_not_written(self, tune, tmp_path):
        _, out, _, _ = tune(fast_with_few, "--quick", rounds=lambda _name: 100.0)
        assert "that may be chance, so what is written is the defaults of proxima serve (proxima)\n" in out
        assert "max_num_seqs" not in (tmp_path / "tuned.yaml").read_text()

    def test_few_rounds_are_said_to_be_too_few(self, tune):
        _, out, _, _ = tune(fast_with_few, "--quick", "--rounds", "2")
        assert "that may be chance" in out
        assert "fewer than 5 rounds can never be sure" in out

    def test_defaults_that_fail_are_not_started_again(self, tune, tmp_path):
        measured = []
        speed = lambda each: "it crashed" if each.scheduler == "proxima" else fast_with_few(each)  # noqa: E731
        code, out, _, _ = tune(speed, rounds=lambda name: measured.append(name) or (150.0 if "seqs" in name else 100.0))
        assert code == 0
        assert "the defaults of proxima serve (proxima) failed" in out
        assert "surely better than the baseline (native) under this load" in out
        assert set(measured) == {"native", "native --max-num-seqs=24"}
        settings = load_settings(environ={}, config_file=tmp_path / "tuned.yaml").settings
        assert (settings.scheduler.kind, settings.engine["max_num_seqs"]) == ("native", 24)

    def test_only_the_baseline_works(self, tune, tmp_path):
        code, out, _, _ = tune(lambda each: 100.0 if str(each) == "native" else "it crashed")
        assert code == 0
        assert "nothing that was tried was clearly better than the baseline (native)" in out
        assert load_settings(environ={}, config_file=tmp_path / "tuned.yaml").settings.scheduler.kind == "native"

    def test_the_record_holds_what_was_compared_last(self, tune, tmp_path):
        tune(fast_with_few, "--rounds", "2")
        tune(fast_with_few, "--rounds", "1")
        found = json.loads((tmp_path / "tuned.trials.json").read_text())
        assert {each["round"] for each in found["measurements"]} == {1}
        assert len(found["measurements"]) == 3
        tune(fast_with_few, "--quick", "--rounds", "1")
        found = json.loads((tmp_path / "tuned.trials.json").read_text())
        assert {each["arm"] for each in found["measurements"]} == {"proxima", "proxima --max-num-seqs=24"}

    def test_a_list_is_given_to_trials_as_serve_reads_it(self, tune):
        *_, machine = tune(
            fast_with_few, "--quick", "--rounds", "1", "--", "--trusted-proxies", "10.0.0.0/8,192.168.0.0/16"
        )
        assert machine.tried[0] == "native --trusted-proxies=10.0.0.0/8,192.168.0.0/16"

    def test_a_preset_goes_into_the_file(self, tune, tmp_path):
        tune(fast_with_few, "--quick", "--", "--preset", "cpu")
        assert load_settings(environ={}, config_file=tmp_path / "tuned.yaml").preset == "cpu"

    @pytest.mark.parametrize(
        ("words", "message"),
        [
            (["--rounds", "0"], "--rounds must be at least 1"),
            (["--preset", "overload"], "overload is relative to what a server sustains: give --rate"),
            (["--", "--max-num-seq", "8"], "did you mean --max-num-seqs?"),
            (["--", "--scheduler", "native"], "--scheduler is one of the things that tune tries"),
            (["--", "--config", "a.yaml"], "--config is not for tune"),
        ],
    )
    def test_wrong_usage(self, tune, words, message):
        code, _, err, _ = tune(lambda _: 1.0, *words)
        assert code == 2
        assert message in err
