"""Jit code: move blocks of many layers in one launch."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def move_blocks_kernel(
    source_table,  # (layers, 2) int64: address of block 0, bytes from block to block
    target_table,
    source_blocks,  # (moves,) int64; a negative one on either side skips the move
    target_blocks,
    WORDS: tl.constexpr,  # words of a block
    WORD_BYTES: tl.constexpr,
    TILE: tl.constexpr,
):
    """Program (move, layer, tile) copies one tile of one block, in words of 16 bytes where all addresses allow."""
    move = tl.program_id(0)
    layer = tl.program_id(1)
    source_block = tl.load(source_blocks + move)
    target_block = tl.load(target_blocks + move)
    if (source_block >= 0) & (target_block >= 0):
        source = tl.load(source_table + 2 * layer) + source_block * tl.load(source_table + 2 * layer + 1)
        target = tl.load(target_table + 2 * layer) + target_block * tl.load(target_table + 2 * layer + 1)
        if WORD_BYTES == 16:
            # Two words of eight bytes a thread: the compiler may use 16-byte accesses once it knows the alignment.
            source = tl.multiple_of(source, 16)
            target = tl.multiple_of(target, 16)
            offsets = tl.program_id(2) * TILE + tl.arange(0, TILE)
            inside = offsets < WORDS * 2
            words = tl.load(source.to(tl.pointer_type(tl.int64)) + offsets, mask=inside)
            tl.store(target.to(tl.pointer_type(tl.int64)) + offsets, words, mask=inside)
        else:
            offsets = tl.program_id(2) * TILE + tl.arange(0, TILE)
            inside = offsets < WORDS
            words = tl.load(source.to(tl.pointer_type(tl.int8)) + offsets, mask=inside)
            tl.store(target.to(tl.pointer_type(tl.int8)) + offsets, words, mask=inside)
