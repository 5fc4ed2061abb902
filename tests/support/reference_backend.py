"""Our attention backend with the torch references where the kernels are called: the rest of it runs as on a GPU."""

from __future__ import annotations

from typing import Any

from proxima_engine.attention_backend import ProximaAttentionBackend, ProximaAttentionImpl
from proxima_kernels.attention_reference import paged_attention_reference, paged_write_decode_reference
from proxima_kernels.kv_write_reference import write_kv_reference


def decode(query, cache, table, lengths, out, options, *, query_start_loc, **_: Any):
    return paged_attention_reference(query, cache, table, query_start_loc, lengths, out, options)


def write_decode(query, key, value, cache, table, lengths, slots, out, options, *, query_start_loc, **_: Any):
    return paged_write_decode_reference(query, key, value, cache, table, query_start_loc, lengths, slots, out, options)


def prefill(query, cache, table, query_start_loc, lengths, out, options, **_: Any):
    return paged_attention_reference(query, cache, table, query_start_loc, lengths, out, options)


def write(key, value, cache, slots):
    write_kv_reference(key, value, cache.key, cache.value, slots, cache.key_scale, cache.value_scale)


class ReferenceImpl(ProximaAttentionImpl):
    decode = staticmethod(decode)
    write_decode = staticmethod(write_decode)
    prefill = staticmethod(prefill)
    write = staticmethod(write)


class ReferenceBackend(ProximaAttentionBackend):
    @staticmethod
    def get_impl_cls() -> type[ReferenceImpl]:
        return ReferenceImpl
