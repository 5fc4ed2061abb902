"""Compile every kernel to machine code for a compute capability, without a device: `compile_kernels.py 90`.

Prints one line per kernel: name, case, launch, bytes of shared memory, registers and bytes of stack of a thread (where
registers are spilled to). Fails where Triton or NVIDIA's assembler fails. The arguments are those that the wrappers
pass; only the launch is replaced.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import triton
from paged_cases import paged_case
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from proxima_kernels import attention_launch, block_copy, decode, kv_write
from proxima_kernels.configs import rule_of_thumb
from proxima_kernels.decode import paged_decode_attention, paged_write_decode_attention
from proxima_kernels.prefill import paged_prefill_attention

TYPES = {
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.float32: "fp32",
    torch.float8_e4m3fn: "fp8e4nv",
    torch.float8_e5m2: "fp8e5",
    torch.int8: "i8",
    torch.uint8: "u8",
    torch.int32: "i32",
    torch.int64: "i64",
}
OPTION_NAMES = ("num_warps", "num_stages")
CUOBJDUMP = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"


class Compiling:
    """Stands where a kernel is launched, and compiles it for what it is launched with."""

    def __init__(self, kernel: Any, capability: int) -> None:
        self.kernel, self.capability, self.case = kernel, capability, ""
        self.seen: set[str] = set()

    def __getitem__(self, grid: Any) -> Any:
        return self._compile

    def _compile(self, *arguments: Any, **keywords: Any) -> None:
        options = {name: keywords.pop(name) for name in OPTION_NAMES if name in keywords}
        signature: dict[str, str] = {}
        attributes: dict[tuple[int, ...], list[list[Any]]] = {}
        constants: dict[Any, Any] = {}
        for index, (name, value) in enumerate(
            zip(self.kernel.arg_names, [*arguments, *keywords.values()], strict=True)
        ):
            special = not self.kernel.params[index].do_not_specialize
            if name in keywords:
                signature[name], constants[(index,)] = "constexpr", keywords[name]
            elif isinstance(value, torch.Tensor):
                signature[name] = f"*{TYPES[value.dtype]}"
                if special:
                    attributes[(index,)] = [["tt.divisibility", 16]]
            elif isinstance(value, int):
                signature[name] = "i32"
                if special and value % 16 == 0:
                    attributes[(index,)] = [["tt.divisibility", 16]]
            else:
                signature[name] = "fp32"
        source = ASTSource(fn=self.kernel, signature=signature, constexprs=constants, attrs=attributes)
        compiled = triton.compile(source, target=GPUTarget("cuda", self.capability, 32), options=options)
        if compiled.hash in self.seen:
            return
        self.seen.add(compiled.hash)
        registers, stack = resources(compiled.asm["cubin"])
        launch = f"{'write+' if keywords.get('WRITE') else ''}{'split' if keywords.get('SPLIT') else 'whole'}"
        line = (self.kernel.__name__, self.case, launch, compiled.metadata.shared, registers, stack)
        sys.stdout.write(" ".join(map(str, line)) + "\n")
        sys.stdout.flush()


def resources(binary: bytes) -> tuple[int, int]:
    """Registers of a thread, and bytes of its stack."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(binary)
        file.flush()
        command = [str(CUOBJDUMP), "-res-usage", file.name]
        printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+)", printed)
    if found is None:
        raise ValueError(f"cuobjdump says nothing of registers: {printed}")
    return int(found[1]), int(found[2])


#: Each type, option, head size from 64 to 256 and block size at least once, and what rows of several tokens need.
CASES: dict[str, dict[str, Any]] = {
    "bf16_d128": {"heads": 32, "kv_heads": 8, "head_size": 128, "dtype": torch.bfloat16},
    "bf16_d128_2_tokens": {"heads": 32, "kv_heads": 8, "head_size": 128, "dtype": torch.bfloat16, "query_len": 2},
    "bf16_d128_fp8_8_tokens": {
        "heads": 32, "kv_heads": 8, "head_size": 128, "dtype": torch.bfloat16, "query_len": 8,
        "cache_dtype": torch.float8_e4m3fn, "per_head_scales": True, "sliding_window": 100,
    },
    "fp16_d80_mha": {"heads": 4, "kv_heads": 4, "head_size": 80, "block_size": 32, "dtype": torch.float16},
    "fp32_d64": {"dtype": torch.float32},
    "fp32_d128_int8": {
        "dtype": torch.float32, "head_size": 128, "cache_dtype": torch.int8, "soft_cap": 30.0, "alibi": True
    },
    "bf16_d256_window_cap": {
        "heads": 8, "head_size": 256, "block_size": 128, "dtype": torch.bfloat16, "query_len": 8,
        "sliding_window": 100, "soft_cap": 30.0,
    },
    "bf16_fp8_d128_alibi": {
        "heads": 16, "head_size": 128, "dtype": torch.bfloat16, "cache_dtype": torch.float8_e4m3fn, "alibi": True
    },
    "fp16_e5m2_d96": {"head_size": 96, "block_size": 64, "dtype": torch.float16, "cache_dtype": torch.float8_e5m2},
    "bf16_int8_mqa": {"heads": 71, "kv_heads": 1, "dtype": torch.bfloat16, "cache_dtype": torch.int8},
}  # fmt: skip
#: The older generation compiles the same code: the largest tiles and the widest group are enough there.
OLDER = ("bf16_d256_window_cap", "bf16_int8_mqa")


def main(capability: int) -> None:
    kernels = []
    for module, name in (
        (attention_launch, "attention_kernel"),
        (decode, "merge_kernel"),
        (kv_write, "write_kv_kernel"),
        (block_copy, "move_blocks_kernel"),
    ):
        kernels.append(Compiling(getattr(module, name), capability))
        setattr(module, name, kernels[-1])
    # The tensors are never read: they may lie anywhere.
    for module in (attention_launch, kv_write):
        module.check_runnable = lambda *_, **__: None
    block_copy.INTERPRETED = True
    for label in CASES if capability >= 90 else OLDER:
        arguments = dict(CASES[label])
        query_len = arguments.pop("query_len", 1)
        case = paged_case([40, 30], [query_len] * 2, **arguments)
        for kernel in kernels:
            kernel.case = label
        config = rule_of_thumb("decode", case.query.dtype, case.cache.head_size)
        tokens = 2 * query_len
        new = torch.empty(tokens, case.cache.kv_heads, case.cache.head_size, dtype=case.query.dtype)
        slots = torch.zeros(tokens, dtype=torch.int64)
        kv_write.write_kv(new, new, case.cache, slots)
        rows = {"query_start_loc": case.query_start_loc, "max_query_len": query_len, "config": config}
        paged_decode_attention(*case.arguments(), case.seq_lens, case.out(), case.options, **rows)
        where = (case.cache, case.block_table, case.seq_lens, slots, case.out(), case.options)
        paged_write_decode_attention(case.query, new, new, *where, **rows)
        paged_prefill_attention(
            *case.arguments(), case.query_start_loc, case.seq_lens, case.out(), case.options, max_tokens=512
        )
    layers = block_copy.BlockLayers([torch.empty(4, 2, 16, 256)])
    block_copy.copy_blocks(layers, layers, [1], [2])


if __name__ == "__main__":
    main(int(sys.argv[1]))
