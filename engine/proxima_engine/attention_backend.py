"""vLLM attention backend on our own kernels: `--attention-backend PROXIMA`, on CUDA devices.

A step's batch (`attention_metadata.py`) has its decodes first. They are written to the cache and attended to in one
launch, over a work list that cuts long contexts into parts; prompts are written, then attended to. `plugin.py`
registers the name in every process. docs/kernels.md says what the kernels do and what is refused.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from vllm.platforms.interface import DeviceCapability
from vllm.v1.attention.backend import AttentionBackend, AttentionImpl, AttentionType
from vllm.v1.kv_cache_interface import KVCacheLayout

from proxima_engine.attention_metadata import NAME, ProximaMetadata, ProximaMetadataBuilder
from proxima_kernels.attention_launch import MAX_GROUP
from proxima_kernels.attention_options import AttentionOptions
from proxima_kernels.cache import MAX_HEAD_SIZE, MIN_HEAD_SIZE, PagedCache
from proxima_kernels.decode import paged_decode_attention, paged_write_decode_attention
from proxima_kernels.kv_write import write_kv
from proxima_kernels.prefill import paged_prefill_attention

FP8_TYPES = {"fp8": torch.float8_e4m3fn, "fp8_e4m3": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2}


class ProximaAttentionBackend(AttentionBackend):
    """What the kernels can do, for vLLM's choice of a backend. What is not declared here, vLLM refuses by name."""

    supported_dtypes: ClassVar[list[torch.dtype]] = [torch.float16, torch.bfloat16, torch.float32]
    supported_kv_cache_dtypes: ClassVar[list[str]] = ["auto", "float16", "bfloat16", *FP8_TYPES]
    # Decodes write and attend in one launch.
    forward_includes_kv_cache_update = True

    @staticmethod
    def get_name() -> str:
        return NAME

    @staticmethod
    def get_impl_cls() -> type[ProximaAttentionImpl]:
        return ProximaAttentionImpl

    @staticmethod
    def get_builder_cls() -> type[ProximaMetadataBuilder]:
        return ProximaMetadataBuilder

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec: Any = None) -> list[int]:  # noqa: ARG004
        return [16, 32, 64, 128]

    @classmethod
    def supported_kv_cache_layouts(cls) -> tuple[KVCacheLayout, ...]:
        """Any; first those in which the keys that a program reads lie one after the other."""
        heads_first = (KVCacheLayout.LBHNC, KVCacheLayout.BLHNC)
        return (*heads_first, *(layout for layout in KVCacheLayout if layout not in heads_first))

    @classmethod
    def supports_head_size(cls, head_size: int) -> bool:
        return MIN_HEAD_SIZE <= head_size <= MAX_HEAD_SIZE and head_size % 8 == 0

    @classmethod
    def supports_sliding_window(cls) -> bool:
        return True

    @classmethod
    def supports_per_head_quant_scales(cls) -> bool:
        return True

    @classmethod
    def supports_compute_capability(cls, capability: DeviceCapability) -> bool:
        return bool(capability >= DeviceCapability(8, 0))

    @classmethod
    def supports_combination(
        cls,
        head_size: int,  # noqa: ARG003 - vLLM's signature
        dtype: torch.dtype,
        kv_cache_dtype: str | None,
        block_size: int | None,  # noqa: ARG003
        use_mla: bool,  # noqa: ARG003, FBT001
        has_sink: bool,  # noqa: ARG003, FBT001
        use_sparse: bool,  # noqa: ARG003, FBT001
        use_mm_prefix: bool,  # noqa: ARG003, FBT001
        device_capability: DeviceCapability,
    ) -> str | None:
        name = str(dtype).removeprefix("torch.")
        if kv_cache_dtype in {"float16", "bfloat16"} and kv_cache_dtype != name:
            return f"kv_cache_dtype {kv_cache_dtype} with {name} activations: only fp8 may differ from the model's type"
        if kv_cache_dtype in FP8_TYPES and device_capability < DeviceCapability(8, 9):
            return (
                f"kv_cache_dtype {kv_cache_dtype} on compute capability {device_capability.as_version_str()}: needs 8.9"
            )
        return None


class ProximaAttentionImpl(AttentionImpl[ProximaMetadata]):
    """One layer.

    Raises:
        ValueError: what vLLM does not ask the backend about; the message names the rule.
    """

    # Tests put the references in their places, and run everything else of this file.
    decode = staticmethod(paged_decode_attention)
    write_decode = staticmethod(paged_write_decode_attention)
    prefill = staticmethod(paged_prefill_attention)
    write = staticmethod(write_kv)

    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int | None = None,
        alibi_slopes: list[float] | None = None,
        sliding_window: int | None = None,
        kv_cache_dtype: str = "auto",
        logits_soft_cap: float | None = None,
        attn_type: str = AttentionType.DECODER,
        kv_sharing_target_layer_name: str | None = None,
    ) -> None:
        if attn_type != AttentionType.DECODER:
            raise ValueError(f"attention backend {NAME}: {attn_type} attention is not supported, decoders only")
        self.num_heads = num_heads
        self.num_kv_heads = num_kv_heads or num_heads
        if num_heads // self.num_kv_heads > MAX_GROUP:
            raise ValueError(
                f"attention backend {NAME}: {num_heads} heads over {self.num_kv_heads} KV heads is not supported, "
                f"at most {MAX_GROUP} heads a KV head"
            )
        self.head_size = head_size
        self.scale = float(scale)
        self.kv_cache_dtype = kv_cache_dtype
        self.kv_sharing_target_layer_name = kv_sharing_target_layer_name
        self.options = AttentionOptions(
            scale=self.scale,
            sliding_window=sliding_window,
            soft_cap=logits_soft_cap or None,
            alibi_slopes=None if alibi_slopes is None else torch.tensor(alibi_slopes, dtype=torch.float32),
        )
        self._bound: torch.Tensor | None = None
        self._cache: PagedCache | None = None

    def forward(
        self,
        layer: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor | None,
        value: torch.Tensor | None,
        kv_cache: torch.Tensor,
        attn_metadata: ProximaMetadata | None,
        output: torch.Tensor,
        output_scale: torch.Tensor | None = None,
        output_block_scale: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Attention of all tokens of the step, (tokens, heads, head_size); padding keeps what `output` had."""
        if output_scale is not None or output_block_scale is not None:
            raise NotImplementedError(f"attention backend {NAME}: quantised output is not supported")
        if attn_metadata is None:
            # vLLM measures memory.
            return output.fill_(0)
        cache = self._paged(layer, kv_cache)
        # A layer that shares another one's cache writes nothing.
        new = None if key is None or value is None or self.kv_sharing_target_layer_name else (key, value)
        if attn_metadata.decodes:
            self._decode(query, new, cache, attn_metadata, output)
        if attn_metadata.prefill is not None:
            self._prefill(query, new, cache, attn_metadata, output)
        return output

    def _decode(
        self,
        query: torch.Tensor,
        new: tuple[torch.Tensor, torch.Tensor] | None,
        cache: PagedCache,
        step: ProximaMetadata,
        output: torch.Tensor,
    ) -> None:
        rows = step.decodes
        common: dict[str, Any] = {
            "query_start_loc": step.query_start_loc[: rows + 1],
            "max_query_len": step.max_decode_len,
            "workspace": step.workspace,
        }
        table, lengths = step.block_table[:rows], step.seq_lens[:rows]
        if new is None:
            self.decode(query, cache, table, lengths, output, self.options, **common)
        else:
            slots = step.slot_mapping[: step.decode_tokens]
            self.write_decode(query, *new, cache, table, lengths, slots, output, self.options, **common)

    def _prefill(
        self,
        query: torch.Tensor,
        new: tuple[torch.Tensor, torch.Tensor] | None,
        cache: PagedCache,
        step: ProximaMetadata,
        output: torch.Tensor,
    ) -> None:
        rows, first = step.decodes, step.decode_tokens
        if new is not None:
            key, value = new
            self.write(key[first:], value[first:], cache, step.slot_mapping[first : step.tokens])
        self.prefill(
            query,
            cache,
            step.block_table[rows:],
            step.query_start_loc[rows:],
            step.seq_lens[rows:],
            output,
            self.options,
            max_tokens=step.tokens - first,
            work_list=step.prefill,
        )

    def _paged(self, layer: torch.nn.Module, kv_cache: torch.Tensor) -> PagedCache:
        """The cache as the kernels see it, checked once: vLLM binds a layer's cache once."""
        if self._cache is None or self._bound is not kv_cache:
            dtype = FP8_TYPES.get(self.kv_cache_dtype)
            scales = (layer._k_scale, layer._v_scale) if dtype else (None, None)  # noqa: SLF001 - vLLM's interface
            self._bound, self._cache = kv_cache, PagedCache.from_vllm(kv_cache, dtype, *scales)
        return self._cache
