"""How long a step takes: what the lab has in place of a device.

A step runs the linear layers once over all its tokens and the attention of each sequence over its context. Each part
is a roofline: it takes as long as the slower of moving its bytes and doing its operations.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from proxima_engine.scheduling.step_work import StepWork


class CostModel(Protocol):
    @property
    def host_gap_s(self) -> float:
        """Scheduling and output handling between two steps; hidden where a step is planned while another runs."""
        ...

    def step_s(self, work: StepWork) -> float:
        """Seconds on the device."""
        ...

    def copy_s(self, tokens: int) -> float:
        """Seconds in which the KV of so many tokens gets from the device to host memory, or back."""
        ...


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Sizes of a decoder-only transformer."""

    parameters: float
    layers: int
    hidden_size: int
    heads: int
    kv_heads: int
    head_size: int
    bytes_per_value: int = 2

    @property
    def weight_bytes(self) -> float:
        return self.parameters * self.bytes_per_value

    @property
    def kv_bytes_per_token(self) -> int:
        return 2 * self.layers * self.kv_heads * self.head_size * self.bytes_per_value

    @property
    def attention_flops_per_pair(self) -> int:
        """Score and weighted sum, a multiplication and an addition each, for every head of every layer."""
        return 4 * self.layers * self.heads * self.head_size


@dataclass(frozen=True, slots=True)
class Device:
    """Peak figures of one GPU's datasheet."""

    memory_bytes_per_s: float
    flops_per_s: float
    """Dense, in the data type of the weights."""
    link_bytes_per_s: float
    """To the other GPUs of a tensor-parallel group, one direction."""
    host_bytes_per_s: float
    """To host memory, one direction."""


@dataclass(frozen=True, slots=True)
class Efficiency:
    """How much of the datasheet real kernels reach, and what comes on top of them."""

    memory: float
    compute: float
    link: float
    step_s: float
    """Kernel launches and sampling, each step."""
    sequence_s: float
    """Each sequence of a step: its part of sampling and input preparation."""
    collective_s: float
    """Latency of one all-reduce."""
    host_gap_s: float


@dataclass(frozen=True, slots=True)
class Roofline:
    """Step time of a model on a group of ``ranks`` equal GPUs that share each layer (tensor parallelism)."""

    device: Device
    model: ModelShape
    efficiency: Efficiency
    ranks: int = 1

    @property
    def host_gap_s(self) -> float:
        return self.efficiency.host_gap_s

    def step_s(self, work: StepWork) -> float:
        model = self.model
        linear_s = self._slower(model.weight_bytes, 2 * model.parameters * work.tokens)
        attention_s = self._slower(
            model.kv_bytes_per_token * (work.context_tokens + work.tokens),
            model.attention_flops_per_pair * work.attention_pairs,
        )
        overhead_s = self.efficiency.step_s + self.efficiency.sequence_s * work.sequences
        return linear_s + attention_s + overhead_s + self._collectives_s(work.tokens)

    def copy_s(self, tokens: int) -> float:
        moved_bytes = self.model.kv_bytes_per_token * tokens
        return moved_bytes / (self.device.host_bytes_per_s * self.efficiency.link) / self.ranks

    def _slower(self, moved_bytes: float, flops: float) -> float:
        memory_s = moved_bytes / (self.device.memory_bytes_per_s * self.efficiency.memory)
        compute_s = flops / (self.device.flops_per_s * self.efficiency.compute)
        return max(memory_s, compute_s) / self.ranks

    def _collectives_s(self, tokens: int) -> float:
        """Two all-reduces a layer; a ring moves 2 (n-1)/n of the data over each link."""
        if self.ranks == 1:
            return 0.0
        moved_bytes = tokens * self.model.hidden_size * self.model.bytes_per_value * 2 * (self.ranks - 1) / self.ranks
        once_s = self.efficiency.collective_s + moved_bytes / (self.device.link_bytes_per_s * self.efficiency.link)
        return 2 * self.model.layers * once_s


@dataclass(frozen=True, slots=True)
class Fitted:
    """Step time as a sum of terms whose weights were fitted to measured steps; see `calibrate`."""

    step: float
    token: float
    sequence: float
    context_token: float
    attention_pair: float
    host_gap_s: float
    copied_token: float = 0.0
    """Seconds for the KV of a token on its way to host memory, or back. Not fitted to steps, because none of them
    copies."""

    def copy_s(self, tokens: int) -> float:
        return self.copied_token * tokens

    def step_s(self, work: StepWork) -> float:
        return (
            self.step
            + self.token * work.tokens
            + self.sequence * work.sequences
            + self.context_token * work.context_tokens
            + self.attention_pair * work.attention_pairs
        )
