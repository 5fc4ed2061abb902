"""A reasoning parser for `--reasoning-parser-plugin`: the first characters of what a model says are its thoughts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vllm.entrypoints.generate.base.protocol import DeltaMessage
from vllm.reasoning import ReasoningParser, ReasoningParserManager

THOUGHT_CHARS = 3


@ReasoningParserManager.register_module("first_characters")
class FirstCharacters(ReasoningParser):
    def is_reasoning_end(self, input_ids: Sequence[int]) -> bool:
        # It shows in the text alone; vLLM asks this before the first token, too.
        return False

    def extract_content_ids(self, input_ids: list[int]) -> list[int]:
        return input_ids

    def extract_reasoning(self, model_output: str, request: Any) -> tuple[str | None, str | None]:
        return model_output[:THOUGHT_CHARS], model_output[THOUGHT_CHARS:]

    def extract_reasoning_streaming(
        self, previous_text: str, current_text: str, delta_text: str, *_token_ids: Sequence[int]
    ) -> DeltaMessage:
        if len(current_text) <= THOUGHT_CHARS:
            return DeltaMessage(reasoning=delta_text)
        return DeltaMessage(content=delta_text)
