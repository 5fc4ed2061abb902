"""Logits processor that ends each answer at a length the scheduler does not know.

Loaded with ``--logits-processors proxima_engine.forced_length:ForcedLength``, into every arm of a comparison alike. It
runs in the worker, on logits that were scheduled without it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from vllm import SamplingParams
from vllm.config import VllmConfig
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor, process_dict_updates

from proxima_config.forced_length import FIELD


@dataclass(frozen=True, slots=True)
class _Forced:
    target_tokens: int
    output_ids: Sequence[int]
    """vLLM's own list, which grows as the request does."""
    end_id: int
    stop_ids: tuple[int, ...]
    """All tokens that would end the answer, ``end_id`` among them."""

    @property
    def is_last(self) -> bool:
        return len(self.output_ids) >= self.target_tokens - 1


class ForcedLength(LogitsProcessor):
    """Rules out the end of an answer before its target, and rules out everything else at it."""

    def __init__(self, vllm_config: VllmConfig, device: torch.device, is_pin_memory: bool) -> None:  # noqa: ARG002, FBT001  vLLM's signature
        self._device = device
        self._rows: dict[int, _Forced] = {}

    @classmethod
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        """Raises ValueError, which the caller of the API gets as status 400."""
        target = _target(sampling_params)
        if target is None:
            return
        if not isinstance(target, int) or isinstance(target, bool) or target < 1:
            raise ValueError(f"{FIELD} must be a positive whole number, not {target!r}")
        if sampling_params.ignore_eos:
            raise ValueError(f"{FIELD} ends an answer by its end-of-sequence token and so excludes ignore_eos")

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        process_dict_updates(self._rows, batch_update, _forced)

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """``logits``: (requests, vocabulary), changed in place."""
        ending = {row: forced for row, forced in self._rows.items() if forced.is_last}
        unfinished = [
            (row, stop) for row, forced in self._rows.items() if row not in ending for stop in forced.stop_ids
        ]
        if unfinished:
            logits[self._indices(unfinished)] = -torch.inf
        if ending:
            logits[torch.tensor(list(ending), device=self._device)] = -torch.inf
            logits[self._indices([(row, forced.end_id) for row, forced in ending.items()])] = 0.0
        return logits

    def _indices(self, cells: list[tuple[int, int]]) -> tuple[torch.Tensor, torch.Tensor]:
        """(row, token) pairs as one index, so that a batch costs three operations whatever its size."""
        rows, tokens = torch.tensor(cells, device=self._device).unbind(1)
        return rows, tokens


def _target(params: SamplingParams) -> Any:
    return (params.extra_args or {}).get(FIELD)


def _forced(params: SamplingParams, _prompt_ids: list[int] | None, output_ids: list[int]) -> _Forced | None:
    target, end_id = _target(params), params.eos_token_id
    # A model without an end-of-sequence token cannot be ended by one; its answers stop at `max_tokens`.
    if target is None or end_id is None:
        return None
    return _Forced(target, output_ids, end_id, tuple({end_id, *params.all_stop_token_ids}))
