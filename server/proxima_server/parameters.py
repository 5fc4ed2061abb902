"""Parameters of OpenAI's and Anthropic's APIs that vLLM does not know, or knows and does nothing with.

A parameter without effect is never swallowed silently. One that changes what the client gets back is refused; one that
does not is listed in a header, or refused too when `server.strict_params` is set.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pydantic import BaseModel

from proxima_config.hints import RequestClass
from proxima_server.errors import APIError, ErrorCode
from proxima_server.validation import wrong

Body = Mapping[str, Any]

SERVICE_TIER = "service_tier"
_TIERS: Mapping[str, RequestClass | None] = {
    # That of the API key.
    "auto": None,
    "default": RequestClass.DEFAULT,
    # Capacity bought in advance has no meaning here; OpenAI serves it as default where there is none.
    "scale": RequestClass.DEFAULT,
    "standard_only": RequestClass.DEFAULT,
    "flex": RequestClass.FLEX,
    "priority": RequestClass.PRIORITY,
}
_TIER_OF_CLASS = {RequestClass.FLEX: "flex", RequestClass.PRIORITY: "priority"}

_BOOKKEEPING: Mapping[str, tuple[type, str]] = {
    "user": (str, "a string"),
    "safety_identifier": (str, "a string"),
    "metadata": (dict, "an object"),
    "store": (bool, "a boolean"),
}
"""What OpenAI keeps with a request and its answer does not depend on: accepted, and nothing is kept."""


def _set(_value: Any, _body: Body) -> bool:
    return True


def _is_object(value: Any, _body: Body) -> bool:
    return isinstance(value, Mapping)


def _more_than_one(value: Any, body: Body) -> bool:
    return value not in (1, body.get("n", 1))


def _more_than_text(value: Any, _body: Body) -> bool:
    return bool(value != ["text"])


def _no_beams(_value: Any, body: Body) -> bool:
    return not body.get("use_beam_search")


_GUIDED = "Use `structured_outputs` or `response_format`"
_TOOLS = "Use `tools` and `tool_choice`"

_REFUSED: Mapping[str, tuple[Callable[[Any, Body], bool], str]] = {
    "best_of": (_more_than_one, "Ask for several answers with `n` and choose among them"),
    "logits_processors": (_set, "Who serves the model chooses them, with `--logits-processors`"),
    "functions": (_set, _TOOLS),
    "function_call": (_set, _TOOLS),
    "modalities": (_more_than_text, "Answers are text"),
    "audio": (_set, "Answers are text"),
    "web_search_options": (_set, "There is no web search here"),
    "conversation": (_set, "Nothing is stored here; send the whole conversation"),
    "prompt": (_is_object, "Nothing is stored here; send the prompt itself"),
    "mcp_servers": (_set, "There are no remote tools here"),
    "container": (_set, "There are no containers here"),
    **dict.fromkeys(
        ("guided_json", "guided_regex", "guided_choice", "guided_grammar", "guided_decoding_backend"), (_set, _GUIDED)
    ),
}
"""When a parameter asks for something that the client would miss in the answer, and what to do instead."""

_WITHOUT_EFFECT: Mapping[str, Callable[[Any, Body], bool]] = {
    "length_penalty": _no_beams,
    # Of vLLM's endpoints that render a prompt and compute nothing.
    "mm_payload": _set,
    "return_mm_kwargs": _set,
    "return_token_offsets": _set,
    "prompt_cache_key": _set,
}


OPTIONAL_PARAMS = frozenset(
    {*_WITHOUT_EFFECT, "prediction", "prompt_cache_retention", "verbosity", "context_management"}
)
"""Parameters without effect that clients are known to send: labels of the counter."""


def refuse_unsupported(body: Body) -> None:
    """Raises APIError unsupported_parameter, or invalid_value for bookkeeping of a wrong type."""
    for name, value in body.items():
        if value is None:
            continue
        applies, instead = _REFUSED.get(name, (None, ""))
        if applies is not None and applies(value, body):
            raise APIError(ErrorCode.UNSUPPORTED_PARAMETER, f"Unsupported parameter: '{name}'. {instead}.", param=name)
        kind, called = _BOOKKEEPING.get(name, (None, ""))
        if kind is not None and not isinstance(value, kind):
            raise APIError(ErrorCode.INVALID_VALUE, f"Invalid '{name}': it must be {called}", param=name)


def check_sequences(body: Body, most: int) -> None:
    """Raises APIError if `body` asks for more than `most` answers: its prompts times `n`."""
    choices, prompts = body.get("n"), body.get("prompt")
    choices = choices if isinstance(choices, int) else 1
    prompts = len(prompts) if isinstance(prompts, list) and prompts and not isinstance(prompts[0], int) else 1
    if choices * prompts > most:
        param = "n" if choices > 1 else "prompt"
        raise APIError(
            ErrorCode.INVALID_VALUE,
            f"Invalid '{param}': a request may ask for {most} answers, prompts times 'n' (got {choices * prompts})",
            param=param,
        )


def request_class(body: Body) -> RequestClass | None:
    """The class that the request's `service_tier` asks for; None for the key's own. Raises APIError."""
    tier = body.get(SERVICE_TIER)
    if tier is None:
        return None
    if not isinstance(tier, str) or tier not in _TIERS:
        raise wrong(SERVICE_TIER, f"it must be one of {', '.join(_TIERS)}", tier)
    return _TIERS[tier]


def tier_of(served: RequestClass) -> str:
    """The tier to report for a request that was scheduled in this class."""
    return _TIER_OF_CLASS.get(served, "default")


def without_effect(body: Body) -> list[str]:
    """Names of what `body` sets and vLLM knows, and does nothing with."""
    return [
        name
        for name, value in body.items()
        if value is not None and name in _WITHOUT_EFFECT and _WITHOUT_EFFECT[name](value, body)
    ]


def refused_ignored(name: str) -> APIError:
    """What a parameter without effect is answered when `server.strict_params` is set."""
    return APIError(ErrorCode.UNSUPPORTED_PARAMETER, f"Unsupported parameter: '{name}' has no effect here", param=name)


def unknown(body: Body, parsed: BaseModel, prefix: str = "") -> list[str]:
    """Paths of the fields that `body` sets and the model of `parsed` does not have, here and in the models inside."""
    fields = {field.alias or name: name for name, field in type(parsed).model_fields.items()}
    found: list[str] = []
    for key, value in body.items():
        name = fields.get(key, key if key in type(parsed).model_fields else None)
        if name is None:
            accepted = value is None or (not prefix and key in (*_BOOKKEEPING, *_REFUSED, *_WITHOUT_EFFECT))
            found += [] if accepted else [prefix + key]
        else:
            found += _unknown_inside(value, getattr(parsed, name, None), prefix + key)
    return found


def _unknown_inside(value: Any, parsed: Any, path: str) -> Iterable[str]:
    if isinstance(parsed, BaseModel) and isinstance(value, Mapping):
        return unknown(value, parsed, f"{path}.")
    if isinstance(parsed, list) and isinstance(value, list):
        pairs = enumerate(zip(value, parsed, strict=False))
        return [each for index, (raw, inner) in pairs for each in _unknown_inside(raw, inner, f"{path}[{index}]")]
    return ()
