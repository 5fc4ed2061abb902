"""clients.py CLIENT BASE_URL MODEL: what each client makes of a chat, a stream and a forced tool call, as JSON."""

from __future__ import annotations

import json
import sys
from typing import Any

CLIENT, BASE_URL, MODEL = sys.argv[1:]
QUESTION = "What is the capital of France?"
MESSAGES = [{"role": "user", "content": QUESTION}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
FORCED = {"type": "function", "function": {"name": "get_weather"}}


def calls(message: Any) -> list[Any]:
    return [[call.function.name, json.loads(call.function.arguments)] for call in message.tool_calls]


def run_openai() -> dict[str, Any]:
    import openai

    client = openai.OpenAI(base_url=BASE_URL, api_key="none", max_retries=0)
    ask = client.chat.completions.create
    chat = ask(model=MODEL, messages=MESSAGES, temperature=0)
    stream = ask(model=MODEL, messages=MESSAGES, temperature=0, stream=True)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
    called = ask(model=MODEL, messages=MESSAGES, temperature=0, tools=[WEATHER], tool_choice=FORCED, max_tokens=60)
    response = client.responses.create(model=MODEL, input=QUESTION, temperature=0)
    events = client.responses.create(model=MODEL, input=QUESTION, temperature=0, stream=True)
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    try:
        ask(model="gpt-4", messages=MESSAGES)
    except openai.APIStatusError as error:
        refused = [error.status_code, error.code]
    return {
        "chat": chat.choices[0].message.content,
        "stream": text,
        "tool": calls(called.choices[0].message),
        "responses": response.output_text,
        "responses_stream": "".join(deltas),
        "error": refused,
    }


def run_langchain() -> dict[str, Any]:
    from langchain_openai import ChatOpenAI

    chat = ChatOpenAI(base_url=BASE_URL, api_key="none", model=MODEL, temperature=0, max_retries=0)
    called = chat.bind_tools([WEATHER], tool_choice="get_weather").invoke(QUESTION, max_tokens=60)
    return {
        "chat": chat.invoke(QUESTION).content,
        "stream": "".join(chunk.content for chunk in chat.stream(QUESTION)),
        "tool": [[call["name"], call["args"]] for call in called.tool_calls],
        "error": error_of(lambda: ChatOpenAI(base_url=BASE_URL, api_key="none", model="gpt-4").invoke(QUESTION)),
    }


def run_litellm() -> dict[str, Any]:
    import litellm

    def ask(model: str = MODEL, **options: Any) -> Any:
        return litellm.completion(
            model=f"openai/{model}", api_base=BASE_URL, api_key="none", messages=MESSAGES, temperature=0, **options
        )

    called = ask(tools=[WEATHER], tool_choice="required", max_tokens=60)
    return {
        "chat": ask().choices[0].message.content,
        "stream": "".join(chunk.choices[0].delta.content or "" for chunk in ask(stream=True)),
        "tool": calls(called.choices[0].message),
        "error": error_of(lambda: ask("gpt-4")),
    }


def error_of(ask: Any) -> list[Any]:
    try:
        ask()
    except Exception as error:  # noqa: BLE001 - each client has its own kinds
        return [error.status_code, getattr(error, "code", None)]
    return []


if __name__ == "__main__":
    answers = {"openai": run_openai, "langchain": run_langchain, "litellm": run_litellm}[CLIENT]()
    print(json.dumps(answers))  # noqa: T201
