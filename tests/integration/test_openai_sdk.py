"""What programs written for OpenAI's API do, with OpenAI's own client."""

from __future__ import annotations

import json

import httpx
import openai
import pytest

pytestmark = pytest.mark.engine

MODEL = "smollm2-135m"
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
ANSWER = "The capital of France is Paris."
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


def test_chat_is_right(sdk):
    completion = sdk.chat.completions.create(model=MODEL, messages=QUESTION, temperature=0)
    assert completion.choices[0].message.content == ANSWER
    assert completion.choices[0].finish_reason == "stop"
    assert completion.usage.total_tokens == completion.usage.prompt_tokens + completion.usage.completion_tokens


async def test_chat_is_right_asynchronously(gateway_url):
    transport = httpx.AsyncClient(trust_env=False, timeout=120)
    async with openai.AsyncOpenAI(
        base_url=f"{gateway_url}/v1", api_key="none", max_retries=0, http_client=transport
    ) as client:
        completion = await client.chat.completions.create(model=MODEL, messages=QUESTION, temperature=0)
        stream = await client.chat.completions.create(model=MODEL, messages=QUESTION, temperature=0, stream=True)
        parts = [chunk.choices[0].delta.content or "" async for chunk in stream]
    assert completion.choices[0].message.content == ANSWER
    assert "".join(parts) == ANSWER


def test_a_stream_is_the_same_text_with_one_finish_reason(sdk):
    with sdk.chat.completions.create(model=MODEL, messages=QUESTION, temperature=0, stream=True) as stream:
        chunks = list(stream)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == ANSWER
    reasons = [chunk.choices[0].finish_reason for chunk in chunks]
    assert reasons == [None] * (len(chunks) - 1) + ["stop"]
    assert all(chunk.usage is None for chunk in chunks)


def test_usage_comes_last_when_asked_for(sdk):
    with sdk.chat.completions.create(
        model=MODEL, messages=QUESTION, temperature=0, stream=True, stream_options={"include_usage": True}
    ) as stream:
        chunks = list(stream)
    assert [chunk.usage is not None for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens > 0


def test_logprobs(sdk):
    completion = sdk.chat.completions.create(
        model=MODEL, messages=QUESTION, temperature=0, logprobs=True, top_logprobs=3
    )
    tokens = completion.choices[0].logprobs.content
    assert "".join(token.token for token in tokens).startswith(ANSWER)
    for token in tokens:
        assert token.logprob <= 0
        assert token.logprob == max(other.logprob for other in token.top_logprobs)


def test_several_choices(sdk):
    completion = sdk.chat.completions.create(model=MODEL, messages=QUESTION, n=2, temperature=1.0, seed=3, max_tokens=8)
    assert [choice.index for choice in completion.choices] == [0, 1]


def test_several_choices_streamed(sdk):
    texts = {0: "", 1: ""}
    with sdk.completions.create(
        model=MODEL, prompt="The sea", n=2, temperature=1.0, seed=3, max_tokens=8, stream=True
    ) as stream:
        for chunk in stream:
            texts[chunk.choices[0].index] += chunk.choices[0].text
    whole = sdk.completions.create(model=MODEL, prompt="The sea", n=2, temperature=1.0, seed=3, max_tokens=8)
    assert texts == {choice.index: choice.text for choice in whole.choices}


def test_stop(sdk):
    completion = sdk.chat.completions.create(model=MODEL, messages=QUESTION, temperature=0, stop=[" France"])
    assert completion.choices[0].message.content == "The capital of"
    assert completion.choices[0].finish_reason == "stop"


def test_json_schema(sdk):
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}},
        "required": ["city"],
        "additionalProperties": False,
    }
    completion = sdk.chat.completions.create(
        model=MODEL,
        messages=QUESTION,
        temperature=0,
        max_tokens=60,
        response_format={"type": "json_schema", "json_schema": {"name": "capital", "schema": schema, "strict": True}},
    )
    assert json.loads(completion.choices[0].message.content) in ({"city": "Paris"}, {"city": "Rome"})


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_forced_tool_call(sdk, stream):
    choice = {"type": "function", "function": {"name": "get_weather"}}
    answer = sdk.chat.completions.create(
        model=MODEL,
        messages=QUESTION,
        temperature=0,
        max_tokens=60,
        tools=[WEATHER],
        tool_choice=choice,
        stream=stream,
    )
    if stream:
        with answer:
            calls = [call for chunk in answer for call in chunk.choices[0].delta.tool_calls or ()]
    else:
        calls = answer.choices[0].message.tool_calls
    assert [call.function.name for call in calls if call.function.name] == ["get_weather"]
    arguments = json.loads("".join(call.function.arguments or "" for call in calls))
    assert arguments in ({"city": "Paris"}, {"city": "Rome"})


def test_prompts_as_list_and_as_token_ids(sdk, http):
    prompts = ["The capital of France is", "Two plus two is"]
    several = sdk.completions.create(model=MODEL, prompt=prompts, temperature=0, max_tokens=4)
    assert [choice.index for choice in several.choices] == [0, 1]
    ids = [http.post("/tokenize", json={"prompt": prompt}).json()["tokens"] for prompt in prompts]
    same = sdk.completions.create(model=MODEL, prompt=ids, temperature=0, max_tokens=4)
    assert [choice.text for choice in same.choices] == [choice.text for choice in several.choices]
    one = sdk.completions.create(model=MODEL, prompt=ids[0], temperature=0, max_tokens=4)
    assert one.choices[0].text == several.choices[0].text


def test_logit_bias_and_penalties(sdk, http):
    paris = http.post("/tokenize", json={"prompt": " Paris"}).json()["tokens"]
    completion = sdk.chat.completions.create(
        model=MODEL,
        messages=QUESTION,
        temperature=0,
        max_tokens=16,
        logit_bias={str(token): -100 for token in paris},
        frequency_penalty=0.1,
        presence_penalty=0.1,
    )
    assert "Paris" not in completion.choices[0].message.content


def test_models(sdk):
    assert [model.id for model in sdk.models.list()] == [MODEL]
    assert sdk.models.retrieve(MODEL).id == MODEL
    with pytest.raises(openai.NotFoundError) as caught:
        sdk.models.retrieve("gpt-4")
    assert caught.value.code == "model_not_found"


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(
    ("changes", "error", "code", "param"),
    [
        pytest.param({"model": "gpt-4"}, openai.NotFoundError, "model_not_found", "model", id="model"),
        pytest.param({"temperature": -1}, openai.BadRequestError, "invalid_value", "temperature", id="bounds"),
        pytest.param({"logit_bias": {"999999": 1}}, openai.BadRequestError, "invalid_value", "logit_bias", id="engine"),
        pytest.param(
            {"messages": [{"role": "user", "content": "word " * 5000}]},
            openai.BadRequestError,
            "context_length_exceeded",
            "messages",
            id="too_long",
        ),
        pytest.param(
            {"max_tokens": 5000}, openai.BadRequestError, "context_length_exceeded", "max_tokens", id="too_much"
        ),
    ],
)
def test_refused_requests_say_why(sdk, stream, changes, error, code, param):
    with pytest.raises(error) as caught:
        sdk.chat.completions.create(**{"model": MODEL, "messages": QUESTION, "stream": stream, **changes})
    assert (caught.value.code, caught.value.param) == (code, param)
