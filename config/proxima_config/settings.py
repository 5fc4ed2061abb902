"""The settings tree: every key a person can set, with its bounds, its default and what it means.

Units are part of the names (``_s`` seconds, ``_bytes``, ``_tokens``). Values are read-only once loaded;
``proxima_config.layering`` builds the tree from its layers, and the command line, the environment, the JSON Schema
and docs/configuration.md are derived from it.
"""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import ip_network
from typing import Annotated, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    field_validator,
    model_validator,
)

from proxima_config import vllm_flags
from proxima_config.api_keys import hash_keys
from proxima_config.slo import DEFAULT_SLO


@dataclass(frozen=True)
class CliFlag:
    """Name of a key on the command line, where it is not just the field's own name."""

    name: str


def _split(value: object) -> object:
    """A list in one text, as the command line and the environment give it: separated by blanks or commas."""
    return value.replace(",", " ").split() if isinstance(value, str) else value


def _network(value: str) -> str:
    ip_network(value)
    return value


Texts = Annotated[list[str], BeforeValidator(_split)]
Networks = Annotated[list[Annotated[str, AfterValidator(_network)]], BeforeValidator(_split)]


class Section(BaseModel):
    """One group of keys; unknown keys are refused and values never change after loading."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class ServerSettings(Section):
    """Where and how the gateway answers HTTP."""

    host: str = Field(
        default="127.0.0.1",
        min_length=1,
        description="Address to listen on. The default answers this machine only; 0.0.0.0 answers everyone.",
    )
    port: int = Field(
        default=8000, ge=0, le=65535, description="TCP port to listen on. 0 takes a free one and logs which."
    )
    root_path: str = Field(
        default="",
        pattern=r"^(/.*[^/])?$",
        description="Path prefix that a reverse proxy in front strips, such as /llm. Used in links of the API docs.",
    )
    docs: bool = Field(
        default=True, description="Serve the interactive API docs at /docs and the schema at /openapi.json."
    )
    strict_params: bool = Field(
        default=False,
        description="Refuse parameters that have no effect here with 400, instead of listing them in the header "
        "x-proxima-ignored-params.",
    )
    max_sequences: int = Field(
        default=256,
        ge=1,
        le=16384,
        description="Most answers one request may ask for: its prompts times `n`. Each is a sequence of its own to the "
        "engine.",
    )
    ping_s: float = Field(
        default=10.0,
        ge=0,
        le=3600,
        description="Seconds between comments in a stream that keep proxies and clients from taking it for dead while "
        "the request waits or its prompt is computed. 0 for none.",
    )
    max_body_bytes: int = Field(
        default=64 * 1024 * 1024,
        ge=1024,
        description="Largest request body in bytes; more is refused with 413. The default is roomy for prompts with "
        "images in them and small enough that one client cannot fill the memory.",
    )
    max_header_bytes: int = Field(
        default=64 * 1024,
        ge=1024,
        le=16 * 1024 * 1024,
        description="Largest request line and headers together in bytes; more is refused with 431.",
    )
    keep_alive_s: int = Field(
        default=620,
        ge=1,
        le=86400,
        description="Seconds after which an idle connection is closed. Longer than what load balancers in front allow "
        "(60 s of AWS and nginx, 600 s of Google's), so that it is never us who close one they are about to use.",
    )
    header_timeout_s: float = Field(
        default=60.0,
        gt=0,
        le=3600,
        description="Seconds a client may take to send the headers of its request, after it connected or began.",
    )
    body_timeout_s: float = Field(
        default=60.0,
        gt=0,
        le=3600,
        description="Seconds for which a request body may stand still. What arrives earns time, a second for each KiB, "
        "so that a body that only trickles is ended too; 408 says so.",
    )
    send_timeout_s: float = Field(
        default=60.0,
        gt=0,
        le=3600,
        description="Seconds for which a client may leave its answer unread. A stream that nobody reads is then "
        "aborted, and its KV blocks are free.",
    )
    trusted_proxies: Networks = Field(
        default=[],
        description="Addresses and networks of proxies in front (10.0.0.0/8) whose X-Forwarded-For and "
        "X-Forwarded-Proto say who the client is. Nobody else's are believed.",
    )
    cors_origins: Texts = Field(
        default=[],
        description="Web origins (https://app.example.com, or *) whose pages may call this API from a browser. None "
        "by default: browsers then refuse.",
    )
    tls_cert_file: str = Field(
        default="",
        description="PEM file with the certificate and its chain: serve HTTPS. Needs tls_key_file. A file that changes "
        "is loaded again within ten seconds, without a restart.",
    )
    tls_key_file: str = Field(default="", description="PEM file with the private key of tls_cert_file, unencrypted.")


class AdminSettings(Section):
    """Who may drain, inspect and profile the gateway."""

    port: Annotated[int, CliFlag("--admin-port")] = Field(
        default=0,
        ge=0,
        le=65535,
        description="TCP port of its own, plain HTTP, for /admin, /debug and /metrics, which the API's port then does "
        "not answer; /health answers on both. 0: all on one port.",
    )
    host: Annotated[str, CliFlag("--admin-host")] = Field(
        default="127.0.0.1", min_length=1, description="Address to listen on for admin.port."
    )
    token: Annotated[str, CliFlag("--admin-token")] = Field(
        default="",
        description="What /admin and /debug ask for as `Authorization: Bearer TOKEN`. Without a token they answer on "
        "admin.port, or where there is none to this machine only, unless a proxy or a web page sent the request.",
    )
    token_file: Annotated[str, CliFlag("--admin-token-file")] = Field(
        default="",
        description="File that holds the token instead, read at each request, so that it can be changed at any time.",
    )


class LifecycleSettings(Section):
    """How the gateway ends, and what it does when its engine fails."""

    drain_s: float = Field(
        default=25.0,
        ge=0,
        le=86400,
        description="Seconds that running and waiting requests have to finish after SIGTERM or POST /admin/drain. Then "
        "the rest get an error and the process ends. Keep Kubernetes' terminationGracePeriodSeconds (30) some seconds "
        "above it.",
    )
    hang_s: float = Field(
        default=120.0,
        ge=0,
        le=86400,
        description="Seconds for which an engine that has requests may make no step before it counts as hung: not "
        "live, not ready. Far above the longest honest step (a long prefill; kernels compiled at first use). 0 never.",
    )
    max_restarts: int = Field(
        default=0,
        ge=0,
        le=1000,
        description="How often an engine that died or hangs is started again, within restart_window_s. Beyond it, "
        "and by default, the process ends with exit code 1 and leaves the restart to whoever started it.",
    )
    restart_window_s: float = Field(
        default=3600.0, gt=0, le=864000, description="Seconds after which a restart no longer counts."
    )
    exit_delay_s: float = Field(
        default=5.0,
        ge=0,
        le=3600,
        description="Seconds for which a gateway whose engine is lost goes on telling so, before it ends.",
    )


class AuthSettings(Section):
    """Who may ask. Without keys everybody may, so bind an address that only friends reach."""

    api_keys_file: str = Field(
        default="",
        description="YAML file of API keys, stored as SHA-256, with the limits of each: see docs/admission.md. It is "
        "read again when it changes. Empty for none.",
    )
    api_keys: Annotated[str, AfterValidator(hash_keys)] = Field(
        default="",
        description="API keys without limits, as NAME=KEY pairs separated by commas or spaces; KEY may be "
        "sha256:HASH. Hashed as soon as they are read. On a command line other users of the machine can see them: "
        "use the environment.",
    )


class DoorSettings(Section):
    """How much is let in, and in which order while there is more than the engine takes."""

    max_queue_requests: int = Field(
        default=1024,
        ge=1,
        le=1_000_000,
        description="Requests that may wait; one more is refused with 429 queue_full. Those that are being computed "
        "do not count, nor do less urgent ones.",
    )
    max_queue_tokens: int = Field(
        default=2_000_000,
        ge=1,
        description="Prompt tokens of all that wait together, estimated from the length of the text; what is beyond "
        "is refused with 429 queue_full. One request alone is never too long for it.",
    )
    engine_backlog: int = Field(
        default=64,
        ge=1,
        le=1_000_000,
        description="Requests that may wait inside the engine, for the scheduler to choose from. While there are API "
        "keys, those beyond wait at the door, where keys take turns by weight.",
    )
    long_prompt_tokens: int = Field(
        default=8192,
        ge=0,
        description="Prompts estimated at this many tokens or more are scheduled in the class `long`, which may hold "
        "only a part of the KV pool while others wait. 0 for never.",
    )


class DeadlineSettings(Section):
    """When a request is given up, counted from its arrival; 0 for never. A key may have its own, a request a shorter
    total (`x-request-timeout-ms`, or `timeout` in seconds in the body)."""

    queue_timeout_s: float = Field(
        default=600.0,
        ge=0,
        description="Longest wait for the computation to start, in seconds. The default is the time after which "
        "OpenAI's clients hang up. A request whose forecast wait is longer is refused at once.",
    )
    first_token_timeout_s: float = Field(
        default=0.0, ge=0, description="Longest wait for the first token, in seconds; the scheduler plans with it."
    )
    request_timeout_s: float = Field(
        default=0.0, ge=0, description="Longest time for the whole answer, in seconds; the scheduler plans with it."
    )


class SchedulerSettings(Section):
    """Which requests start, and when."""

    kind: Annotated[Literal["proxima", "native", "gang"], CliFlag("--scheduler")] = Field(
        default="proxima",
        description="Who decides which requests start: Proxima's policy, vLLM's own scheduler untouched (native, the "
        "rollback), or all-or-nothing allocation (gang, a teaching baseline for comparisons, nothing to serve with). "
        "On the command line --use-proxima and --no-use-proxima choose between the first two.",
    )
    ttft_s: float = Field(
        default=DEFAULT_SLO.ttft_s,
        gt=0,
        le=86400,
        description="Target in seconds from the arrival of a request to its first token. Requests that can still meet "
        "it start before those that have missed it.",
    )
    max_wait_s: float = Field(
        default=75.0,
        ge=0,
        le=86400,
        description="Age bound in seconds: a request that has waited for this long goes before all that have not, and "
        "is not passed at all after twice as long, when those who came later give their blocks back. Lower bounds the "
        "worst wait, higher keeps more requests within their target when there is too much load. 0 keeps strict "
        "arrival order.",
    )
    max_policy_failures: int = Field(
        default=3,
        ge=1,
        le=1000,
        description="Consecutive errors of the policy after which the engine keeps to arrival order until restart.",
    )


class TelemetrySettings(Section):
    """What the engine reports to the gateway."""

    snapshot_interval_s: float = Field(
        default=0.1, ge=0.1, le=60, description="Shortest time between two scheduler snapshots that feed /metrics."
    )
    gpu: Annotated[bool, CliFlag("--gpu-metrics")] = Field(
        default=True,
        description="Show the GPUs' gauges in /metrics. Switch off where NVIDIA's dcgm-exporter is scraped too and "
        "both would be added up.",
    )
    step_log: str = Field(
        default="",
        description="File to which the engine appends one line of JSON for each step: what it computed and when. For "
        "`proxima lab calibrate`; needs scheduler.kind proxima, and one engine. Empty for none.",
    )


class LoggingSettings(Section):
    """What is written to the log."""

    level: Annotated[Literal["debug", "info", "warning", "error"], CliFlag("--log-level")] = Field(
        default="info", description="Least severe message that is logged, by the gateway and by the engine."
    )
    format: Annotated[Literal["text", "json"], CliFlag("--log-format")] = Field(
        default="text",
        description="Lines for people, or one JSON object per line for a log collector; the engine's lines too, unless "
        "engine.logging_config or VLLM_LOGGING_CONFIG_PATH says otherwise.",
    )
    access: Annotated[bool, CliFlag("--log-access")] = Field(
        default=True,
        description="Log one line per request, when it has ended: timings, sizes, key, model, class, outcome. Probes "
        "and scrapes only at level debug.",
    )
    prompts: Annotated[bool, CliFlag("--log-prompts")] = Field(
        default=False,
        description="Add the beginning of the prompt to that line. E-mail addresses, numbers of six digits and more, "
        "keys, tokens and embedded data are blotted out; names and whatever else people write are not.",
    )
    prompt_chars: Annotated[int, CliFlag("--log-prompt-chars")] = Field(
        default=200, ge=1, le=10000, description="Characters of a prompt that are logged at most, if any are."
    )


class ProximaSettings(Section):
    """All settings of one gateway."""

    model: str = Field(
        default="smollm2-135m",
        min_length=1,
        description="What to serve: an embedded model's name, a Hugging Face id or a local folder. On the command "
        "line also the positional MODEL of `proxima serve`.",
    )
    server: ServerSettings = ServerSettings()
    admin: AdminSettings = AdminSettings()
    lifecycle: LifecycleSettings = LifecycleSettings()
    auth: AuthSettings = AuthSettings()
    door: DoorSettings = DoorSettings()
    deadlines: DeadlineSettings = DeadlineSettings()
    scheduler: SchedulerSettings = SchedulerSettings()
    telemetry: TelemetrySettings = TelemetrySettings()
    logging: LoggingSettings = LoggingSettings()
    engine: dict[str, JsonValue] = Field(
        default_factory=dict,
        description="vLLM's own flags by name, such as max_num_seqs. What is not set here has vLLM's own default.",
    )

    @field_validator("engine")
    @classmethod
    def _known_flags_only(cls, engine: dict[str, JsonValue]) -> dict[str, JsonValue]:
        flags = [vllm_flags.find(name) for name in engine]
        return {flag.dest: flag.parse(value, text=False) for flag, value in zip(flags, engine.values(), strict=True)}

    @model_validator(mode="after")
    def _certificate_and_key_go_together(self) -> Self:
        if bool(self.server.tls_cert_file) != bool(self.server.tls_key_file):
            raise ValueError("server.tls_cert_file and server.tls_key_file must be set together")
        if self.admin.token and self.admin.token_file:
            raise ValueError("admin.token and admin.token_file contradict each other; set one of them")
        return self

    @model_validator(mode="after")
    def _own_scheduler_class_needs_native(self) -> Self:
        if self.engine.get("scheduler_cls") is not None and self.scheduler.kind != "native":
            raise ValueError(
                "engine.scheduler_cls replaces the scheduler and so needs scheduler.kind native (--scheduler native)"
            )
        return self
