"""How a benchmark tells the engine, and nobody else, when an answer ends.

The declared cap (``max_tokens``) is what schedulers may see. The true length travels beside it in ``vllm_xargs`` and is
read by one logits processor in the worker, after scheduling. An arm that is to be measured blind is started with
``--logits-processors`` PROCESSOR, whichever scheduler it has.
"""

from __future__ import annotations

# Not under the prefix `proxima_`, which is for hints that the scheduler does read.
FIELD = "bench_output_tokens"
"""Key in ``vllm_xargs``: number of output tokens, the end-of-sequence token included."""

PROCESSOR = "proxima_engine.forced_length:ForcedLength"
"""Value for vLLM's flag ``--logits-processors``."""
