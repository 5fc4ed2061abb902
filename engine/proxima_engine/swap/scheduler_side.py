"""The half of the connector that lives beside vLLM's scheduler: decides what is copied, in the order of the steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from proxima_engine.swap.evictions import EvictionWatch
from proxima_engine.swap.fetch_ahead import FetchAhead
from proxima_engine.swap.ledger import SwapLedger
from proxima_engine.swap.store_ahead import StoreAhead, Victim
from proxima_engine.swap.transfers import SwapMetadata, SwapReport, Transfer

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from vllm.v1.core.block_pool import BlockPool
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.request import Request

    from proxima_engine.policy.pace import StepTime


LEAST_ROOM = 0.1
"""Share of host memory below which nobody should count on it."""
STAKE = 0.01
"""Part of the time that may go into storing prefixes which nobody has asked for yet."""
TRIED = 32
"""Where to compute again takes less time, one yield in so many is kept all the same: what copies take would never be
measured again otherwise."""
PREFIXES = "(evicted prefixes)"
AHEAD = "(likely to yield)"
"""Stand for the request of a transfer that belongs to none, or to several."""


@dataclass(slots=True)
class SwapCounters:
    """Since the start."""

    blocks_out: int = 0
    blocks_in: int = 0
    bytes_out: int = 0
    bytes_in: int = 0
    copy_s: float = 0.0
    """For which copies held the worker up."""
    under_way_s: float = 0.0
    """For which blocks were on their way, beside forward passes or not."""
    tokens_kept: int = 0
    """Tokens that did not have to be computed again when a request resumed."""
    prefix_tokens: int = 0
    """Tokens of prompts that were not computed, because an earlier request had the same beginning."""
    no_room: int = 0
    """Yields whose KV was dropped, because host memory was full."""
    failed: int = 0
    """Requests of which a copy failed, and which compute again for that."""
    blocks_fetched: int = 0
    """Carried over the bus ahead of a resumption."""
    blocks_found_fetched: int = 0
    """Of those that were loaded, how many had been."""


@dataclass(frozen=True, slots=True)
class _Offer:
    """What was last said to be on the host."""

    request_id: str
    first_token: int
    end_token: int


class SwapSchedulerSide:
    def __init__(
        self, host_blocks: int, block_size: int, fetch_ahead: FetchAhead | None = None, *, prefixes: bool = True
    ) -> None:
        self.ledger = SwapLedger(host_blocks, block_size)
        self.store_ahead = StoreAhead(self.ledger)
        self._fetch_ahead = fetch_ahead or FetchAhead(blocks_per_step=0, steps=0)
        self._next_to_resume: str | None = None
        self._block_size = block_size
        self.counters = SwapCounters()
        self._copies_failed = False
        """Whether any copy ever did."""
        self._wants_prefixes = prefixes and host_blocks > 0
        self._pays = self._store_prefixes = True
        self._dropped = 0
        """Yields whose KV was not kept, because it takes less time to compute it again."""
        self._computed_tokens = 0
        self._stored_prefix_tokens = 0
        self._stores: list[Transfer] = []
        self._loads: list[Transfer] = []
        self._offer: _Offer | None = None
        self._evictions: EvictionWatch | None = None

    def keep_prefixes_of(self, pool: BlockPool) -> None:
        """Keep what the prefix cache of the device gives up."""
        if self._wants_prefixes:
            self._evictions = EvictionWatch(pool, self._block_size)

    @property
    def keeps_prefixes(self) -> bool:
        return self._evictions is not None

    @property
    def is_idle(self) -> bool:
        """Whether the coming step has nothing to copy yet."""
        return not self._stores and not self._loads and self.store_ahead.is_idle

    def token_s(self) -> float | None:
        """Seconds for which the KV of a token holds the worker up on its way to the host and back, as measured so far;
        0 before anything was. None while the host has next to no room, or where no copy has ever succeeded, so that who
        yields computes again."""
        ledger, counters = self.ledger, self.counters
        if ledger.blocks_in_reach < LEAST_ROOM * ledger.host_blocks or not ledger.host_blocks:
            return None
        if self._copies_failed and not counters.bytes_out:
            return None
        copied = (counters.blocks_out + counters.blocks_in) * self._block_size
        return 2 * counters.copy_s / copied if copied else 0.0

    def weigh(self, step_time: StepTime, step_tokens: int) -> None:
        """Whether it pays to keep KV: where it takes less time to copy that of a token to the host and back than to
        compute it again. What is not measured yet is tried. Prefixes are stored as long as they are asked for, too.
        ``step_tokens``: of the step that was scheduled just now."""
        self._computed_tokens += step_tokens
        both_ways_s, fitted = self.token_s(), step_time.fit()
        self._pays = self._store_prefixes = both_ways_s is not None
        if both_ways_s is None or fitted is None:
            return
        base_s, token_s = fitted
        step_s = base_s + token_s * step_tokens
        self.store_ahead.weigh(self._way_s(), token_s, step_s, self._computed_tokens)
        # In tokens that could have been computed in that time.
        cost = both_ways_s / 2 / token_s
        self._pays = 2 * cost < 1
        gained = self.counters.prefix_tokens * (1 - cost)
        at_stake = self._stored_prefix_tokens * cost - gained
        self._store_prefixes = self._pays and at_stake <= STAKE * self._computed_tokens

    def _way_s(self) -> float:
        """Seconds for which the KV of a token is on its way between device and host, held up by that or not."""
        counters = self.counters
        carried = counters.blocks_out + counters.blocks_in + counters.blocks_fetched - counters.blocks_found_fetched
        return counters.under_way_s / (carried * self._block_size) if carried > 0 else 0.0

    def yields(self, request: Request, device_blocks: list[int]) -> bool:
        """Keep the KV of a request that is about to lose its blocks; False if it is lost.

        To be called in the step in which the blocks are given to somebody else at the earliest, before its metadata is
        made: the worker copies before it writes anything of that step.
        """
        if not self.ledger.host_blocks:
            # Nothing is kept here, which is no lack of room.
            return False
        request_id = request.request_id
        self.store_ahead.drop(request_id)
        self._fetch_ahead.drop(request_id)
        # Beyond what is known of the text there may be KV of tokens that a step in flight has not brought yet.
        tokens = min(request.num_computed_tokens, request.num_tokens)
        if request.resumable or not tokens:
            # The text of a session may be cut back and go on differently.
            return False
        if not self._is_worth_keeping():
            self.ledger.forget(request_id)
            return False
        copy = self.ledger.save(request_id, tokens, request.block_hashes, device_blocks)
        if copy is None:
            self.counters.no_room += 1
            return False
        self.counters.blocks_out += len(copy.host_blocks)
        self._stores.append(Transfer(request_id, copy.device_blocks, copy.host_blocks))
        return True

    def _is_worth_keeping(self) -> bool:
        # None where the host has next to no room, which does not concern those who find some.
        if self._pays or self.token_s() is None:
            return True
        self._dropped += 1
        return self._dropped % TRIED == 0

    def expect(self, likely_victims: Iterator[tuple[Request, list[int]]], waiting: Iterable[str]) -> None:
        """What the coming steps are likely to bring. ``likely_victims`` run, in blocks of the device that hold their
        text from the first token on; ``waiting``: who resumes next comes first."""
        self.store_ahead.choose(self._as_victim(*each) for each in likely_victims)
        self._next_to_resume = next((each for each in waiting if self.ledger.saved_tokens(each)), None)

    def _as_victim(self, request: Request, device_blocks: list[int]) -> Victim:
        # The text of a session may be cut back and go on differently.
        computed = 0 if request.resumable else request.num_computed_tokens - request.num_in_flight_tokens
        full = max(0, min(computed, request.num_tokens)) // self._block_size
        return Victim(request.request_id, request.block_hashes[:full], device_blocks)

    def tokens_beyond(self, request: Request, local_tokens: int) -> int:
        """Tokens that can be loaded for a request whose first ``local_tokens`` are still on the device.

        At least one is left to compute: its result is the next token.
        """
        most: int = request.num_tokens - 1
        saved = self.ledger.saved_tokens(request.request_id)
        end = min(saved, most)
        if not saved and self.keeps_prefixes and self._pays:
            beyond = slice(local_tokens // self._block_size, most // self._block_size)
            end = local_tokens + self.ledger.kept_tokens(request.block_hashes[beyond])
        self._offer = _Offer(request.request_id, local_tokens, end)
        return max(0, end - local_tokens)

    def allocated(self, request: Request, blocks: KVCacheBlocks, external_tokens: int) -> None:
        """vLLM has given a request blocks, and starts it in this step."""
        offer, self._offer = self._offer, None
        first = end = 0
        if external_tokens and offer is not None and offer.request_id == request.request_id:
            first, end = offer.first_token, offer.end_token
        device_blocks = blocks.get_block_ids()[0]
        copy = self.ledger.resume(request.request_id, request.block_hashes, first, end, device_blocks)
        if copy is None:
            return
        self.counters.blocks_in += len(copy.host_blocks)
        if request.num_preemptions:
            self.counters.tokens_kept += external_tokens
        else:
            self.counters.prefix_tokens += external_tokens
        self._loads.append(Transfer(request.request_id, copy.device_blocks, copy.host_blocks))

    def take_metadata(self, output: SchedulerOutput) -> SwapMetadata:
        """What this step copies. Called once for each step."""
        written = set(output.new_block_ids_to_zero or ())
        written.update(copy.dst_block_id for copy in output.kv_cache_block_copies or ())
        self._drop_overwritten(written)
        self._store_ahead_of_yields(written)
        self._keep_evicted(written)
        metadata = SwapMetadata(self.ledger.step, tuple(self._stores), tuple(self._loads), self._fetches())
        self._stores.clear()
        self._loads.clear()
        self.ledger.step_ends()
        return metadata

    def take_report(self, report: SwapReport) -> None:
        counters, ledger = self.counters, self.ledger
        counters.bytes_out += report.bytes_out
        counters.bytes_in += report.bytes_in
        counters.copy_s += report.copy_s
        counters.under_way_s += report.under_way_s
        counters.blocks_fetched += report.blocks_fetched
        counters.blocks_found_fetched += report.blocks_found_fetched
        counters.failed += len(report.failed - {AHEAD, PREFIXES})
        self._copies_failed = self._copies_failed or bool(report.failed)
        for request_id in report.failed:
            ledger.forget(request_id)
        ledger.distrust(report.bad_host_blocks)
        if report.failed:
            # Of those who are likely to yield, what was found there may be there no more.
            self.store_ahead.forget_all()
        if report.loads_failed:
            # What was computed on blocks that were not filled may have been stored since.
            ledger.distrust(ledger.filled_after(report.step))

    def ended(self, request_id: str) -> None:
        """The request has ended, or computes again."""
        self.ledger.forget(request_id)
        self.store_ahead.drop(request_id)

    def forget_all(self) -> None:
        """KV of before is void, as when the weights change."""
        self.ledger.forget_all()
        self.store_ahead.forget_all()
        self._stores.clear()
        self.forget_evicted()

    def forget_evicted(self) -> None:
        """What the prefix cache has just given up is not to be trusted."""
        if self._evictions is not None:
            self._evictions.take()

    def disown(self, blocks: set[int]) -> None:
        """These are about to leave the prefix cache because they were never filled; nobody may keep them."""
        if self._evictions is not None:
            self._evictions.overlook(blocks)

    def _fetches(self) -> tuple[int, ...]:
        following, self._next_to_resume = self._next_to_resume, None
        if following is None:
            return ()
        return self._fetch_ahead.of_step(following, self.ledger.saved_blocks(following))

    def _store_ahead_of_yields(self, written: set[int]) -> None:
        copy = self.store_ahead.take(written)
        if copy is not None:
            self.counters.blocks_out += len(copy.host_blocks)
            self._stores.append(Transfer(AHEAD, copy.device_blocks, copy.host_blocks))

    def _keep_evicted(self, written: set[int]) -> None:
        if self._evictions is None:
            return
        device: list[int] = []
        host: list[int] = []
        # The device gives up the end of a text before its beginning, and what was used last comes last.
        for key, block in reversed(self._evictions.take()):
            if not self._store_prefixes or block in written:
                continue
            place = self.ledger.keep(key)
            if place is not None:
                device.append(block)
                host.append(place)
        if host:
            self.counters.blocks_out += len(host)
            self._stored_prefix_tokens += len(host) * self._block_size
            self._stores.append(Transfer(PREFIXES, tuple(device), tuple(host)))

    def _drop_overwritten(self, written: set[int]) -> None:
        """Keep nothing of blocks that vLLM clears or copies over at the start of the step: its newer model runner does
        that before connectors have their turn. No attention layer of the kind that is swapped needs it."""
        if not written:
            return
        for store in self._stores:
            if not written.isdisjoint(store.device_blocks):
                self.ledger.forget(store.request_id)
                self.ledger.distrust(store.host_blocks)
        self._stores = [store for store in self._stores if written.isdisjoint(store.device_blocks)]
