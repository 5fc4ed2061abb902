"""The conversations of a load, drawn before anything is sent."""

from __future__ import annotations

import csv
import json
import math
import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import cycle, islice
from typing import Any

from proxima_bench.arrivals import Closed, Replay, arrivals_s
from proxima_bench.loads import Jsonl, Load, ShareGPT, Synthetic, Text, Trace
from proxima_bench.tokens import Count, Vocabulary, learn, text_length
from proxima_config import token_counts
from proxima_config.errors import UsageError
from proxima_config.traces import text_of

Message = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Turn:
    """What one request adds to its conversation."""

    messages: tuple[Message, ...]
    output_tokens: int
    """Wanted length of the answer."""
    leaves: bool = False
    """Its client is one of those that do not wait for the end."""


@dataclass(frozen=True, slots=True)
class Conversation:
    turns: tuple[Turn, ...]
    arrival_s: float | None = None
    """Seconds since the start of the measurement; None in a closed loop."""


@dataclass(frozen=True)
class Workload:
    warmup: tuple[Conversation, ...]
    measured: tuple[Conversation, ...]
    vocabulary: Vocabulary | None
    """What prompts were made of; None for prompts from a file."""


def at_rate(load: Load, rate_rps: float) -> Load:
    """The replay of a load's trace at a mean rate, for as long as the load says."""
    requests = load.requests
    if load.arrivals_s is not None:
        requests = max(requests, min(math.ceil(rate_rps * load.arrivals_s), _requests_recorded(load)))
    return load.model_copy(update={"shape": Replay(rate_rps=rate_rps), "requests": requests})


async def build(load: Load, count: Count) -> Workload:
    """All conversations of a load; the same for the same load and the same tokenizer.

    Raises UsageError for a file that cannot be read or is not what it should be.
    """
    prompts = load.prompts
    vocabulary = await learn(count, load.api) if isinstance(prompts, Synthetic | Trace) else None
    total = load.requests + load.warmup
    rng = random.Random(f"{load.seed}/prompts")
    if isinstance(prompts, Synthetic) and vocabulary:
        drawn = list(_synthetic(prompts, vocabulary, total, rng))
    else:
        known = await _from_source(load, count, vocabulary, rng)
        if isinstance(load.shape, Replay) and load.requests > len(known):
            raise UsageError(f"the trace has {len(known)} requests, fewer than the {load.requests} asked for")
        drawn = list(islice(cycle(known), total))
    measured = _with_clients_that_leave(load, _with_arrivals(load, drawn[: load.requests]))
    # The warm-up takes other prompts, so that it leaves nothing useful in a prefix cache.
    warmup = [replace(conversation, arrival_s=None) for conversation in drawn[load.requests :]]
    return Workload(tuple(warmup), tuple(measured), vocabulary)


async def _from_source(
    load: Load, count: Count, vocabulary: Vocabulary | None, rng: random.Random
) -> list[Conversation]:
    prompts = load.prompts
    if isinstance(prompts, Text):
        draw = token_counts.parse(prompts.output_tokens)
        return [_single(prompts.text, draw(rng)) for _ in range(load.requests + load.warmup)]
    if isinstance(prompts, ShareGPT):
        found = [each async for each in _sharegpt(prompts, count, load.requests + load.warmup)]
    elif isinstance(prompts, Jsonl):
        found = list(_jsonl(prompts, rng))
    elif isinstance(prompts, Trace) and vocabulary:
        found = list(islice(_trace(prompts, vocabulary, rng), load.requests + load.warmup))
    else:
        found = []
    if not found:
        raise UsageError(f"no usable prompts in {getattr(prompts, 'path', prompts.kind)}")
    return found


def _requests_recorded(load: Load) -> int:
    """What there is to replay; 0 where a load makes its own requests."""
    if not isinstance(load.prompts, Trace | Jsonl):
        return 0
    lines = sum(bool(line.strip()) for line in text_of(load.prompts.path).splitlines())
    return lines - isinstance(load.prompts, Trace)


def _synthetic(prompts: Synthetic, vocabulary: Vocabulary, total: int, rng: random.Random) -> Iterator[Conversation]:
    inputs, outputs = token_counts.parse(prompts.input_tokens), token_counts.parse(prompts.output_tokens)
    beginnings = [vocabulary.text(prompts.prefix_tokens, rng) + " " for _ in range(prompts.prefixes)]
    for index in range(total):
        turns = []
        for number in range(prompts.turns):
            shared = prompts.prefix_tokens and number == 0
            text = (beginnings[index % prompts.prefixes] if shared else "") + vocabulary.message(inputs(rng), rng)
            turns.append(Turn((_user(text),), outputs(rng)))
        yield Conversation(tuple(turns))


def _trace(prompts: Trace, vocabulary: Vocabulary, rng: random.Random) -> Iterator[Conversation]:
    for number, row in enumerate(csv.DictReader(text_of(prompts.path).splitlines()), start=2):
        try:
            tokens = max(1, round(int(row["input_tokens"]) * prompts.input_scale))
            answer = max(1, round(int(row["output_tokens"]) * prompts.output_scale))
            arrival = row.get("arrival_s")
            arrival_s = float(arrival) if arrival else None
        except (KeyError, TypeError, ValueError) as error:
            raise UsageError(
                f"{prompts.path}:{number}: not a trace; it must have whole numbers in the columns input_tokens and "
                "output_tokens, and seconds in arrival_s if it has that column"
            ) from error
        yield _single(vocabulary.message(tokens, rng), answer, arrival_s)


async def _sharegpt(prompts: ShareGPT, count: Count, wanted: int) -> Any:
    """Yields at most ``wanted`` conversations that begin with a person."""
    found = 0
    for entry in _json(prompts.path, text_of(prompts.path)):
        turns = []
        for asked, answered in _exchanges(entry)[: prompts.turns]:
            if await text_length(count, asked) > prompts.max_input_tokens:
                break
            turns.append(Turn((_user(asked),), await text_length(count, answered)))
        if turns:
            yield Conversation(tuple(turns))
            found += 1
        if found == wanted:
            return


def _exchanges(entry: Any) -> list[tuple[str, str]]:
    """Pairs of what a person said and what the model answered, until the order breaks."""
    said = entry.get("conversations", []) if isinstance(entry, dict) else []
    pairs = []
    for asked, answered in zip(said[::2], said[1::2], strict=False):
        speakers = asked.get("from"), answered.get("from")
        if speakers not in {("human", "gpt"), ("user", "assistant")} or not (asked["value"] and answered["value"]):
            break
        pairs.append((asked["value"], answered["value"]))
    return pairs


def _jsonl(prompts: Jsonl, rng: random.Random) -> Iterator[Conversation]:
    draw = token_counts.parse(prompts.output_tokens)
    for number, line in enumerate(text_of(prompts.path).splitlines(), start=1):
        if not line.strip():
            continue
        place = f"{prompts.path}:{number}"
        entry = _json(place, line)
        if not isinstance(entry, dict) or ("prompt" in entry) == ("messages" in entry):
            raise UsageError(f"{place}: must be an object with either `prompt` or `messages`")
        messages = entry.get("messages") or [_user(entry.get("prompt"))]
        length = entry.get("output_tokens", draw(rng))
        arrival_s = entry.get("arrival_s")
        if not isinstance(length, int) or length < 1 or not isinstance(arrival_s, int | float | None):
            raise UsageError(f"{place}: output_tokens must be a whole number from 1 up, arrival_s a number")
        yield Conversation((Turn(tuple(messages), length),), arrival_s)


def _with_arrivals(load: Load, conversations: list[Conversation]) -> list[Conversation]:
    if isinstance(load.shape, Closed):
        return [replace(conversation, arrival_s=None) for conversation in conversations]
    recorded = [conversation.arrival_s for conversation in conversations]
    times = arrivals_s(load.shape, recorded, random.Random(f"{load.seed}/arrivals"))
    return [replace(each, arrival_s=time_s) for each, time_s in zip(conversations, times, strict=True)]


def _with_clients_that_leave(load: Load, conversations: Iterable[Conversation]) -> list[Conversation]:
    rng = random.Random(f"{load.seed}/leaving")
    return [
        replace(each, turns=tuple(replace(turn, leaves=rng.random() < load.cancel_share) for turn in each.turns))
        for each in conversations
    ]


def _single(text: str, output_tokens: int, arrival_s: float | None = None) -> Conversation:
    return Conversation((Turn((_user(text),), output_tokens),), arrival_s)


def _user(text: Any) -> Message:
    return {"role": "user", "content": text}


def _json(place: object, text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise UsageError(f"{place}: not valid JSON ({error.msg}, line {error.lineno})") from error
