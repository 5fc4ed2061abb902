"""What the attention backend knows of a step: its rows, where decodes end and prompts begin, and their work lists."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from vllm.config import VllmConfig, get_layers_from_vllm_config
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
from vllm.v1.attention.backend import (
    AttentionCGSupport,
    AttentionMetadataBuilder,
    CommonAttentionMetadata,
    max_decode_query_len,
)
from vllm.v1.attention.backends.utils import get_num_attention_heads_from_layers, split_decodes_and_prefills
from vllm.v1.kv_cache_interface import AttentionSpec

from proxima_kernels.decode import MAX_QUERY_LEN, decode_workspace
from proxima_kernels.prefill import PrefillWorkList, prefill_work_list
from proxima_kernels.work_list import DecodeWorkspace

NAME = "PROXIMA"


@dataclass
class ProximaMetadata:
    """One step's batch, the same for all layers of a group. Rows and tokens of decodes come first."""

    decodes: int  # rows
    decode_tokens: int
    tokens: int
    max_decode_len: int  # at least that of the longest
    query_start_loc: torch.Tensor  # (rows + 1,)
    seq_lens: torch.Tensor  # (rows,)
    block_table: torch.Tensor  # (rows, blocks)
    slot_mapping: torch.Tensor  # (tokens,)
    workspace: DecodeWorkspace
    prefill: PrefillWorkList | None  # None: no prompts in this step


class ProximaMetadataBuilder(AttentionMetadataBuilder[ProximaMetadata]):
    """Makes a step's work lists, on the device and without waiting for it.

    The decode work list is refilled in place, so that a CUDA graph that was captured with it reads the new one.

    Raises:
        ValueError: values have another head size than keys.
    """

    def __init__(
        self, kv_cache_spec: AttentionSpec, layer_names: list[str], vllm_config: VllmConfig, device: torch.device
    ) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        model = vllm_config.model_config
        if kv_cache_spec.head_size_v != kv_cache_spec.head_size:
            raise ValueError(
                f"attention backend {NAME}: keys of {kv_cache_spec.head_size} and values of "
                f"{kv_cache_spec.head_size_v} is not supported, both must have one head size"
            )
        self.kv_heads = int(kv_cache_spec.num_kv_heads)
        self.head_size = int(kv_cache_spec.head_size)
        self.heads = get_num_attention_heads_from_layers(vllm_config, layer_names) or model.get_num_attention_heads(
            vllm_config.parallel_config
        )
        self.dtype = model.dtype
        self.window = self._window_of_all_layers()
        self._init_reorder_batch_threshold(decode_query_len(vllm_config))
        graphs = vllm_config.compilation_config.cudagraph_capture_sizes or [0]
        self.workspace = decode_workspace(
            max(vllm_config.scheduler_config.max_num_seqs, *graphs),
            int(self.reorder_batch_threshold or 1),
            self.heads,
            self.kv_heads,
            self.head_size,
            self.dtype,
            device,
        )

    def _window_of_all_layers(self) -> int | None:
        """A group may hold layers with and without a window; its work lists then have to serve both."""
        layers = get_layers_from_vllm_config(self.vllm_config, AttentionLayerBase, self.layer_names)
        windows: set[int | None] = {layer.impl.options.sliding_window for layer in layers.values()}
        return windows.pop() if len(windows) == 1 else None

    @classmethod
    def get_cudagraph_support(cls, vllm_config: VllmConfig, kv_cache_spec: AttentionSpec) -> AttentionCGSupport:  # noqa: ARG003
        if decode_query_len(vllm_config) < max_decode_query_len(vllm_config):
            return AttentionCGSupport.UNIFORM_SINGLE_TOKEN_DECODE
        return AttentionCGSupport.UNIFORM_BATCH

    @classmethod
    def get_varlen_cudagraph_max_query_len(
        cls,
        vllm_config: VllmConfig,
        kv_cache_spec: AttentionSpec,  # noqa: ARG003
    ) -> int | None:
        return decode_query_len(vllm_config)

    def build(
        self,
        common_prefix_len: int,  # noqa: ARG002 - vLLM's signature
        common_attn_metadata: CommonAttentionMetadata,
        fast_build: bool = False,  # noqa: ARG002, FBT001, FBT002
    ) -> ProximaMetadata:
        common = common_attn_metadata
        threshold = int(self.reorder_batch_threshold or 1)
        decodes, prefills, decode_tokens, prefill_tokens = split_decodes_and_prefills(
            common, decode_threshold=threshold
        )
        starts, lengths = common.query_start_loc, common.seq_lens
        if decodes:
            self.workspace.fill(starts[: decodes + 1], lengths[:decodes], window=self.window)
        prefill = None
        if prefills:
            prefill = prefill_work_list(
                starts[decodes:],
                lengths[decodes:],
                self.heads,
                self.kv_heads,
                self.head_size,
                self.dtype,
                max_tokens=prefill_tokens,
                window=self.window,
            )
        return ProximaMetadata(
            decodes=decodes,
            decode_tokens=decode_tokens,
            tokens=common.num_actual_tokens,
            # Not the longest of this step: each other number is another kernel to compile.
            max_decode_len=1 if common.max_query_len == 1 else threshold,
            query_start_loc=starts,
            seq_lens=lengths,
            block_table=common.block_table_tensor,
            slot_mapping=common.slot_mapping,
            workspace=self.workspace,
            prefill=prefill,
        )


def decode_query_len(vllm_config: VllmConfig) -> int:
    """Query tokens up to which a row is a decode: those of a verification step, or 1 where these are too many."""
    longest = int(max_decode_query_len(vllm_config))
    return longest if longest <= MAX_QUERY_LEN else 1
