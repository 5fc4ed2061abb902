"""vLLM's engine client, telling who asked for it how each request goes on (:mod:`proxima_engine.watch`)."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from vllm.exceptions import RetryableRequestError, VLLMValidationError
from vllm.lora.request import LoRARequest
from vllm.outputs import PoolingRequestOutput, RequestOutput
from vllm.sampling_params import RequestOutputKind, SamplingParams
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.metrics.stats import RequestStateStats

from proxima_engine.watch import GAVE_UP, EngineTimes, PromptWatch, RequestWatch, current

ABORTED, FAILED = "abort", "error"
"""vLLM's reasons for the end of a request that no client of OpenAI knows."""


class WatchedLLM(AsyncLLM):
    """Adds a microsecond to each output of a request that is watched, and nothing to others.

    A request that the engine ended by itself raises here, instead of ending with a reason that no client knows.
    """

    def generate(
        self, prompt: Any, sampling_params: SamplingParams, request_id: str, **options: Any
    ) -> AsyncGenerator[RequestOutput, None]:
        outputs: AsyncGenerator[RequestOutput, None] = super().generate(prompt, sampling_params, request_id, **options)
        request = current.get()
        if request is None:
            return outputs
        watch = request.watch_prompt(
            request_id,
            _adapter(options.get("lora_request")),
            sampling_params.extra_args or {},
            sampling_params.n,
            streamed=sampling_params.output_kind is not RequestOutputKind.FINAL_ONLY,
        )
        return _generated(outputs, watch, sampling_params)

    def encode(
        self, prompt: Any, pooling_params: Any, request_id: str, lora_request: LoRARequest | None = None, **options: Any
    ) -> AsyncGenerator[PoolingRequestOutput, None]:
        outputs: AsyncGenerator[PoolingRequestOutput, None] = super().encode(
            prompt, pooling_params, request_id, lora_request, **options
        )
        request: RequestWatch | None = current.get()
        if request is None:
            return outputs
        return _encoded(outputs, request.watch_prompt(request_id, _adapter(lora_request), {}, 1, streamed=False))


def _adapter(lora_request: LoRARequest | None) -> str | None:
    return None if lora_request is None else str(lora_request.lora_name)


async def _generated(
    outputs: AsyncGenerator[RequestOutput, None], watch: PromptWatch, asked: SamplingParams
) -> AsyncGenerator[RequestOutput, None]:
    started = False
    # Closing this one closes the engine's, which aborts the request.
    async with aclosing(outputs):
        try:
            async for output in outputs:
                if not started:
                    started = True
                    prompt_tokens, cached_tokens = len(output.prompt_token_ids or ()), output.num_cached_tokens or 0
                    watch.started(prompt_tokens, cached_tokens, _times(output.metrics))
                watch.output(sum([len(choice.token_ids) for choice in output.outputs]))
                if output.finished:
                    _raise_if_failed(output, asked)
                    watch.ended(_times(output.metrics))
                yield output
        except Exception as error:
            watch.failed(error)
            raise


async def _encoded(
    outputs: AsyncGenerator[PoolingRequestOutput, None], watch: PromptWatch
) -> AsyncGenerator[PoolingRequestOutput, None]:
    async with aclosing(outputs):
        async for output in outputs:
            watch.started(len(output.prompt_token_ids), output.num_cached_tokens or 0, None)
            watch.ended(None)
            yield output


def _raise_if_failed(output: RequestOutput, asked: SamplingParams) -> None:
    reasons = {choice.finish_reason for choice in output.outputs}
    if ABORTED in reasons:
        raise RetryableRequestError(GAVE_UP)
    if FAILED in reasons and asked.structured_outputs is not None:
        # The engine fails a single request where its grammar has no way to begin, or to go on. It does not say more.
        raise VLLMValidationError("No text can be generated that fits the given schema or grammar")


def _times(stats: RequestStateStats | None) -> EngineTimes | None:
    if stats is None or not stats.first_token_ts:
        return None
    return EngineTimes(
        queued_s=max(0.0, stats.scheduled_ts - stats.queued_ts),
        prefill_s=max(0.0, stats.first_token_ts - stats.scheduled_ts),
        decode_s=max(0.0, stats.last_token_ts - stats.first_token_ts),
    )
