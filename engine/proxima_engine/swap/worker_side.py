"""The half of the connector that lives beside the model runner: copies what the scheduler's half says.

A copy that fails costs its requests a recompute and never their text: what was not stored is never loaded, and a load
that failed is reported to vLLM, which computes those blocks again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

import torch

from proxima_engine.swap.copier import Copier, copier_for
from proxima_engine.swap.lanes import CopyTimes
from proxima_engine.swap.transfers import SwapReport, Transfer

logger = logging.getLogger(__name__)
MakeCopier = Callable[[Mapping[str, torch.Tensor], int, int], Copier]


class SwapWorkerSide:
    def __init__(self, num_blocks: int, host_blocks: int, make_copier: MakeCopier = copier_for) -> None:
        self._num_blocks = num_blocks
        self._host_blocks = host_blocks
        self._make_copier = make_copier
        self._copier: Copier | None = None
        self._bad_host_blocks: set[int] = set()
        """Hold nothing, because a store failed. The scheduler may not know yet."""
        self._step = 0
        self._failed: set[str] = set()
        self._failed_host_blocks: set[int] = set()
        """Since the last report."""
        self._loads_failed = False
        self._bad_device_blocks: set[int] = set()
        self._blocks_out = self._blocks_in = self._fetched = self._found_fetched = 0
        self._fetches_ahead = True

    def register(self, caches: Mapping[str, torch.Tensor]) -> None:
        try:
            self._copier = self._make_copier(caches, self._num_blocks, self._host_blocks)
        except Exception:  # boundary of --swap: whatever goes wrong costs a recompute, and never a worker
            logger.exception("KV of requests that yield cannot be kept on the host; they compute again")

    def store(self, transfers: Sequence[Transfer], step: int) -> None:
        self._step = step
        for transfer in transfers:
            if not transfer.host_blocks:
                continue
            if self._copied(transfer, to_host=True) is not None:
                self._bad_host_blocks.difference_update(transfer.host_blocks)
                self._blocks_out += len(transfer.host_blocks)
            else:
                self._bad_host_blocks.update(transfer.host_blocks)
                self._fail(transfer)

    def load(self, transfers: Sequence[Transfer]) -> None:
        for transfer in transfers:
            trusted = self._bad_host_blocks.isdisjoint(transfer.host_blocks)
            found_fetched = self._copied(transfer, to_host=False) if trusted else None
            if found_fetched is not None:
                self._blocks_in += len(transfer.host_blocks)
                self._found_fetched += found_fetched
            else:
                self._bad_device_blocks.update(transfer.device_blocks)
                self._loads_failed = True
                self._fail(transfer)

    def fetch_ahead(self, host_blocks: Sequence[int]) -> None:
        """Beside the forward pass; nobody waits for it, and nobody counts on it."""
        if not host_blocks or self._copier is None or not self._fetches_ahead:
            return
        try:
            self._fetched += self._copier.fetch_ahead(host_blocks)
        except Exception:  # the same boundary as below; what is not there is loaded the normal way
            self._fetches_ahead = False
            logger.exception("fetching KV from the host ahead failed; from now on it is loaded when it is needed")

    def take_bad_device_blocks(self) -> set[int]:
        """Blocks that a load of this step should have filled and did not."""
        bad, self._bad_device_blocks = self._bad_device_blocks, set()
        return bad

    def take_report(self) -> SwapReport | None:
        """What was done since the last call; None if nothing."""
        size, times = 0, CopyTimes(0.0, 0.0)
        if self._copier is not None:
            size, times = self._copier.bytes_per_block, self._copier.take_times()
        if not (self._blocks_out or self._blocks_in or self._fetched or self._failed or any(times)):
            return None
        report = SwapReport(
            self._step,
            frozenset(self._failed),
            frozenset(self._failed_host_blocks),
            self._loads_failed,
            self._blocks_out * size,
            self._blocks_in * size,
            times.held_s,
            times.under_way_s,
            self._fetched,
            self._found_fetched,
        )
        self._failed.clear()
        self._failed_host_blocks.clear()
        self._loads_failed = False
        self._blocks_out = self._blocks_in = self._fetched = self._found_fetched = 0
        return report

    def _fail(self, transfer: Transfer) -> None:
        self._failed.add(transfer.request_id)
        self._failed_host_blocks.update(transfer.host_blocks)

    def _copied(self, transfer: Transfer, *, to_host: bool) -> int | None:
        """How many blocks had been fetched ahead; None if the copy failed."""
        if self._copier is None:
            return None
        try:
            if not to_host:
                return self._copier.load(transfer.device_blocks, transfer.host_blocks)
            self._copier.store(transfer.device_blocks, transfer.host_blocks)
        except Exception:  # the same boundary; the scheduler is told, and nothing is loaded from there
            direction = "to" if to_host else "from"
            logger.exception(
                "copying KV of request %s %s the host failed; it computes again", transfer.request_id, direction
            )
            return None
        return 0
