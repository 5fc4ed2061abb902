"""Work lists: which part of which request each program computes. Made on the device, without waiting for it.

All sizes that the host must know (grids, buffers) depend on numbers of rows and tokens only, never on lengths, so a
list can be refilled in place between replays of a CUDA graph.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

ITEM_FIELDS = 5  # row or -1, first query token, first key, end of keys, items of this row


@dataclass(frozen=True)
class DecodeWorkspace:
    """The decode work list of up to `len(rows)` rows, and the buffers for the parts of split rows."""

    items: torch.Tensor  # (ITEM_FIELDS, items) int32
    rows: torch.Tensor  # (rows,) int32: chosen row, or -1
    first_item: torch.Tensor  # (rows,) int32
    item_count: torch.Tensor  # (rows,) int32
    partial_out: torch.Tensor  # (items, query tokens, heads, head_size) float32
    partial_lse: torch.Tensor  # (items, query tokens, heads) float32
    target_items: int
    min_keys: int
    kv_tile: int

    @classmethod
    def allocate(
        cls,
        rows: int,
        max_query_len: int,
        heads: int,
        head_size: int,
        device: torch.device,
        *,
        target_items: int,
        min_keys: int,
        kv_tile: int,
    ) -> DecodeWorkspace:
        """Buffers for `rows` rows; at most rows + target_items items exist, whatever the lengths are."""
        items = rows + target_items

        def integers(*shape: int) -> torch.Tensor:
            return torch.full(shape, -1, dtype=torch.int32, device=device)

        return cls(
            items=integers(ITEM_FIELDS, items),
            rows=integers(rows),
            first_item=integers(rows),
            item_count=integers(rows),
            partial_out=torch.empty(items, max_query_len, heads, head_size, dtype=torch.float32, device=device),
            partial_lse=torch.empty(items, max_query_len, heads, dtype=torch.float32, device=device),
            target_items=target_items,
            min_keys=min_keys,
            kv_tile=kv_tile,
        )

    def fill(
        self,
        query_start_loc: torch.Tensor,
        seq_lens: torch.Tensor,
        *,
        rows: torch.Tensor | None = None,
        window: int | None = None,
    ) -> None:
        """Cut the keys of the chosen rows (all by default) into items of about equal size.

        The size is the sum of all lengths over `target_items`, at least `min_keys`: one very long request is cut into
        many items and short ones stay whole. A row's own items are of equal size, up to a tile.
        """
        device = seq_lens.device
        if rows is None:
            rows = torch.arange(seq_lens.shape[0], dtype=torch.int32, device=device)
        chosen = rows.shape[0]
        if chosen > self.rows.shape[0]:
            raise ValueError(f"rows has {chosen} entries: must be at most {self.rows.shape[0]}, as the workspace has")
        index = rows.long().clamp(min=0)
        query_len = query_start_loc[index + 1] - query_start_loc[index]
        length = torch.where((rows >= 0) & (query_len > 0), seq_lens[index], 0).long()
        begin = _first_key(length - query_len, window, self.kv_tile).clamp(max=length)
        keys = length - begin
        size = (-(-keys.sum() // self.target_items)).clamp(min=self.min_keys)
        count = -(-keys // size)
        end_item = count.cumsum(0)
        first_item = end_item - count
        tiles = -(-keys // self.kv_tile)
        step = -(-tiles // count.clamp(min=1)) * self.kv_tile

        item = torch.arange(self.items.shape[1], device=device)
        owner = torch.searchsorted(end_item, item, right=True).clamp(max=chosen - 1)
        part = item - first_item[owner]
        start = (begin[owner] + part * step[owner]).minimum(length[owner])
        exists = item < end_item[-1]
        self.items[0] = torch.where(exists, rows[owner], -1)
        self.items[1] = 0
        self.items[2] = start
        self.items[3] = (start + step[owner]).minimum(length[owner])
        self.items[4] = count[owner]
        self.rows.fill_(-1)
        self.rows[:chosen] = rows
        self.first_item[:chosen] = first_item
        self.item_count[:chosen] = count


def prefill_items(
    query_start_loc: torch.Tensor,
    seq_lens: torch.Tensor,
    rows: torch.Tensor,
    *,
    max_tokens: int,
    query_tile: int,
    kv_tile: int,
    window: int | None,
) -> torch.Tensor:
    """Items of `query_tile` query tokens each; `max_tokens` bounds the query tokens of the chosen rows."""
    index = rows.long().clamp(min=0)
    query_len = torch.where(rows >= 0, query_start_loc[index + 1] - query_start_loc[index], 0).long()
    length = seq_lens[index].long()
    count = -(-query_len // query_tile)
    end_item = count.cumsum(0)
    item = torch.arange(-(-max_tokens // query_tile) + rows.shape[0], device=seq_lens.device)
    owner = torch.searchsorted(end_item, item, right=True).clamp(max=rows.shape[0] - 1)
    first_query = (item - (end_item - count)[owner]) * query_tile
    context = (length - query_len)[owner]
    items = torch.empty(ITEM_FIELDS, item.shape[0], dtype=torch.int32, device=seq_lens.device)
    items[0] = torch.where(item < end_item[-1], rows[owner], -1)
    items[1] = first_query
    items[2] = _first_key(context + first_query, window, kv_tile)
    items[3] = (context + first_query + query_tile).minimum(length[owner])
    items[4] = 1
    return items


def _first_key(first_query_position: torch.Tensor, window: int | None, kv_tile: int) -> torch.Tensor:
    """First key that the window leaves, down to a tile."""
    if window is None:
        return torch.zeros_like(first_query_position)
    return (first_query_position - window + 1).clamp(min=0) // kv_tile * kv_tile
