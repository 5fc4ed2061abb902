"""Arithmetic of block demand."""

from __future__ import annotations

from collections.abc import Iterable

from proxima_engine.policy.view import RunningRequest


def blocks_for(tokens: int, block_size: int) -> int:
    """Blocks that hold a number of tokens."""
    return -(-tokens // block_size)


def growth_blocks(tokens_before: int, tokens_after: int, block_size: int) -> int:
    """Blocks a request takes on top when its sequence grows from one length to another."""
    return max(0, blocks_for(tokens_after, block_size) - blocks_for(tokens_before, block_size))


def tokens_until_free(running: Iterable[RunningRequest], missing_blocks: int) -> int | None:
    """Steps until the running requests have freed a number of blocks, if each runs to its declared cap.

    This is the shadow time of EASY backfilling (Lifka 1995) with the declared cap as run-time estimate; one token a
    step. Returns None when even all of them together hold fewer blocks.
    """
    for request in sorted(running, key=lambda request: request.remaining_tokens):
        missing_blocks -= request.blocks
        if missing_blocks <= 0:
            return request.remaining_tokens
    return None
