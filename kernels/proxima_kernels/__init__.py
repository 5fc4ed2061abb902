"""Triton kernels over vLLM's paged KV cache, typed wrappers and torch references. No vLLM.

| operation | call | wrapper | jit code | reference |
|---|---|---|---|---|
| blocks between caches, devices, pinned host memory | `copy_blocks`, `gather_blocks`, `scatter_blocks` | `block_copy.py` | `block_copy_kernel.py` | `block_copy_reference.py` |
| new keys and values into their slots | `write_kv` | `kv_write.py` | `kv_write_kernel.py` | `kv_write_reference.py` |
| 1 to 8 query tokens a request | `paged_decode_attention`, `paged_write_decode_attention` | `decode.py` | `attention_kernel.py` | `attention_reference.py` |
| chunks of prompts | `paged_prefill_attention` | `prefill.py` | `attention_kernel.py` | `attention_reference.py` |

Nothing is imported here: the references need torch only, and `triton` reads TRITON_INTERPRET when a kernel is defined.
docs/kernels.md explains the layout of the cache, the work list and the limits.
"""  # noqa: E501 - a table
