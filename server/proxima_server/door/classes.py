"""Which class a request is scheduled in, and how urgent classes are at the door."""

from __future__ import annotations

from collections.abc import Mapping

from proxima_config.api_keys import ApiKey
from proxima_config.hints import RequestClass
from proxima_server.door.auth import ANONYMOUS

LEVELS: Mapping[RequestClass, int] = {
    RequestClass.PRIORITY: 0,
    RequestClass.DEFAULT: 1,
    RequestClass.LONG: 1,
    RequestClass.FLEX: 2,
}
"""How urgent a class is at the door: 0 goes first, and is refused last."""
LAST_LEVEL = max(LEVELS.values())


def class_of(key: ApiKey, asked: RequestClass | None, prompt_tokens: int, long_prompt_tokens: int) -> RequestClass:
    """What the request asks for, but no more urgent than its key allows; else the key's. Long prompts of the default
    class have a class of their own, those of other classes stay where they are."""
    usual, most_urgent = key.request_class, key.request_class
    if key is ANONYMOUS:
        usual, most_urgent = RequestClass.DEFAULT, RequestClass.PRIORITY
    chosen = usual if asked is None else max(most_urgent, asked, key=LEVELS.__getitem__)
    is_long = 0 < long_prompt_tokens <= prompt_tokens
    return RequestClass.LONG if is_long and chosen is RequestClass.DEFAULT else chosen
