"""Who is hit when a load fails."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set


def readers_of(bad_blocks: Set[int], tables: Mapping[str, Sequence[int]]) -> set[str]:
    """Requests that read blocks with wrong KV, or what others have computed on such blocks.

    ``tables``: the blocks of each request, in the order of its text. All after a bad one were computed on it.
    """
    bad, readers = set(bad_blocks), set[str]()
    while hit := [each for each, blocks in tables.items() if each not in readers and not bad.isdisjoint(blocks)]:
        for request_id in hit:
            blocks = tables[request_id]
            first = min(blocks.index(block) for block in bad.intersection(blocks))
            bad.update(blocks[first:])
        readers.update(hit)
    return readers
