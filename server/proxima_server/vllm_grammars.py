"""Grammars that clients send, tried before the engine gets them.

vLLM checks that a grammar can be read, and finds only after the first step that no text fits it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import xgrammar
from vllm.exceptions import VLLMValidationError
from vllm.sampling_params import SamplingParams, StructuredOutputsParams
from vllm.v1.structured_output.backend_xgrammar import validate_xgrammar_grammar

from proxima_server.errors import APIError, ErrorCode

_GRAMMAR = "structured_outputs.grammar"
_STOP = 256
_MAX_TRIED_CHARS = 4_096
"""Trying takes a tenth of a second at most for so many, during which nobody else is served."""


def can_constrain(schema: Mapping[str, Any]) -> bool:
    """Whether text can be constrained to the JSON Schema `schema`."""
    try:
        validate_xgrammar_grammar(SamplingParams(structured_outputs=StructuredOutputsParams(json=dict(schema))))
    except (VLLMValidationError, ValueError, TypeError):
        return False
    return True


def check_grammar(body: Mapping[str, Any]) -> None:
    """Raises APIError for a grammar with which no text can begin."""
    asked = body.get("structured_outputs")
    grammar = asked.get("grammar") if isinstance(asked, Mapping) else None
    if not isinstance(grammar, str) or not 0 < len(grammar) <= _MAX_TRIED_CHARS:
        return
    if not _can_begin(grammar):
        raise APIError(ErrorCode.INVALID_VALUE, f"Invalid '{_GRAMMAR}': no text fits it", param=_GRAMMAR)


def _can_begin(grammar: str) -> bool:
    try:
        matcher = xgrammar.GrammarMatcher(_compiler().compile_grammar(xgrammar.Grammar.from_ebnf(grammar)))
    except RuntimeError:
        # Not readable as this kind of grammar: vLLM says why, or reads it as another.
        return True
    bitmask = xgrammar.allocate_token_bitmask(1, _STOP + 1)
    matcher.fill_next_token_bitmask(bitmask)
    return bool(bitmask.any())


@cache
def _compiler() -> xgrammar.GrammarCompiler:
    """For a vocabulary of single bytes: what no byte can begin, no model's tokens can."""
    vocabulary = [bytes([byte]) for byte in range(_STOP)] + [b"</s>"]
    info = xgrammar.TokenizerInfo(vocabulary, vocab_type=xgrammar.VocabType.RAW, stop_token_ids=[_STOP])
    return xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)
