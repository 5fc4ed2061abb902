"""The half of the connector that lives beside vLLM's scheduler: decides what is copied, in the order of the steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from proxima_engine.swap.ledger import SwapLedger
from proxima_engine.swap.transfers import SwapMetadata, SwapReport, Transfer

if TYPE_CHECKING:
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.request import Request


LEAST_ROOM = 0.1
"""Share of host memory below which nobody should count on it."""


@dataclass(slots=True)
class SwapCounters:
    """Since the start."""

    blocks_out: int = 0
    blocks_in: int = 0
    bytes_out: int = 0
    bytes_in: int = 0
    copy_s: float = 0.0
    tokens_kept: int = 0
    """Tokens that did not have to be computed again."""
    no_room: int = 0
    """Yields whose KV was dropped, because host memory was full."""
    failed: int = 0
    """Requests of which a copy failed, and which compute again for that."""


class SwapSchedulerSide:
    def __init__(self, host_blocks: int, block_size: int) -> None:
        self.ledger = SwapLedger(host_blocks, block_size)
        self._block_size = block_size
        self.counters = SwapCounters()
        self._stores: list[Transfer] = []
        self._loads: list[Transfer] = []

    @property
    def is_idle(self) -> bool:
        """Whether the coming step has nothing to copy yet."""
        return not self._stores and not self._loads

    def token_s(self) -> float | None:
        """Seconds for which the KV of a token holds the worker up on its way to the host and back, as measured so far;
        0 before anything was. None while the host has next to no room, or where no copy has ever succeeded, so that who
        yields computes again."""
        ledger, counters = self.ledger, self.counters
        if ledger.blocks_in_reach < LEAST_ROOM * ledger.blocks_total or not ledger.blocks_total:
            return None
        if counters.failed and not counters.bytes_out:
            return None
        copied = (counters.blocks_out + counters.blocks_in) * self._block_size
        return 2 * counters.copy_s / copied if copied else 0.0

    def yields(self, request: Request, device_blocks: list[int]) -> bool:
        """Keep the KV of a request that is about to lose its blocks; False if it is lost.

        To be called in the step in which the blocks are given to somebody else at the earliest, before its metadata is
        made: the worker copies before it writes anything of that step.
        """
        if not self.ledger.blocks_total:
            # Nothing is kept here, which is no lack of room.
            return False
        request_id = request.request_id
        # Beyond what is known of the text there may be KV of tokens that a step in flight has not brought yet.
        tokens = min(request.num_computed_tokens, request.num_tokens)
        if request.resumable or not tokens:
            # The text of a session may be cut back and go on differently.
            return False
        copy = self.ledger.save(request_id, tokens, device_blocks)
        if copy is None:
            self.counters.no_room += 1
            return False
        self.counters.blocks_out += len(copy.host_blocks)
        self._stores.append(Transfer(request_id, copy.device_blocks, copy.host_blocks))
        return True

    def tokens_beyond(self, request: Request, local_tokens: int) -> int:
        """Tokens that can be loaded for a request whose first ``local_tokens`` are still on the device.

        At least one is left to compute: its result is the next token.
        """
        return max(0, self._end_token(request) - local_tokens)

    def allocated(self, request: Request, blocks: KVCacheBlocks, external_tokens: int) -> None:
        """vLLM has given a request blocks, and starts it in this step."""
        end = self._end_token(request)
        device_blocks = blocks.get_block_ids()[0]
        copy = self.ledger.resume(request.request_id, end - external_tokens, end, device_blocks)
        if copy is not None:
            self.counters.blocks_in += len(copy.host_blocks)
            self.counters.tokens_kept += external_tokens
            self._loads.append(Transfer(request.request_id, copy.device_blocks, copy.host_blocks))

    def take_metadata(self, output: SchedulerOutput) -> SwapMetadata:
        """What this step copies. Called once for each step."""
        self._drop_overwritten(output)
        metadata = SwapMetadata(tuple(self._stores), tuple(self._loads))
        self._stores.clear()
        self._loads.clear()
        return metadata

    def take_report(self, report: SwapReport) -> None:
        counters = self.counters
        counters.bytes_out += report.bytes_out
        counters.bytes_in += report.bytes_in
        counters.copy_s += report.copy_s
        counters.failed += len(report.failed)
        for request_id in report.failed:
            self.ledger.forget(request_id)

    def ended(self, request_id: str) -> None:
        self.ledger.forget(request_id)

    def forget_all(self) -> None:
        """KV of before is void, as when the weights change."""
        self.ledger.forget_all()
        self._stores.clear()

    def _end_token(self, request: Request) -> int:
        most: int = request.num_tokens - 1
        return min(self.ledger.saved_tokens(request.request_id), most)

    def _drop_overwritten(self, output: SchedulerOutput) -> None:
        """Keep nothing of blocks that vLLM clears or copies over at the start of the step: its newer model runner does
        that before connectors have their turn. No attention layer of the kind that is swapped needs it."""
        written = set(output.new_block_ids_to_zero or ())
        written.update(copy.dst_block_id for copy in output.kv_cache_block_copies or ())
        if not written:
            return
        for store in self._stores:
            if not written.isdisjoint(store.device_blocks):
                self.ledger.forget(store.request_id)
        self._stores = [store for store in self._stores if written.isdisjoint(store.device_blocks)]
