"""Attention kernels against float64 references, under Triton's interpreter or on a device."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from paged_cases import SENTINEL, assert_close, paged_case

from proxima_kernels import attention_launch
from proxima_kernels.attention_reference import paged_attention_reference, paged_write_decode_reference
from proxima_kernels.configs import AttentionConfig
from proxima_kernels.decode import decode_workspace, paged_decode_attention, paged_write_decode_attention
from proxima_kernels.launch import INTERPRETED
from proxima_kernels.prefill import paged_prefill_attention

DEVICE = "cuda" if torch.cuda.is_available() and not INTERPRETED else "cpu"
# Small, so that the interpreter is quick and a few keys are many items.
SMALL = AttentionConfig(kv_tile=32, lanes=16, min_keys=32, num_warps=4, num_stages=1)
HALF, BRAIN, FULL = torch.float16, torch.bfloat16, torch.float32
E4M3, E5M2, INT8 = torch.float8_e4m3fn, torch.float8_e5m2, torch.int8
# The interpreter takes a millisecond or more for each program: `make test` runs a cross-section, `make test-full` all.
FULL_RUN = {"marks": pytest.mark.slow}


def check_decode(case, *, rows=None, config=SMALL, max_query_len=None):
    """The kernel and the reference on the same rows; cells of no chosen row keep the sentinel in both."""
    chosen = None if rows is None else torch.tensor(rows, dtype=torch.int32, device=DEVICE)
    longest = int((case.query_start_loc[1:] - case.query_start_loc[:-1]).max())
    actual = paged_decode_attention(
        *case.arguments(),
        case.seq_lens,
        case.out(),
        case.options,
        query_start_loc=case.query_start_loc,
        max_query_len=max_query_len or max(1, longest),
        rows=chosen,
        config=config,
    )
    expected = paged_attention_reference(
        *case.arguments(), case.query_start_loc, case.seq_lens, case.out(), case.options, rows=rows
    )
    assert_close(actual, expected)


def check_prefill(case, *, rows=None, config=SMALL):
    chosen = None if rows is None else torch.tensor(rows, dtype=torch.int32, device=DEVICE)
    arguments = (*case.arguments(), case.query_start_loc, case.seq_lens)
    actual = paged_prefill_attention(*arguments, case.out(), case.options, rows=chosen, config=config)
    assert_close(actual, paged_attention_reference(*arguments, case.out(), case.options, rows=rows))


SHAPES = [
    pytest.param({"heads": 4, "kv_heads": 4, "head_size": 64}, id="mha", **FULL_RUN),
    pytest.param({"heads": 9, "kv_heads": 3, "head_size": 64}, id="odd_heads"),
    pytest.param({"heads": 7, "kv_heads": 1, "head_size": 128}, id="mqa"),
    pytest.param({"heads": 32, "kv_heads": 1, "head_size": 64}, id="group_above_lanes", **FULL_RUN),
    pytest.param({"head_size": 80}, id="head_80", **FULL_RUN),
    pytest.param({"head_size": 96, "block_size": 32}, id="head_96", **FULL_RUN),
    pytest.param({"head_size": 112, "block_size": 64}, id="head_112", **FULL_RUN),
    pytest.param({"head_size": 256, "block_size": 128}, id="head_256", **FULL_RUN),
    pytest.param({"vllm_layout": False, "block_size": 48}, id="slots_outside_heads"),
    pytest.param({"shared_prefix": True}, id="shared_blocks", **FULL_RUN),
]
TYPES = [
    pytest.param({"dtype": HALF}, id="fp16", **FULL_RUN),
    pytest.param({"dtype": BRAIN}, id="bf16"),
    pytest.param({"dtype": HALF, "cache_dtype": E4M3}, id="fp16_e4m3", **FULL_RUN),
    pytest.param({"dtype": BRAIN, "cache_dtype": E4M3, "per_head_scales": True}, id="bf16_e4m3_per_head"),
    pytest.param({"dtype": BRAIN, "cache_dtype": E5M2}, id="bf16_e5m2", **FULL_RUN),
    pytest.param({"dtype": FULL, "cache_dtype": E5M2, "per_head_scales": True}, id="fp32_e5m2_per_head", **FULL_RUN),
    pytest.param({"dtype": FULL, "cache_dtype": INT8}, id="fp32_int8"),
    pytest.param({"dtype": BRAIN, "cache_dtype": INT8, "per_head_scales": True}, id="bf16_int8_per_head", **FULL_RUN),
]
OPTIONS = [
    pytest.param({"sliding_window": 5}, id="window_in_a_tile"),
    pytest.param({"sliding_window": 70}, id="window_over_tiles", **FULL_RUN),
    pytest.param({"soft_cap": 1.5}, id="soft_cap", **FULL_RUN),
    pytest.param({"alibi": True}, id="alibi", **FULL_RUN),
    pytest.param({"alibi": True, "soft_cap": 2.0, "sliding_window": 33}, id="all"),
]
LENGTHS = [0, 1, 150, 33, 16]
ONE_EACH = [1] * 5


@pytest.mark.parametrize("shape", SHAPES)
def test_decode_shapes(shape):
    check_decode(paged_case(LENGTHS, ONE_EACH, device=DEVICE, **shape))


@pytest.mark.parametrize("types", TYPES)
def test_decode_types(types):
    check_decode(paged_case(LENGTHS, ONE_EACH, device=DEVICE, **types))


@pytest.mark.parametrize("options", OPTIONS)
def test_decode_options(options):
    check_decode(paged_case(LENGTHS, ONE_EACH, device=DEVICE, **options))


@pytest.mark.parametrize("query_len", [pytest.param(2, **FULL_RUN), 5, pytest.param(8, **FULL_RUN)])
def test_decode_with_speculated_tokens(query_len):
    lengths = [query_len, 100, 33, 64]
    check_decode(paged_case(lengths, [query_len, 1, query_len - 1, query_len], sliding_window=40, device=DEVICE))


def test_logits_whose_exponentials_overflow_are_merged():
    """Differences of 500 and more within a row, and between the parts of one."""
    case = paged_case([700, 40], [1, 1], device=DEVICE)
    case = replace(case, query=100 * case.query)
    arguments = (*case.arguments(), case.seq_lens, case.out(), case.options)
    actual = paged_decode_attention(*arguments, config=SMALL)
    expected = paged_attention_reference(
        *case.arguments(), case.query_start_loc, case.seq_lens, case.out(), case.options
    )
    torch.testing.assert_close(actual, expected, rtol=1e-2, atol=1e-2)


def test_decode_of_more_tokens_and_heads_than_a_tile_holds():
    """16 heads a KV head and 8 tokens are four tiles of 32 lanes; some rows leave the last ones empty."""
    check_decode(paged_case([8, 40, 33], [8, 5, 1], heads=16, kv_heads=1, dtype=HALF, device=DEVICE))


def test_decode_of_one_long_context_beside_short_ones():
    """Parts of the long one are merged; the short ones, and an empty one, are written at once."""
    case = paged_case([700, 1, 3, 0, 17, 2], [1] * 6, device=DEVICE)
    workspace = decode_workspace(6, 1, 4, 2, 64, FULL, torch.device(DEVICE), SMALL)
    workspace.fill(case.query_start_loc, case.seq_lens)
    assert workspace.item_count.tolist()[0] > 1
    assert workspace.item_count.tolist()[1:] == [1, 1, 0, 1, 1]
    check_decode(case)


@pytest.mark.parametrize(
    "rows", [pytest.param([2], **FULL_RUN), [4, 0, 2], [-1, 3, -1], pytest.param([4, 3, 2, 1, 0], **FULL_RUN), [-1]]
)
def test_decode_of_a_sub_batch_touches_only_its_rows(rows):
    """Other rows keep the sentinel, also where their memory is poisoned."""
    check_decode(paged_case(LENGTHS, ONE_EACH, device=DEVICE), rows=rows)


def test_padded_rows_and_tokens_are_left_alone():
    case = paged_case([5, 40, 0, 0], [1, 1, 0, 0], device=DEVICE)
    padded = torch.cat([case.query, torch.full_like(case.query, float("nan"))])
    out = torch.full_like(padded, SENTINEL)
    paged_decode_attention(
        padded, case.cache, case.block_table, case.seq_lens, out, case.options, query_start_loc=case.query_start_loc
    )
    assert bool((out[2:] == SENTINEL).all())
    assert not bool((out[:2] == SENTINEL).any())


def test_a_workspace_serves_step_after_step():
    workspace = decode_workspace(6, 8, 4, 2, 64, FULL, torch.device(DEVICE), SMALL)
    for step, lengths in enumerate([[200, 3, 9, 1, 40, 7], [1, 2], [4, 300, 0]]):
        case = paged_case(lengths, [1] * len(lengths), seed=step, device=DEVICE)
        workspace.fill(case.query_start_loc, case.seq_lens)
        arguments = (*case.arguments(), case.seq_lens, case.out(), case.options)
        actual = paged_decode_attention(*arguments, workspace=workspace, config=SMALL)
        expected = paged_attention_reference(
            *case.arguments(), case.query_start_loc, case.seq_lens, case.out(), case.options
        )
        assert_close(actual, expected)


def test_items_of_the_work_list_are_of_about_equal_size():
    """One context of 100 000 tokens beside 255 short ones: no program has much more than its share."""
    workspace = decode_workspace(256, 1, 8, 1, 64, FULL, torch.device("cpu"), AttentionConfig())
    lengths = torch.tensor([100_000] + [200] * 255, dtype=torch.int32)
    workspace.fill(torch.arange(257, dtype=torch.int32), lengths)
    row, _, first, end, count = workspace.items[:, workspace.items[0] >= 0]
    share = int(lengths.sum()) / workspace.target_items
    assert int((end - first).max()) <= share + workspace.kv_tile
    assert int((end - first).sum()) == int(lengths.sum())
    assert count[row == 0].tolist() == [int((row == 0).sum())] * int((row == 0).sum())


@pytest.mark.parametrize("shape", [SHAPES[1], SHAPES[3], SHAPES[4], SHAPES[7], SHAPES[8]])
def test_prefill_shapes(shape):
    check_prefill(paged_case([33, 80, 1, 20], [33, 20, 1, 0], device=DEVICE, **shape))


@pytest.mark.parametrize("types", [TYPES[0], TYPES[3], TYPES[6]])
def test_prefill_types(types):
    check_prefill(paged_case([33, 80, 1], [20, 17, 1], device=DEVICE, **types))


@pytest.mark.parametrize("options", OPTIONS)
def test_prefill_options(options):
    check_prefill(paged_case([33, 80, 1], [20, 17, 1], device=DEVICE, **options))


@pytest.mark.skipif(DEVICE == "cuda", reason="nothing is launched: once is enough")
def test_prompts_of_any_length_run_one_kernel(monkeypatch):
    """Each other set of constants would be compiled while a request waits."""
    launched = []

    class Launch:
        def __getitem__(self, grid):
            return lambda *_, **constants: launched.append(constants)

    monkeypatch.setattr(attention_launch, "attention_kernel", Launch())
    for new, rows in ((1, 1), (3, 2), (17, 5), (200, 1)):
        case = paged_case([new + 5] * rows, [new] * rows)
        paged_prefill_attention(*case.arguments(), case.query_start_loc, case.seq_lens, case.out(), case.options)
    assert len(launched) == 4
    assert all(constants == launched[0] for constants in launched)


def test_prefill_of_a_sub_batch():
    case = paged_case([33, 80, 1, 20], [33, 20, 1, 7], device=DEVICE)
    check_prefill(case, rows=[3, -1, 1])


def check_write_decode(case, *, rows=None, unstored=()):
    """Results, the cache's bytes and the sentinel, against the reference."""
    tokens, kv_heads = case.query.shape[0], case.cache.kv_heads
    random = torch.Generator().manual_seed(5)
    new = [torch.randn(tokens, kv_heads, case.cache.head_size, generator=random) for _ in range(2)]
    new = [values.to(case.query.dtype).to(DEVICE) for values in new]
    slots = slots_of(case)
    slots[list(unstored)] = -1
    chosen = None if rows is None else torch.tensor(rows, dtype=torch.int32, device=DEVICE)
    expected_case, longest = case.with_cache_copy(), int(case.query_start_loc.diff().max())
    actual = paged_write_decode_attention(
        case.query,
        *new,
        case.cache,
        case.block_table,
        case.seq_lens,
        slots,
        case.out(),
        case.options,
        query_start_loc=case.query_start_loc,
        max_query_len=max(1, longest),
        rows=chosen,
        config=SMALL,
    )
    expected = paged_write_decode_reference(
        case.query,
        *new,
        expected_case.cache,
        case.block_table,
        case.query_start_loc,
        case.seq_lens,
        slots,
        case.out(),
        case.options,
        rows=rows,
    )
    for stored, wanted in (
        (case.cache.key, expected_case.cache.key),
        (case.cache.value, expected_case.cache.value),
    ):
        torch.testing.assert_close(stored.float(), wanted.float(), rtol=0, atol=0, equal_nan=True)
    live = [token for token in range(tokens) if token not in unstored]
    assert_close(actual[live], expected[live])


def slots_of(case):
    """The slot of every query token, from lengths and block table."""
    slots = []
    starts, size = case.query_start_loc.tolist(), case.cache.block_size
    for row, length in enumerate(case.seq_lens.tolist()):
        tokens = starts[row + 1] - starts[row]
        positions = range(length - tokens, length)
        slots.extend(int(case.block_table[row, place // size]) * size + place % size for place in positions)
    return torch.tensor(slots, dtype=torch.int64, device=DEVICE)


@pytest.mark.parametrize("types", [pytest.param({}, id="fp32"), *TYPES])
def test_fused_write_and_decode(types):
    check_write_decode(paged_case([1, 150, 33, 16], [1] * 4, device=DEVICE, **types))


def test_fused_write_of_speculated_tokens_over_the_edge_of_an_item():
    check_write_decode(paged_case([99, 8, 35, 64], [8, 8, 5, 1], heads=9, kv_heads=3, device=DEVICE, sliding_window=40))


def test_fused_write_leaves_out_rows_and_slots_that_are_not_meant():
    check_write_decode(paged_case([20, 150, 33, 16], [1] * 4, device=DEVICE), rows=[3, -1, 1], unstored=[3])


@pytest.mark.slow
@settings(max_examples=20)
@given(data=st.data())
def test_any_batch(data):
    """Ragged lengths, odd shapes, sub-batches, every type and option, decode and prefill."""
    draw = data.draw
    count = draw(st.integers(1, 6), label="rows")
    decode = draw(st.booleans(), label="decode")
    query_lens = [draw(st.integers(0, 8 if decode else 40)) for _ in range(count)]
    query_lens[0] = max(1, query_lens[0])
    lengths = [n + draw(st.integers(0, 130)) if n else draw(st.integers(0, 40)) for n in query_lens]
    dtype = draw(st.sampled_from([HALF, BRAIN, FULL]))
    kv_heads = draw(st.sampled_from([1, 2, 3]))
    case = paged_case(
        lengths,
        query_lens,
        heads=kv_heads * draw(st.sampled_from([1, 3, 5])),
        kv_heads=kv_heads,
        head_size=draw(st.sampled_from([64, 72, 80, 96, 128, 256])),
        block_size=draw(st.sampled_from([16, 32, 48, 64, 128])),
        dtype=dtype,
        cache_dtype=draw(st.sampled_from([dtype, E4M3, E5M2, INT8])),
        per_head_scales=draw(st.booleans()),
        alibi=draw(st.booleans()),
        shared_prefix=draw(st.booleans()),
        vllm_layout=draw(st.booleans()),
        sliding_window=draw(st.none() | st.integers(1, 150)),
        soft_cap=draw(st.none() | st.floats(0.5, 50)),
        seed=draw(st.integers(0, 99)),
        device=DEVICE,
    )
    rows = draw(st.none() | st.permutations([*range(count), -1]).map(lambda order: order[: max(1, count - 1)]))
    check_decode(case, rows=rows) if decode else check_prefill(case, rows=rows)
