"""vLLM's engine arguments, with an upper bound on the length of a request instead of the length itself."""

from __future__ import annotations

import logging
import math

from vllm.config import ModelConfig
from vllm.engine.arg_utils import AsyncEngineArgs

logger = logging.getLogger(__name__)


class BoundedEngineArgs(AsyncEngineArgs):
    """Takes the smaller of ``bound_tokens`` and the model's own context, where there is a bound.

    vLLM itself is asked for the model's context: it knows a dozen names for it in config.json, what RoPE scaling and
    an encoder make of it, `hf_overrides`, GGUF files and the model hub. Asking it here, after it has replaced a
    speculator by its target, is asking about the model that will be served. A configuration takes milliseconds.
    """

    bound_tokens: int | None = None
    bound_by: str = ""
    """Who set the bound, for the log."""

    def create_model_config(self) -> ModelConfig:
        bound = self.bound_tokens
        if bound is None:
            return super().create_model_config()
        # Without a length vLLM derives it. One too large it would refuse, or with VLLM_ALLOW_LONG_MAX_MODEL_LEN take.
        self.max_model_len = None
        config = super().create_model_config()
        own = config.max_model_len
        known, _ = config.model_arch_config.derived_max_model_len_and_key
        if math.isfinite(known) and own <= bound:
            if own < bound:
                logger.info(
                    "engine.max_model_len is %d, the model's own context; %s allows %d", own, self.bound_by, bound
                )
            return config
        # Built anew, not changed: what else vLLM derives from the length fits it then.
        self.max_model_len = bound
        logger.info(
            "engine.max_model_len is %d by %s; the model's own context is %s",
            bound,
            self.bound_by,
            own if math.isfinite(known) else "not limited",
        )
        return super().create_model_config()
