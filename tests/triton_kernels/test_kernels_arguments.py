"""Wrong arguments are refused with a message that names the argument, before anything is launched."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from paged_cases import paged_case

from proxima_kernels.attention_options import AttentionOptions
from proxima_kernels.block_copy import BlockLayers, Staging, copy_blocks, gather_blocks, scatter_blocks
from proxima_kernels.cache import PagedCache
from proxima_kernels.configs import AttentionConfig, config_for, read_configs, rule_of_thumb
from proxima_kernels.decode import decode_workspace, paged_decode_attention
from proxima_kernels.kv_write import write_kv
from proxima_kernels.prefill import paged_prefill_attention

CASE = paged_case([3, 20], [1, 1])


def decode(**changes):
    case = replace(CASE, **{name: value for name, value in changes.items() if hasattr(CASE, name)})
    extra = {name: value for name, value in changes.items() if not hasattr(CASE, name) and name != "result"}
    paged_decode_attention(*case.arguments(), case.seq_lens, changes.get("result", CASE.out()), case.options, **extra)


@pytest.mark.parametrize(
    ("changes", "kind", "message"),
    [
        pytest.param({"query": CASE.query.double()}, TypeError, "query is float64", id="query_dtype"),
        pytest.param({"query": CASE.query[..., :32]}, ValueError, r"query has shape \(2, 4, 32\)", id="query_shape"),
        pytest.param({"query": CASE.query[:, :3]}, ValueError, "out has shape", id="out_shape"),
        pytest.param(
            {"query": CASE.query[:, :3], "result": CASE.out()[:, :3]}, ValueError, "query has 3 heads", id="heads"
        ),
        pytest.param({"query": CASE.query.half(), "result": CASE.out()}, TypeError, "key_cache is float32", id="cache"),
        pytest.param({"seq_lens": CASE.seq_lens.float()}, TypeError, "seq_lens is float32", id="seq_lens_dtype"),
        pytest.param({"seq_lens": CASE.seq_lens[None]}, ValueError, "seq_lens has shape", id="seq_lens_shape"),
        pytest.param({"block_table": CASE.block_table[:1]}, ValueError, "block_table has shape", id="block_table"),
        pytest.param({"block_table": CASE.block_table.long()}, TypeError, "block_table is int64", id="table_dtype"),
        pytest.param({"rows": torch.tensor([0])}, TypeError, "rows is int64", id="rows"),
        pytest.param({"max_query_len": 9}, ValueError, "max_query_len is 9: must be 1 to 8", id="query_len"),
        pytest.param(
            {"options": AttentionOptions(1.0, alibi_slopes=torch.ones(3))}, ValueError, "alibi_slopes has", id="alibi"
        ),
        pytest.param({"block_table": CASE.block_table.to("meta")}, ValueError, "block_table is on meta", id="device"),
    ],
)
def test_decode_refuses(changes, kind, message):
    with pytest.raises(kind, match=message):
        decode(**changes)


def test_prefill_refuses():
    starts = torch.tensor([0, 1])
    with pytest.raises(ValueError, match="query_start_loc has shape"):
        paged_prefill_attention(*CASE.arguments(), starts, CASE.seq_lens, CASE.out(), CASE.options)


def test_decode_refuses_a_workspace_that_is_too_small():
    workspace = decode_workspace(2, 1, 4, 2, 64, torch.float32, torch.device("cpu"))
    with pytest.raises(ValueError, match="max_query_len is 2: must be at most 1, as the workspace has"):
        decode(workspace=workspace, max_query_len=2)
    with pytest.raises(ValueError, match="rows has 3 entries: must be at most 2"):
        workspace.fill(torch.arange(4), torch.ones(3, dtype=torch.int32))


@pytest.mark.parametrize(
    ("shape", "dtype", "message"),
    [
        ((2, 2, 16, 64), torch.float64, "key_cache is float64"),
        ((2, 2, 24, 64), torch.float16, "key_cache has block_size 24"),
        ((2, 2, 256, 64), torch.float16, "key_cache has block_size 256"),
        ((2, 2, 16, 264), torch.float16, "key_cache has head_size 264"),
        ((2, 16, 64), torch.float16, "key_cache has shape"),
    ],
)
def test_cache_refuses(shape, dtype, message):
    with pytest.raises((TypeError, ValueError), match=message):
        PagedCache(torch.zeros(shape, dtype=dtype), torch.zeros(shape, dtype=dtype))


def test_cache_refuses_scales_that_do_not_fit():
    cache = torch.zeros(2, 3, 16, 64, dtype=torch.int8)
    with pytest.raises(ValueError, match="value_scale has 2 values: must be 1 or 3"):
        PagedCache(cache, cache, torch.ones(1), torch.ones(2))
    with pytest.raises(TypeError, match="key_scale is float16"):
        PagedCache(cache, cache, torch.ones(3).half())


def test_write_refuses():
    key = torch.zeros(2, 2, 64)
    with pytest.raises(ValueError, match=r"value has shape \(1, 2, 64\)"):
        write_kv(key, key[:1], CASE.cache, torch.zeros(2, dtype=torch.int64))
    with pytest.raises(ValueError, match="slot_mapping has 3 entries"):
        write_kv(key, key, CASE.cache, torch.zeros(3, dtype=torch.int64))
    with pytest.raises(TypeError, match=r"key is torch\.float16: must be torch\.float32"):
        write_kv(key.half(), key.half(), CASE.cache, torch.zeros(2, dtype=torch.int64))


def test_copies_refuse():
    layers = BlockLayers([torch.zeros(4, 8) for _ in range(2)])
    for sources, targets, message in (
        ([0], [1, 2], "target_blocks has 2 entries"),
        ([0, 4], [1, 2], "source_blocks has block 4: must be below 4"),
        ([0, 1], [2, 2], "target_blocks names a block twice: 2"),
        ([0, 1], [1, 2], "target_blocks has block 1, which is in source_blocks too"),
    ):
        with pytest.raises(ValueError, match=message):
            copy_blocks(layers, layers, sources, targets)
    with pytest.raises(ValueError, match="target has 1 layers: must have 2"):
        copy_blocks(layers, BlockLayers([torch.zeros(4, 8)]), [0], [1])
    with pytest.raises(ValueError, match="must lie together"):
        BlockLayers([torch.zeros(4, 8, 4)[:, :, :2]])
    with pytest.raises(ValueError, match="layers is empty"):
        BlockLayers([])


def test_staging_refuses():
    layers = BlockLayers([torch.zeros(4, 8) for _ in range(2)])
    with pytest.raises(ValueError, match=r"buffer has shape \(1, 2, 8\): must be \(blocks, 2, 32\)"):
        Staging(layers, torch.zeros(1, 2, 8, dtype=torch.uint8))
    staging = Staging(layers, torch.zeros(layers.staging_shape(2), dtype=torch.uint8))
    with pytest.raises(ValueError, match="blocks has 3 entries: must be at most the 2 of staging"):
        gather_blocks(layers, [0, 1, 2], staging)
    with pytest.raises(ValueError, match="target_blocks names a block twice: 1"):
        scatter_blocks(staging, layers, [1, 1])


@pytest.mark.parametrize(
    ("wrong", "message"),
    [({"scale": 0.0}, "scale"), ({"scale": 1.0, "sliding_window": 0}, "sliding_window"),
     ({"scale": 1.0, "soft_cap": -1.0}, "soft_cap")],
)  # fmt: skip
def test_options_refuse(wrong, message):
    with pytest.raises(ValueError, match=f"{message} is"):
        AttentionOptions(**wrong)


@pytest.mark.slow
def test_without_interpreter_host_memory_is_refused():
    program = (
        "import torch; from paged_cases import paged_case; from proxima_kernels.decode import paged_decode_attention\n"
        "c = paged_case([3], [1])\n"
        "paged_decode_attention(c.query, c.cache, c.block_table, c.seq_lens, c.out(), c.options)"
    )
    support = str(Path(__file__).resolve().parents[1] / "support")
    run = subprocess.run(
        [sys.executable, "-c", program], env={"PYTHONPATH": support}, capture_output=True, text=True, check=False
    )
    assert "query is on cpu: the kernels run on a CUDA device" in run.stderr.splitlines()[-1]


def test_measured_configurations_come_before_the_rule(tmp_path):
    entry = {"phase": "decode", "dtype": "bfloat16", "head_size": 128, "group": 4, "config": {"kv_tile": 128}}
    path = tmp_path / "device.json"
    path.write_text(f'{{"entries": [{str(entry).replace(chr(39), chr(34))}]}}')
    assert read_configs(path) == {("decode", "bfloat16", 128, 4): AttentionConfig(kv_tile=128)}
    path.write_text('{"entries": [{"phase": "decode"}]}')
    with pytest.raises(ValueError, match=r"device.json: entries\[0\]"):
        read_configs(path)
    with pytest.raises(ValueError, match="kv_tile is 48: must be a power of two"):
        AttentionConfig(kv_tile=48)
    assert config_for("decode", torch.float16, 64, 1, torch.device("cpu")) == rule_of_thumb("decode", torch.float16, 64)


@pytest.mark.slow
@pytest.mark.parametrize("capability", ["80", "90"])
def test_every_kernel_compiles_to_machine_code(capability):
    """No device is needed: Triton brings NVIDIA's assembler. Shared memory fits what each generation has, and what a
    thread holds fits its registers; a little may be spilled in fp32, which has no tensor cores."""
    support = Path(__file__).resolve().parents[1] / "support"
    environment = {"PYTHONPATH": str(support), "HOME": str(Path.home()), "PATH": "/usr/bin:/bin"}
    command = [sys.executable, str(support / "compile_kernels.py"), capability]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr[-3000:]
    lines = [line.split() for line in run.stdout.splitlines()]
    assert {line[0] for line in lines} == {"attention_kernel", "merge_kernel", "write_kv_kernel", "move_blocks_kernel"}
    assert max(int(line[3]) for line in lines) <= 160 * 1024
    spilled = [line for line in lines if int(line[5]) > (512 if line[1].startswith("fp32") else 16)]
    assert not spilled
