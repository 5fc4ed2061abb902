"""When an answer would be complete, from how long the engine's steps take and how long answers become."""

from __future__ import annotations

import pytest
from fake_gateway import snapshot

from proxima_server.door.answer_lengths import MIN_ANSWERS, AnswerLengths
from proxima_server.door.pace import FORGOTTEN_AFTER_S, Pace
from proxima_server.door.refusals import COMPLETE_BY
from proxima_server.door.size import size_of


def seen(pace: Pace, running: int, step_s: float, now_s: float = 0.0, rank: int = 0, ranks: int = 1) -> None:
    number = int(now_s * 1000) + running
    newest = {rank: snapshot(rank=rank, running=running, step_s=step_s, step=number)}
    pace.note({each: newest.get(each, snapshot(rank=each, running=0)) for each in range(ranks)}, now_s)


def test_only_what_has_been_seen_with_as_many_or_fewer_is_claimed():
    pace = Pace()
    assert pace.step_s(100, 0) is None
    seen(pace, 10, 0.05)
    assert pace.step_s(4, 0) is None
    assert pace.step_s(10, 0) == pace.step_s(500, 0) == 0.05
    seen(pace, 100, 0.2, 1)
    assert (pace.step_s(10, 1), pace.step_s(500, 1)) == (0.05, 0.2)


def test_an_idle_engine_shows_nothing_and_an_old_step_is_forgotten():
    pace = Pace()
    seen(pace, 0, 0.05)
    assert pace.step_s(1, 0) is None
    seen(pace, 1, 0.05)
    assert pace.step_s(1, FORGOTTEN_AFTER_S - 1) == 0.05
    assert pace.step_s(1, FORGOTTEN_AFTER_S) is None


def test_ranks_share_what_runs():
    pace = Pace()
    seen(pace, 8, 0.1, ranks=2)
    assert pace.step_s(8, 0) is None, "four on each"
    assert pace.step_s(16, 0) == 0.1


@pytest.mark.parametrize(
    ("body", "least"),
    [
        pytest.param({"max_tokens": 50}, 1, id="nothing_known"),
        pytest.param({"max_tokens": 50, "ignore_eos": True}, 50, id="endless"),
        pytest.param({"max_tokens": 50, "ignore_eos": True, "n": 3}, 50, id="of_each_choice"),
        pytest.param({"max_tokens": 50, "ignore_eos": True, "stop": ["."]}, 1, id="stops"),
        pytest.param({"min_tokens": 20}, 20, id="minimum"),
        pytest.param({"max_tokens": 5, "min_tokens": 20}, 5, id="minimum_above_the_cap"),
    ],
)
def test_what_a_request_says_about_its_answer(body, least):
    assert AnswerLengths().at_least(size_of({"prompt": "Hi", **body})) == least


def test_lengths_are_learned_from_answers_that_declared_as_much_and_three_quarters_were_longer():
    lengths = AnswerLengths()
    asked, other = size_of({"prompt": "Hi", "max_tokens": 200}), size_of({"prompt": "Hi"})
    for number in range(MIN_ANSWERS):
        assert lengths.at_least(asked) == 1
        lengths.learn(asked, 10 * number)
    assert lengths.at_least(asked) == 10 * MIN_ANSWERS // 4
    assert lengths.at_least(size_of({"prompt": "Hi", "max_tokens": 130})) == 10 * MIN_ANSWERS // 4
    assert lengths.at_least(other) == 1


@pytest.mark.parametrize("overload", [2, 4, 10])
@pytest.mark.parametrize(("fixed_s", "each_s"), [(0.002, 0.01), (0.05, 0.002)], ids=["cpu", "gpu"])
def test_the_first_wave_of_an_overload_is_served_in_time(fixed_s, each_s, overload):
    """An engine whose steps take longer with each that it computes. Of what it can finish in time at best, most is,
    from the first deadline on; of those let in, nearly all."""
    deadline_s, tokens, length_s = 6.0, 40, 12.0
    # So many at once are complete just in time.
    possible = int((deadline_s / tokens - fixed_s) / each_s)
    best_per_s = possible / deadline_s

    def run(*, forecast: bool) -> tuple[int, int]:
        pace = Pace()
        running: list[list[float]] = []  # arrival, tokens left
        now_s = told_s = due = 0.0
        met = missed = number = 0
        while now_s < length_s:
            step_s = fixed_s + each_s * len(running)
            now_s += max(step_s, 0.01)
            due += overload * best_per_s * max(step_s, 0.01)
            for request in running:
                request[1] -= 1
            for request in [each for each in running if each[1] <= 0 or now_s - each[0] >= deadline_s]:
                running.remove(request)
                met, missed = met + (request[1] <= 0), missed + (request[1] > 0)
            if now_s - told_s >= 0.1 and running:
                told_s, number = now_s, number + 1
                pace.note({0: snapshot(running=len(running), step_s=step_s, step=number)}, now_s)
            while due >= 1:
                due -= 1
                known_s = pace.step_s(len(running) + 1, now_s) if forecast and running else None
                if known_s is None or tokens * known_s <= COMPLETE_BY * deadline_s:
                    running.append([now_s, float(tokens)])
        return met, missed

    met, missed = run(forecast=True)
    assert met > 0.5 * best_per_s * (length_s - deadline_s)
    assert missed < 0.1 * met
    if overload >= 4:
        late_met, late_missed = run(forecast=False)
        assert late_met < late_missed / 4, "without a forecast nearly all are late"
