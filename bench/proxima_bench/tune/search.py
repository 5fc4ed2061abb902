"""Which configurations are tried, one dimension after the other, and which is kept."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pydantic import JsonValue

from proxima_bench.tune.configuration import SCHEDULER, SWAP, Configuration
from proxima_bench.tune.trials import Trial, Trials
from proxima_config.errors import ProximaError

GAIN = 1.03
"""A trial has to be so much better to be kept: one measurement of the same thing differs by that much from another."""
UTILISATION_STEP = 0.05
UTILISATION_MARGIN = 0.02
"""Below the highest share that worked, once a higher one failed: the next start may find a little less memory free."""
_HIGHEST_UTILISATION = 0.99
_MOST_STEPS = 6
UTILISATION, KV_BYTES = "engine.gpu_memory_utilization", "engine.kv_cache_memory_bytes"
_TOKENS, _SEQUENCES = "engine.max_num_batched_tokens", "engine.max_num_seqs"


@dataclass(frozen=True)
class Start:
    """Where a search begins: what vLLM does by itself, as far as multiples of it are tried."""

    max_num_batched_tokens: int
    max_num_seqs: int
    in_flight: int | None
    """Requests that the load has in flight at most; None for an open loop."""
    memory: str
    """`engine.gpu_memory_utilization`, or on a CPU `engine.kv_cache_memory_bytes`."""
    memory_value: float
    kv_dtypes: Sequence[str]
    compile: bool
    """Whether compiling is off here though it gives right answers: eager float32 on a CPU."""
    quick: bool


@dataclass(frozen=True)
class Found:
    baseline: Configuration
    """vLLM's own scheduler, and the flags that the user gave."""
    default: Configuration
    """What `proxima serve` does with these flags."""
    tuned: Configuration
    default_failed: bool = False
    """The gain is then that over the baseline."""


async def search(trials: Trials, start: Start, given: Mapping[str, JsonValue]) -> Found:
    """Raises ProximaError when the baseline itself fails."""
    baseline, default = (Configuration({SCHEDULER: kind, **given}) for kind in ("native", "proxima"))
    first = await trials.of(baseline)
    if first.failed:
        # The same command is to try it again, when what it lacked may be there.
        trials.forget(baseline)
        raise ProximaError(f"the baseline {baseline} failed ({first.status}): {first.reason}")
    default_failed = (await trials.of(default)).failed
    # Proxima is what serves by default: it has to lose to be left.
    best = baseline if default_failed else await _better(trials, default, [baseline])
    for name, values in _dimensions(start, first):
        if name not in given:
            best = await _better(trials, best, [best.changed(name, value) for value in values])
    if _SEQUENCES not in given:
        best = await _fewer_sequences(trials, best, start)
    if start.memory not in given:
        best = await _more_memory(trials, best, start)
    if SWAP not in given and best.scheduler == "proxima" and (await trials.of(best)).kv_full:
        best = await _better(trials, best, [best.changed(SWAP, value=True)])
    if "engine.kv_cache_dtype" not in given:
        best = await _better(trials, best, [best.changed("engine.kv_cache_dtype", each) for each in start.kv_dtypes])
    return Found(baseline, default, best, default_failed)


def _dimensions(start: Start, first: Trial) -> Iterator[tuple[str, list[JsonValue]]]:
    # Compiling takes a minute and more on a CPU.
    if start.compile and not start.quick:
        yield "engine.enforce_eager", [False]
    if not (start.quick and _fits_one_step(start, first)):
        factors: Sequence[float] = (2.0,) if start.quick else (1.5, 2.0, 0.5)
        yield _TOKENS, [int(start.max_num_batched_tokens * factor) for factor in factors]
    if not start.quick and (start.in_flight is None or start.in_flight > start.max_num_seqs):
        yield _SEQUENCES, [2 * start.max_num_seqs]


def _fits_one_step(start: Start, first: Trial) -> bool:
    """Whether all prompts that can be in flight make one step, so that a higher limit is none."""
    if start.in_flight is None or first.prompt_tokens is None:
        return False
    return start.in_flight * first.prompt_tokens <= start.max_num_batched_tokens


async def _fewer_sequences(trials: Trials, best: Configuration, start: Start) -> Configuration:
    """Smaller batches have shorter steps: down by halves of what runs at once, until that serves less."""
    count, last = min(start.max_num_seqs, start.in_flight or start.max_num_seqs), (await trials.of(best)).value
    candidates = []
    for _ in range(_MOST_STEPS):
        count = max(1, count // 2)
        candidates.append(best.changed(_SEQUENCES, count))
        value = (await trials.of(candidates[-1])).value
        if value < last or count == 1:
            break
        last = value
    return await _better(trials, best, candidates)


async def _better(trials: Trials, best: Configuration, candidates: Sequence[Configuration]) -> Configuration:
    """The best of them, where it gains enough."""
    value = (await trials.of(best)).value * GAIN
    for candidate in candidates:
        trial = await trials.of(candidate)
        if not trial.failed and trial.value > value:
            best, value = candidate, trial.value
    return best


async def _more_memory(trials: Trials, best: Configuration, start: Start) -> Configuration:
    """Up to where it fails, then back to what is safe; kept where it gains.

    A quick search leaves it where requests did not wait for the pool.
    """
    if start.quick and not (await trials.of(best)).kv_full:
        return best
    worked: list[Configuration] = []
    value, failed = start.memory_value, False
    for _ in range(2 if start.quick else _MOST_STEPS):
        value = value + UTILISATION_STEP if start.memory == UTILISATION else value * 2
        if start.memory == UTILISATION and value > _HIGHEST_UTILISATION:
            break
        candidate = best.changed(start.memory, _clean(value))
        if (await trials.of(candidate)).failed:
            failed = True
            break
        worked.append(candidate)
    if failed and worked and start.memory == UTILISATION:
        safe = _clean(value - UTILISATION_STEP - UTILISATION_MARGIN)
        worked[-1] = best.changed(start.memory, safe)
    return await _better(trials, best, worked)


def _clean(value: float) -> float | int:
    return int(value) if value > 1 else round(value, 3)
