"""Whatever vLLM raises or returns becomes an error of our taxonomy."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from http import HTTPStatus
from types import SimpleNamespace
from typing import Any

import pytest
import vllm.exceptions
from fastapi import Request
from jinja2 import TemplateError
from starlette.datastructures import State
from vllm.entrypoints.serve import create_error_response
from vllm.exceptions import VLLMClientError, VLLMError, VLLMServerError, VLLMValidationError
from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

from proxima_config.settings import ProximaSettings
from proxima_server.errors import APIError, ErrorCode
from proxima_server.vllm_errors import ErrorTranslator
from proxima_server.vllm_serving import VLLMServing

PATH = "/v1/completions"
ARGUMENTS: dict[type[VLLMError], tuple[Any, ...]] = {
    vllm.exceptions.GracefulHTTPError: ("busy", HTTPStatus.SERVICE_UNAVAILABLE),
    vllm.exceptions.LoRAAdapterNotFoundError: ("adapter", "/nowhere"),
    vllm.exceptions.QueueOverflowError: (),
    vllm.exceptions.MaxQueuedTokensError: (),
    vllm.exceptions.ProfilerAlreadyActiveError: (),
    EngineDeadError: (),
}


class _Handler:
    """Stands in for vLLM's completion handler."""

    def __init__(self, outcome: object) -> None:
        self._outcome = outcome

    async def create_completion(self, _parsed: object, _request: object) -> object:
        if isinstance(self._outcome, Exception):
            raise self._outcome
        return self._outcome


def serving(outcome: object, *, dead: bool = False) -> VLLMServing:
    runtime = SimpleNamespace(
        failure="the engine died: EngineCore was ended by SIGKILL" if dead else None,
        failed=asyncio.Event(),
        settings=ProximaSettings(),
    )
    handler = _Handler(outcome)
    state = State(
        {
            "openai_serving_completion": handler,
            "serving_tokenization": handler,
            "openai_serving_chat": handler,
            "openai_serving_responses": handler,
            "anthropic_serving_messages": handler,
            "engine_client": engine_client(dead),
        }
    )
    return VLLMServing(runtime, state)  # type: ignore[arg-type]


def engine_client(dead: bool) -> SimpleNamespace:
    config = SimpleNamespace(
        scheduler_config=SimpleNamespace(policy="fcfs"),
        kv_transfer_config=None,
        ec_transfer_config=None,
        model_config=SimpleNamespace(get_vocab_size=lambda: 290, is_multimodal_model=False),
    )
    return SimpleNamespace(errored=dead, vllm_config=config, tokenizer=SimpleNamespace(max_token_id=299))


def request() -> Request:
    return Request({"type": "http", "headers": [], "state": {"request_id": "req_1"}})


async def translated(outcome: object, *, dead: bool = False) -> APIError:
    with pytest.raises(APIError) as caught:
        await serving(outcome, dead=dead).answer(PATH, {"prompt": "a"}, request())
    return caught.value


def _family(base: type[VLLMError]) -> list[type[VLLMError]]:
    return [base, *(each for child in base.__subclasses__() for each in _family(child))]


# Not those of parts of vLLM that happen to be imported, whose constructors differ.
GENERAL = {
    kind for kind in _family(VLLMError) if kind.__module__ in (vllm.exceptions.__name__, EngineDeadError.__module__)
}


@pytest.mark.parametrize("kind", sorted(GENERAL, key=lambda kind: kind.__name__))
async def test_every_error_of_vllm_has_a_place(kind):
    error = await translated(kind(*ARGUMENTS.get(kind, ("what went wrong",))))
    if issubclass(kind, VLLMClientError):
        assert 400 <= error.status < 500
    if issubclass(kind, VLLMServerError):
        assert error.status >= 500
    assert error.message


@pytest.mark.parametrize(
    ("outcome", "code"),
    [
        pytest.param(ValueError("no such tool"), ErrorCode.INVALID_VALUE, id="value"),
        pytest.param(NotImplementedError("no beam search"), ErrorCode.NOT_SUPPORTED, id="not_implemented"),
        pytest.param(TemplateError("roles must alternate"), ErrorCode.INVALID_VALUE, id="chat_template"),
        pytest.param(EngineGenerateError(), ErrorCode.INTERNAL_ERROR, id="one_request_failed"),
        pytest.param(vllm.exceptions.QueueOverflowError(), ErrorCode.ENGINE_OVERLOADED, id="queue_is_full"),
        pytest.param(
            create_error_response("not here", status_code=HTTPStatus.NOT_FOUND, param="model"),
            ErrorCode.MODEL_NOT_FOUND,
            id="returned_instead_of_raised",
        ),
    ],
)
async def test_code(outcome, code):
    assert (await translated(outcome)).code is code


async def test_a_full_queue_says_when_to_retry():
    assert "Retry-After" in (await translated(vllm.exceptions.QueueOverflowError())).headers


async def test_a_dead_engine_is_named_as_the_cause():
    for outcome in (EngineDeadError(), EngineGenerateError()):
        error = await translated(outcome, dead=True)
        assert error.code is ErrorCode.ENGINE_UNAVAILABLE
        assert "SIGKILL" in error.message


async def test_the_parameter_is_said_once():
    error = await translated(VLLMValidationError("must be positive", parameter="top_k", value=-3))
    assert (error.message, error.param) == ("must be positive", "top_k")


@pytest.mark.parametrize(
    ("error", "body", "param"),
    [
        pytest.param(VLLMValidationError("long", parameter="input_text"), {"messages": []}, "messages", id="chat"),
        pytest.param(VLLMValidationError("long", parameter="input_text"), {"prompt": "a"}, "prompt", id="prompt"),
        pytest.param(
            ValueError("Token id 9 is out of vocabulary"), {"model": "m", "prompt": [9]}, "prompt", id="token"
        ),
        pytest.param(ValueError("m is not a multimodal model"), {"model": "m", "messages": []}, "messages", id="image"),
        pytest.param(
            VLLMValidationError("of", parameter="logprobs"),
            {"logprobs": True, "top_logprobs": 9},
            "top_logprobs",
            id="top_logprobs",
        ),
        pytest.param(
            VLLMValidationError("At most 0 audio(s) may be provided in one prompt.", parameter="audio"),
            {"messages": [{"content": [{"type": "text"}, {"type": "input_audio"}]}]},
            "messages[0].content[1]",
            id="sound",
        ),
    ],
)
def test_the_parameter_has_the_name_that_the_client_used(error, body, param):
    assert ErrorTranslator(lambda: None).exception(error, body).param == param


def test_logprobs_have_the_name_that_the_client_used():
    error = VLLMValidationError("Requested sample logprobs of 9, which is greater", parameter="logprobs", value=9)
    translated = ErrorTranslator(lambda: None).exception(error, {"logprobs": True, "top_logprobs": 9})
    assert translated.message == "Requested top_logprobs of 9, which is greater"


async def streamed(layer: VLLMServing) -> None:
    events = await layer.answer(PATH, {"prompt": "a", "stream": True}, request())
    async for _ in events:  # type: ignore[union-attr]
        pass


async def whole(layer: VLLMServing) -> None:
    await layer.answer(PATH, {"prompt": "a"}, request())


async def dies() -> AsyncGenerator[str, None]:
    yield 'data: {"error": {"message": "EngineCore died", "type": "InternalServerError", "code": 500}}\n\n'


@pytest.mark.parametrize(
    ("outcome", "answered"),
    [pytest.param(EngineDeadError(), whole, id="whole"), pytest.param(dies(), streamed, id="stream")],
)
async def test_the_cause_of_a_death_is_known_a_moment_after_the_death(outcome, answered):
    layer = serving(outcome, dead=True)
    layer._runtime.failure = None
    answering = asyncio.create_task(answered(layer))
    for _ in range(20):
        await asyncio.sleep(0)
    assert not answering.done()
    layer._runtime.failure = "the engine died: EngineCore was ended by SIGKILL"
    layer._runtime.failed.set()
    with pytest.raises(APIError, match="SIGKILL"):
        await answering


async def test_a_token_that_is_in_no_vocabulary_has_no_text():
    with pytest.raises(APIError) as caught:
        await serving(None).answer("/detokenize", {"tokens": [299, 300]}, request())
    assert (caught.value.code, caught.value.param) == (ErrorCode.INVALID_VALUE, "tokens[1]")
    assert "300 tokens" in caught.value.message
    assert "(got 300)" in caught.value.message


PICTURE, SOUND = {"type": "image_url", "image_url": {"url": "http://192.0.2.1/a.png"}}, {"type": "input_audio"}


@pytest.mark.parametrize(
    ("path", "part", "param"),
    [
        ("/v1/chat/completions", PICTURE, "messages[0].content[1]"),
        ("/v1/chat/completions", SOUND, "messages[0].content[1]"),
        ("/v1/chat/completions", {"type": "video_url", "video_url": {"url": "a"}}, "messages[0].content[1]"),
        ("/v1/chat/completions", {"type": "file", "file": {"file_id": "a"}}, "messages[0].content[1].type"),
        ("/v1/chat/completions", {"type": "video"}, "messages[0].content[1].type"),
        ("/tokenize", PICTURE, "messages[0].content[1]"),
        ("/v1/messages", {"type": "image", "source": {"type": "url", "url": "a"}}, "messages[0].content[1]"),
        ("/v1/messages/count_tokens", {"type": "image", "source": {}}, "messages[0].content[1]"),
        ("/v1/responses", {"type": "input_image", "image_url": "a", "detail": "auto"}, "input[0].content[1]"),
    ],
    ids=lambda value: value if isinstance(value, str) else value["type"],
)
async def test_a_part_that_a_model_of_text_cannot_take_is_named_before_vllm_is_asked(path, part, param):
    text = {"type": "input_text" if path == "/v1/responses" else "text", "text": "What is it?"}
    field = "input" if path == "/v1/responses" else "messages"
    body = {"model": "m", "max_tokens": 5, field: [{"role": "user", "content": [text, part]}]}
    with pytest.raises(APIError) as caught:
        await serving(AssertionError("asked")).answer(path, body, request())
    assert (caught.value.status, caught.value.code, caught.value.param) == (400, ErrorCode.INVALID_VALUE, param)
    # What it does take is told, and nothing else.
    assert ("'input_text'" in caught.value.message) == param.endswith(".type")
    assert "'image_url'" not in caught.value.message


async def test_a_bug_stays_a_bug():
    with pytest.raises(KeyError):
        await serving(KeyError("x")).answer(PATH, {"prompt": "a"}, request())


async def test_a_model_without_the_task_is_not_supported():
    with pytest.raises(APIError) as caught:
        await VLLMServing(None, State()).answer(PATH, {"prompt": "a"}, request())  # type: ignore[arg-type]
    assert caught.value.code is ErrorCode.NOT_SUPPORTED
