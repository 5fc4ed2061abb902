"""What is sent: a load is data, so that every arm of a comparison gets the same one, and a reader can check it."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError, field_validator, model_validator

from proxima_bench.arrivals import Closed, Positive, Replay, Shape
from proxima_config import token_counts
from proxima_config.errors import ConfigError, UsageError
from proxima_config.nearest import nearest
from proxima_config.slo import DEFAULT_SLO, SLO
from proxima_config.traces import AZURE_CUT


class Api(StrEnum):
    CHAT = "chat"
    COMPLETIONS = "completions"
    GENERATE = "generate"


class Lengths(StrEnum):
    """What ends an answer."""

    FORCED = "forced"
    """The logits processor, at a length that no scheduler knows; the declared cap is the same for all."""
    CAP = "cap"
    """`max_tokens` is the length, and the model's own end is ignored: the scheduler knows all lengths."""
    NATURAL = "natural"
    """The model itself, or the declared cap."""


class _Data(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


def _token_count(text: str) -> str:
    token_counts.parse(text)
    return text


TokenCount = Annotated[str, Field(coerce_numbers_to_str=True)]


class Text(_Data):
    """One fixed prompt for all requests."""

    kind: Literal["text"] = "text"
    text: str = Field(min_length=1)
    output_tokens: TokenCount = "128"

    _checked = field_validator("output_tokens")(_token_count)


class Synthetic(_Data):
    """Random words of given token counts, different for each request."""

    kind: Literal["synthetic"] = "synthetic"
    input_tokens: TokenCount = "128"
    """Tokens of each turn's message, the chat template's own included; a shared prefix comes on top."""
    output_tokens: TokenCount = "128"
    prefix_tokens: int = Field(default=0, ge=0)
    """Length of the beginning that requests share; 0 for none."""
    prefixes: int = Field(default=1, ge=1)
    """How many different beginnings there are."""
    turns: int = Field(default=1, ge=1)

    _checked = field_validator("input_tokens", "output_tokens")(_token_count)


class Trace(_Data):
    """CSV with the columns input_tokens, output_tokens and, for a replay, arrival_s; the texts are random words."""

    kind: Literal["csv"] = "csv"
    path: Path = Path(AZURE_CUT)
    input_scale: Positive = 1.0
    output_scale: Positive = 1.0


class ShareGPT(_Data):
    """JSON file in ShareGPT's format; the answers in it give the output lengths."""

    kind: Literal["sharegpt"] = "sharegpt"
    path: Path
    turns: int = Field(default=1, ge=1)
    """At most so many turns of each conversation."""
    max_input_tokens: int = Field(default=1024, ge=1)
    """Conversations with a longer message are left out."""


class Jsonl(_Data):
    """One JSON object a line: `prompt` or `messages`, and optionally `output_tokens` and `arrival_s`."""

    kind: Literal["jsonl"] = "jsonl"
    path: Path
    output_tokens: TokenCount = "128"
    """For lines that do not say."""

    _checked = field_validator("output_tokens")(_token_count)


Prompts = Annotated[Text | Synthetic | Trace | ShareGPT | Jsonl, Field(discriminator="kind")]


class Comparison(_Data):
    """How `proxima bench compare` uses a preset unless told otherwise."""

    arms: str = "native,proxima"
    rounds: int = Field(default=3, ge=1)
    cpu: dict[str, JsonValue] = Field(default_factory=dict)
    """Changes of the load where there is no GPU, so that a comparison ends in minutes there too."""


class Load(_Data):
    """One load in full. ``seed`` fixes everything that is drawn."""

    preset: str | None = None
    about: str = ""
    requests: int = Field(default=100, ge=1)
    """Conversations; a conversation of several turns is several requests."""
    warmup: int = Field(default=8, ge=0)
    """Conversations sent and awaited before the measurement begins; they are in no figure."""
    shape: Shape = Closed(concurrency=16)
    prompts: Prompts = Synthetic()
    lengths: Lengths = Lengths.FORCED
    cap_tokens: int = Field(default=1024, ge=1)
    """`max_tokens` of every request, unless lengths are `cap`."""
    api: Api = Api.CHAT
    stream: bool = True
    temperature: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    extra_body: dict[str, JsonValue] = Field(default_factory=dict)
    """Further fields of every request."""
    timeout_s: Positive = 600.0
    cancel_share: float = Field(default=0.0, ge=0, le=1)
    """Share of requests whose client leaves ``cancel_after_s`` after sending, if they have not ended by then."""
    cancel_after_s: Positive = 2.0
    seed: int = 0
    slo_ttft_s: Positive = DEFAULT_SLO.ttft_s
    slo_stall_s: Positive = DEFAULT_SLO.stall_s
    saturation_multiples: tuple[Positive, ...] = ()
    """For a load that is defined relative to what native scheduling sustains: the rates to measure, as multiples."""
    arrivals_s: Positive | None = None
    """For such a load: how long requests arrive at least. A server that is fast is sent more of them than ``requests``,
    as far as the trace goes: an overload that ends at once says nothing about one that lasts."""
    engine: dict[str, JsonValue] = Field(default_factory=dict)
    """vLLM flags that the server has to be started with for the load to mean what its name says."""
    compare: Comparison = Comparison()

    @model_validator(mode="after")
    def _replay_needs_arrivals(self) -> Self:
        if isinstance(self.shape, Replay) and not isinstance(self.prompts, Trace | Jsonl):
            raise ValueError("a trace replay needs prompts from a CSV trace or a JSONL file")  # noqa: TRY004  pydantic wants it
        return self

    @property
    def relative_to_saturation(self) -> bool:
        """Whether the rate is a multiple of what a server sustains, and not yet known."""
        return bool(self.saturation_multiples) and self.shape == Replay()

    @property
    def slo(self) -> SLO:
        return SLO(ttft_s=self.slo_ttft_s, stall_s=self.slo_stall_s)


@cache
def presets() -> Mapping[str, Load]:
    """The shipped loads by name."""
    text = (resources.files("proxima_bench") / "presets.yaml").read_text(encoding="utf-8")
    return {name: build({"preset": name, **values}) for name, values in yaml.safe_load(text).items()}


def preset(name: str) -> Load:
    if name not in presets():
        near = nearest(name, presets())
        hint = f"did you mean {near}?" if near else f"there are {', '.join(presets())}"
        raise UsageError(f"no load preset is called {name}; {hint}")
    return presets()[name]


def for_cpu(load: Load) -> Load:
    """The load with what it changes for a machine without a GPU."""
    return build(_merged(load.model_dump(), load.compare.cpu))


def build(values: Mapping[str, Any]) -> Load:
    """A load from plain values; raises ConfigError that names each wrong one."""
    try:
        return Load.model_validate(values)
    except ValidationError as error:
        raise ConfigError("\n".join(_line(problem) for problem in error.errors(include_url=False))) from error


def _merged(values: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Changes win; an object in them joins the one that is there."""
    merged = dict(values)
    for name, change in changes.items():
        there = values.get(name)
        merged[name] = _merged(there, change) if isinstance(there, Mapping) and isinstance(change, Mapping) else change
    return merged


def _line(problem: Any) -> str:
    place = ".".join(str(part) for part in problem["loc"])
    message = problem["msg"].removeprefix("Value error, ")
    return f"{place}: {message} (given: {problem['input']!r})" if place else message
