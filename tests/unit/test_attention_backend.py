"""What our attention backend tells vLLM, and what it makes of a step's batch."""

from __future__ import annotations

import importlib.metadata
import pickle
import subprocess
import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
from vllm.platforms.interface import DeviceCapability
from vllm.v1.attention.backend import AttentionCGSupport, CommonAttentionMetadata
from vllm.v1.attention.backends.registry import AttentionBackendEnum

from proxima_engine.attention_backend import ProximaAttentionBackend, ProximaAttentionImpl
from proxima_engine.attention_metadata import ProximaMetadataBuilder
from proxima_engine.plugin import register_attention_backend

SERVED = {
    "head_size": 128,
    "dtype": torch.bfloat16,
    "kv_cache_dtype": "auto",
    "block_size": 16,
    "use_mla": False,
    "has_sink": False,
    "use_sparse": False,
    "use_mm_prefix": False,
    "use_per_head_quant_scales": False,
    "device_capability": DeviceCapability(9, 0),
    "attn_type": "decoder",
}


def test_the_backend_has_a_name():
    register_attention_backend()
    member = AttentionBackendEnum["PROXIMA"]
    assert member.get_class() is ProximaAttentionBackend
    assert pickle.loads(pickle.dumps(member)) is member
    assert pickle.loads(pickle.dumps(AttentionBackendEnum.FLASH_ATTN)) is AttentionBackendEnum.FLASH_ATTN


def test_every_process_of_vllm_makes_the_name_known():
    plugins = importlib.metadata.entry_points(group="vllm.general_plugins")
    assert plugins["proxima_attention"].load() is register_attention_backend


@pytest.mark.slow
def test_the_name_travels_to_a_process_that_has_loaded_no_plugins():
    """As vLLM's configuration does to a spawned engine."""
    register_attention_backend()
    code = "import pickle, sys; print(pickle.loads(sys.stdin.buffer.read()).get_path())"
    given = pickle.dumps(AttentionBackendEnum["PROXIMA"])
    found = subprocess.run([sys.executable, "-c", code], input=given, capture_output=True, check=True)
    assert found.stdout.decode().splitlines()[-1] == "proxima_engine.attention_backend.ProximaAttentionBackend"


@pytest.mark.parametrize(
    "served",
    [
        {},
        {"head_size": 64, "dtype": torch.float16},
        {"head_size": 256, "dtype": torch.float32, "block_size": 128},
        {"kv_cache_dtype": "fp8_e5m2", "use_per_head_quant_scales": True},
        {"kv_cache_dtype": "bfloat16", "has_sliding_window": True, "use_kv_connector": True},
        {"use_adaptive_verification": True},
    ],
)
def test_it_serves(served):
    assert ProximaAttentionBackend.validate_configuration(**(SERVED | served)) == []


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        ({"head_size": 20}, "head_size not supported"),
        ({"head_size": 512}, "head_size not supported"),
        ({"block_size": 24}, "block_size not supported"),
        ({"kv_cache_dtype": "int8_per_token_head"}, "kv_cache_dtype not supported"),
        ({"kv_cache_dtype": "float16"}, "kv_cache_dtype float16 with bfloat16 activations: only fp8 may differ"),
        ({"kv_cache_dtype": "fp8", "device_capability": DeviceCapability(8, 0)}, "kv_cache_dtype fp8 on compute"),
        ({"device_capability": DeviceCapability(7, 5)}, "compute capability not supported"),
        ({"use_mla": True}, "MLA not supported"),
        ({"has_sink": True}, "attention sinks not supported"),
        ({"attn_type": "encoder_only"}, "attention type encoder_only not supported"),
        ({"use_dcp": True}, "DCP not supported"),
        ({"use_batch_invariant": True}, "batch invariance not supported"),
        ({"dtype": torch.float64}, "dtype not supported"),
        ({"kv_cache_dtype": "nvfp4"}, "kv_cache_dtype not supported"),
        ({"kv_cache_dtype": "turboquant_4bit_nc"}, "kv_cache_dtype not supported"),
        ({"use_sparse": True}, "sparse not supported"),
        ({"use_mm_prefix": True}, "partial multimodal token full attention not supported"),
        ({"use_non_causal": True}, "non-causal attention not supported"),
        ({"use_pcp": True}, "PCP not supported"),
        ({"use_rswa": True}, "R-SWA not supported"),
        ({"attn_type": "encoder_decoder"}, "attention type encoder_decoder not supported"),
    ],
)
def test_it_refuses_with_a_reason(asked, reason):
    reasons = ProximaAttentionBackend.validate_configuration(**(SERVED | asked))
    assert len(reasons) == 1
    assert reasons[0].startswith(reason)


def test_a_layer_refuses_what_vllm_does_not_ask_about():
    with pytest.raises(ValueError, match="PROXIMA: encoder attention is not supported"):
        ProximaAttentionImpl(8, 64, 0.1, attn_type="encoder")
    with pytest.raises(ValueError, match="256 heads over 1 KV heads is not supported, at most 128"):
        ProximaAttentionImpl(256, 64, 0.1, 1)


def test_vllm_starts_with_it_or_says_why_not(monkeypatch):
    """As the CUDA platform does when the flag names it. Its module imports operations of the CUDA build, and this uses
    none of them."""
    monkeypatch.setitem(sys.modules, "vllm._C_stable_libtorch", ModuleType("vllm._C_stable_libtorch"))
    from vllm.platforms.cuda import CudaPlatformBase
    from vllm.v1.attention.selector import AttentionSelectorConfig

    register_attention_backend()
    chosen = AttentionBackendEnum["PROXIMA"]
    capability = classmethod(lambda cls, device_id=0: DeviceCapability(9, 0))
    monkeypatch.setattr(CudaPlatformBase, "get_device_capability", capability)
    asked = AttentionSelectorConfig(head_size=128, dtype=torch.bfloat16, kv_cache_dtype="auto", block_size=16)
    found = CudaPlatformBase.get_attn_backend_cls(chosen, asked)
    assert found == "proxima_engine.attention_backend.ProximaAttentionBackend"
    with pytest.raises(ValueError, match=r"backend \S*PROXIMA is not valid .*'attention sinks not supported'"):
        CudaPlatformBase.get_attn_backend_cls(chosen, asked._replace(has_sink=True))


def test_quantised_output_and_square_root_alibi_are_refused():
    assert not ProximaAttentionBackend.supports_alibi_sqrt()
    layer, nothing = ProximaAttentionImpl(8, 64, 0.1), torch.empty(0)
    with pytest.raises(NotImplementedError, match="PROXIMA: quantised output is not supported"):
        layer.forward(None, nothing, nothing, nothing, nothing, None, nothing, output_scale=torch.ones(1))


class Layer(AttentionLayerBase):
    """Of an attention layer, what the builder looks at."""

    def __init__(self, window):
        self.impl = ProximaAttentionImpl(8, 64, 0.125, 2, sliding_window=window)

    def get_attn_backend(self):
        return ProximaAttentionBackend

    def get_kv_cache_spec(self, vllm_config):
        return None


def config(speculated=None, windows=(None,)):
    """What the builder reads of vLLM's configuration."""
    layers = {f"layer{index}": Layer(window) for index, window in enumerate(windows)}
    return SimpleNamespace(
        model_config=SimpleNamespace(dtype=torch.float32, get_num_attention_heads=lambda _: 8),
        parallel_config=SimpleNamespace(decode_context_parallel_size=1),
        scheduler_config=SimpleNamespace(max_num_seqs=4),
        compilation_config=SimpleNamespace(cudagraph_capture_sizes=[1, 6], static_forward_context=layers),
        speculative_config=speculated and SimpleNamespace(num_speculative_tokens=speculated, parallel_drafting=False),
    )


@pytest.mark.parametrize(
    ("speculated", "query_len", "support"),
    [
        (None, 1, AttentionCGSupport.UNIFORM_BATCH),
        (3, 4, AttentionCGSupport.UNIFORM_BATCH),
        (9, 1, AttentionCGSupport.UNIFORM_SINGLE_TOKEN_DECODE),
    ],
)
def test_graphs_of_decodes_are_captured_up_to_eight_tokens_a_request(speculated, query_len, support):
    assert ProximaMetadataBuilder.get_cudagraph_support(config(speculated), None) == support
    assert ProximaMetadataBuilder.get_varlen_cudagraph_max_query_len(config(speculated), None) == query_len


def step(query_lens, lengths):
    starts = torch.tensor([0, *query_lens]).cumsum(0).to(torch.int32)
    return CommonAttentionMetadata(
        query_start_loc=starts,
        query_start_loc_cpu=starts,
        seq_lens=torch.tensor(lengths, dtype=torch.int32),
        num_reqs=len(lengths),
        num_actual_tokens=int(starts[-1]),
        max_query_len=max(query_lens),
        max_seq_len=max(lengths),
        block_table_tensor=torch.zeros(len(lengths), 8, dtype=torch.int32),
        slot_mapping=torch.arange(int(starts[-1])),
    )


def builder(head_size_v=64, **options):
    spec = SimpleNamespace(num_kv_heads=2, head_size=64, head_size_v=head_size_v)
    vllm_config = config(**options)
    layers = list(vllm_config.compilation_config.static_forward_context)
    return ProximaMetadataBuilder(spec, layers, vllm_config, torch.device("cpu"))


def test_values_of_another_size_than_keys_are_refused():
    with pytest.raises(ValueError, match="keys of 64 and values of 32 is not supported"):
        builder(head_size_v=32)


def test_decodes_and_prompts_of_a_step_get_their_own_work_lists():
    made = builder().build(0, step([1, 1, 30, 5], [90, 1, 40, 5]))
    assert (made.decodes, made.decode_tokens, made.tokens, made.max_decode_len) == (2, 2, 37, 1)
    assert made.workspace.item_count[:2].tolist() == [1, 1]
    rows = made.prefill.items[0]
    assert set(rows[rows >= 0].tolist()) == {0, 1}, "rows of prompts are counted from the first prompt"


def test_decodes_of_all_steps_run_two_kernels():
    """With one token a row, and with up to as many as are verified; each other number would be compiled in a step."""
    a_builder = builder(speculated=3)
    lens = [
        a_builder.build(0, step(query_lens, [50] * 3)).max_decode_len for query_lens in ([1] * 3, [1, 2, 1], [1, 3, 20])
    ]
    assert lens == [1, 4, 4]


def test_a_step_of_decodes_refills_the_same_buffers_and_leaves_out_padding():
    """A CUDA graph replays with these buffers; padded rows have no query tokens."""
    a_builder = builder()
    first = a_builder.build(0, step([1, 1, 1], [500, 2, 3]))
    seen = first.workspace.items.clone()
    buffers = [value for value in vars(first.workspace).values() if isinstance(value, torch.Tensor)]
    addresses = [buffer.data_ptr() for buffer in buffers]
    second = a_builder.build(0, step([1, 1, 0, 0, 0, 0], [7, 600, 0, 0, 0, 0]))
    assert second.prefill is None
    assert second.workspace is first.workspace
    buffers = [value for value in vars(first.workspace).values() if isinstance(value, torch.Tensor)]
    assert [buffer.data_ptr() for buffer in buffers] == addresses
    # The largest graph has six rows, two more than requests run.
    assert len(first.workspace.rows) == 6
    assert not torch.equal(second.workspace.items, seen)
    rows = second.workspace.items[0]
    assert set(rows[rows >= 0].tolist()) == {0, 1}


def test_layers_with_and_without_a_window_share_a_work_list_over_all_keys():
    assert builder(windows=(100, 100)).window == 100
    assert builder(windows=(100, None)).window is None
