"""What an attention call computes beside softmax(q k) v, with its checks."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from proxima_kernels.arguments import check_device, check_dtype, check_shape


@dataclass(frozen=True)
class AttentionOptions:
    """Applied to each logit in this order: `scale`, `soft_cap`, `alibi_slopes`, and the causal and windowed mask.

    scale: factor of q . k, usually head_size ** -0.5.
    soft_cap: logits become cap * tanh(logit / cap).
    alibi_slopes: float32 (query heads,), added as slope * (key position - query position).
    sliding_window: tokens that a token sees, itself included.

    Raises:
        ValueError: for a scale, cap or window that is not positive.
    """

    scale: float
    sliding_window: int | None = None
    soft_cap: float | None = None
    alibi_slopes: torch.Tensor | None = None

    def __post_init__(self) -> None:
        if not self.scale > 0:
            raise ValueError(f"scale is {self.scale}: must be above 0")
        if self.sliding_window is not None and self.sliding_window < 1:
            raise ValueError(f"sliding_window is {self.sliding_window}: must be at least 1 token, or None")
        if self.soft_cap is not None and not self.soft_cap > 0:
            raise ValueError(f"soft_cap is {self.soft_cap}: must be above 0, or None")

    def check(self, heads: int, device: torch.device) -> None:
        """ValueError or TypeError unless the slopes fit `heads` query heads on `device`."""
        if self.alibi_slopes is not None:
            check_dtype("alibi_slopes", self.alibi_slopes, [torch.float32])
            check_shape("alibi_slopes", self.alibi_slopes, [heads])
            check_device("alibi_slopes", self.alibi_slopes, device)
