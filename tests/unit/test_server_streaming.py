"""vLLM's streams end one way when all is well, and another when it is not."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from proxima_server.errors import APIError, ErrorCode
from proxima_server.streaming import message_events, openai_events, response_events

DONE = "data: [DONE]\n\n"


async def source(events: Iterable[Any]) -> AsyncGenerator[Any, None]:
    for event in events:
        yield event


async def translate(error: Any) -> APIError:
    return APIError(ErrorCode.INVALID_VALUE, f"translated {error['code']}")


def event(**fields: Any) -> str:
    return f"data: {json.dumps(fields, separators=(',', ':'))}\n\n"


def finished(reason: str) -> str:
    return event(choices=[{"index": 0, "delta": {}, "finish_reason": reason}])


async def collect(events: AsyncGenerator[str, None]) -> list[str]:
    return [each async for each in events]


async def test_events_pass_as_they_are():
    text = event(choices=[{"delta": {"content": '"finish_reason":"abort" and "reasoning":'}}])
    events = [text, finished("stop"), DONE]
    assert await collect(openai_events(source(events), translate, None)) == events


async def test_an_error_ends_the_stream():
    events = openai_events(source(["data: 1", event(error={"code": 400}), DONE]), translate, None)
    assert await anext(events) == "data: 1"
    with pytest.raises(APIError, match="translated 400"):
        await anext(events)
    assert await collect(events) == []


async def test_a_request_the_engine_gave_up_is_an_error():
    with pytest.raises(APIError) as failed:
        await collect(openai_events(source([finished("abort"), DONE]), translate, None))
    assert failed.value.code is ErrorCode.ENGINE_UNAVAILABLE


async def test_finish_reasons_are_those_clients_know():
    events = await collect(openai_events(source([finished("repetition"), DONE]), translate, None))
    assert events == [finished("stop"), DONE]


async def test_reasoning_has_both_names():
    (mirrored,) = await collect(
        openai_events(source([event(choices=[{"delta": {"reasoning": "hm ü"}}])]), translate, None)
    )
    delta = json.loads(mirrored.removeprefix("data: "))["choices"][0]["delta"]
    assert delta == {"reasoning": "hm ü", "reasoning_content": "hm ü"}


async def test_the_tier_is_in_each_event_but_the_last():
    events = await collect(openai_events(source([event(id="a"), DONE]), translate, "flex"))
    assert events == [event(service_tier="flex", id="a"), DONE]


async def test_the_source_is_closed_with_the_stream():
    closed = []

    async def endless() -> AsyncGenerator[str, None]:
        try:
            while True:
                yield "data: x"
        finally:
            closed.append(True)

    events = openai_events(endless(), translate, None)
    await anext(events)
    await events.aclose()
    assert closed == [True]


class _Typed(SimpleNamespace):
    def model_dump_json(self, by_alias: bool) -> str:
        return json.dumps({"type": self.type})

    def model_dump(self) -> dict[str, Any]:
        return {"error": {"code": 500}}


async def test_responses_are_framed_by_type():
    events = await collect(response_events(source([_Typed(type="response.created")]), translate))
    assert events == ['event: response.created\ndata: {"type": "response.created"}\n\n']
    with pytest.raises(APIError, match="translated 500"):
        await collect(response_events(source([_Typed(type="error")]), translate))


async def test_messages_fail_as_their_chat_did():
    with pytest.raises(APIError, match="translated 500"):
        await collect(message_events(source(["event: a\ndata: {}\n\n", "event: error\ndata: {}\n\n"]), translate))
