"""From our settings to a running `AsyncLLM`: vLLM's arguments, its parser, its constructor.

Everything here blocks (imports of vLLM take ten seconds on a small machine) and is called from the loader thread of
:mod:`proxima_engine.runtime` only.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import logging
import os
import re
from collections.abc import Callable, Mapping, MutableMapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from proxima_config.errors import ConfigError
from proxima_config.hardware import detect
from proxima_config.layering import LoadedSettings
from proxima_config.log_lines import logging_config
from proxima_config.settings import ProximaSettings
from proxima_config.vllm_flags import to_argv
from proxima_engine import platform_cpu
from proxima_engine.models import ResolvedModel, resolve_model
from proxima_engine.root_cause import DIRECTORY_VARIABLE
from proxima_engine.scheduling.options import SchedulerOptions

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.engine.async_llm import AsyncLLM

logger = logging.getLogger(__name__)

SCHEDULER_FACTORIES = {
    "proxima": "proxima_engine.scheduler.select_scheduler",
    "gang": "proxima_engine.gang.select_gang_scheduler",
}
"""What vLLM is told by kind of scheduler; `native` is what it does when told nothing."""
# Expanded in the engine process, see SchedulerOptions.snapshot_endpoint.
SNAPSHOT_ENDPOINT = f"ipc://${{{DIRECTORY_VARIABLE}}}/snapshot"
# VLLM_PORT itself is also a setting of vLLM: a plain number stays.
_SERVICE_LINK = re.compile(r"VLLM_(PORT=\w+://|PORT_\d+_|SERVICE_(HOST|PORT))")
DEFAULT_SWAP_BYTES = 4 << 30
CPU_WORKER = "proxima_engine.worker_cpu.ProximaCPUWorker"


def engine_argv(settings: ProximaSettings, model: ResolvedModel, *, on_cpu: bool) -> list[str]:
    """The command line for vLLM's own parser.

    A worker class that the user named wins over ours, with a warning: he asked for it, but the behaviour we promise for
    ours is gone. Settings accept a scheduler class of his own only together with scheduler.kind native.
    """
    engine = dict(settings.engine)
    if engine.get("served_model_name") is None:
        engine["served_model_name"] = [model.served_name]
    if settings.logging.format == "json":
        # A progress bar is not JSON.
        engine.setdefault("use_tqdm_on_load", False)
    if settings.scheduler.kind in SCHEDULER_FACTORIES:
        engine["scheduler_cls"] = SCHEDULER_FACTORIES[settings.scheduler.kind]
    if on_cpu and engine.get("worker_cls") in (None, "auto"):
        engine["worker_cls"] = CPU_WORKER
    elif on_cpu:
        logger.warning(
            "engine.worker_cls=%s replaces the CPU worker: a request with `seed` can stop the engine",
            engine["worker_cls"],
        )
    if on_cpu and (executor := platform_cpu.executor(engine)) is not None:
        engine["distributed_executor_backend"] = executor
    engine["structured_outputs_config"] = _structured_outputs(engine.get("structured_outputs_config"))
    engine["additional_config"] = _additional_config(settings)
    return ["--model", model.path_or_id, *to_argv(engine)]


def _structured_outputs(own: Any) -> Any:
    """One backend for all grammars, unless the user names another.

    vLLM's `auto` accepts a request that any backend can serve, and compiles it with the backend of the first request
    that came: what another backend was to serve then fails in the engine, or is constrained by less than it says.
    """
    return {"backend": "xgrammar", **own} if isinstance(own, Mapping) else own or {"backend": "xgrammar"}


def _additional_config(settings: ProximaSettings) -> dict[str, Any]:
    """The user's own additional_config, plus what the scheduler in the engine process needs to know."""
    own = settings.engine.get("additional_config") or {}
    if not isinstance(own, Mapping):
        raise ConfigError(f"engine.additional_config must be a JSON object, not {own!r}")
    options = SchedulerOptions(
        ttft_s=settings.scheduler.ttft_s,
        stall_s=settings.scheduler.stall_s,
        max_stall_s=settings.scheduler.max_stall_s,
        max_wait_s=settings.scheduler.max_wait_s,
        max_policy_failures=settings.scheduler.max_policy_failures,
        snapshot_endpoint=SNAPSHOT_ENDPOINT,
        snapshot_interval_s=settings.telemetry.snapshot_interval_s,
        step_log=settings.telemetry.step_log,
    )
    return {**own, **options.as_additional_config()}


def parse_engine_args(argv: list[str]) -> argparse.Namespace:
    """Run vLLM's parser. Raises ConfigError with the parser's message where vLLM would exit the process."""
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            args: argparse.Namespace = make_arg_parser(FlexibleArgumentParser(prog="vllm")).parse_args(argv)
    except SystemExit as error:
        last_line = (said.getvalue().strip().splitlines() or ["invalid engine arguments"])[-1]
        raise ConfigError(last_line.removeprefix("vllm: error: ")) from error
    return args


def build(loaded: LoadedSettings, before_spawn: Callable[[], None]) -> tuple[AsyncLLM, argparse.Namespace]:
    """Find or prepare the model, start an engine and wait until it is ready; returns it with vLLM's parsed arguments.

    ``before_spawn`` is called right before the first engine process is started; it may raise to call it off.
    Raises ModelError when there is no such model, ConfigError for settings that vLLM refuses or that are known to go
    wrong, and whatever vLLM raises when the engine does not start.
    """
    settings = loaded.settings
    revision = settings.engine.get("revision")
    model = resolve_model(settings.model, revision if isinstance(revision, str) else None)
    set_environment(settings)
    on_cpu = prepare_platform(settings)
    args = parse_engine_args(engine_argv(settings, model, on_cpu=on_cpu))

    from vllm.reasoning import ReasoningParserManager
    from vllm.usage.usage_lib import UsageContext

    from proxima_engine.bounded_context import BoundedEngineArgs
    from proxima_engine.watched_llm import WatchedLLM

    if args.reasoning_parser_plugin:
        # The configuration wants to know the parser that it names.
        ReasoningParserManager.import_reasoning_parser(args.reasoning_parser_plugin)
    engine_args = BoundedEngineArgs.from_cli_args(args)
    engine_args.bound_tokens, engine_args.bound_by = loaded.max_model_len_bound, f"preset {loaded.preset}"
    vllm_config = engine_args.create_engine_config(usage_context=UsageContext.OPENAI_API_SERVER)
    if on_cpu:
        platform_cpu.refuse_known_bad(platform_cpu.Numerics.of(vllm_config), detect().cpu_flags)
    keep_kv_of_those_who_yield(settings, vllm_config)
    before_spawn()
    client = WatchedLLM.from_vllm_config(
        vllm_config=vllm_config,
        usage_context=UsageContext.OPENAI_API_SERVER,
        enable_log_requests=engine_args.enable_log_requests,
        aggregate_engine_logging=engine_args.aggregate_engine_logging,
        disable_log_stats=engine_args.disable_log_stats,
    )
    return client, args


def keep_kv_of_those_who_yield(settings: ProximaSettings, vllm_config: VllmConfig) -> None:
    """Add the swap connector if it was asked for and can be.

    To the finished configuration, which says what model and which ranks there will be, and whether there is a
    connector of the user's, in whatever way he asked for it.
    """
    if not settings.swap.enabled:
        if settings.swap.host_bytes:
            logger.warning("swap.host_bytes does nothing without swap.enabled (--swap)")
        return
    from proxima_engine.swap.setup import reason_against, transfer_config

    if settings.scheduler.kind != "proxima":
        logger.warning("swap.enabled does nothing with scheduler.kind %s", settings.scheduler.kind)
    elif vllm_config.kv_transfer_config is not None:
        logger.warning("swap.enabled does nothing beside a KV connector of your own")
    elif (reason := reason_against(vllm_config)) is not None:
        logger.warning("swap.enabled does nothing: not for %s", reason)
    else:
        # In a container the limit counts, not what the host has.
        free_bytes = min(psutil.virtual_memory().available, detect().memory_bytes)
        host_bytes = settings.swap.host_bytes or min(DEFAULT_SWAP_BYTES, free_bytes // 4)
        vllm_config.kv_transfer_config = transfer_config(vllm_config, host_bytes, prefixes=settings.swap.prefixes)
        logger.info("KV of requests that yield is kept in up to %.1f GiB of host memory", host_bytes / (1 << 30))


def set_environment(settings: ProximaSettings) -> None:
    """What vLLM reads when it is imported. Variables that the user set stay as they are."""
    if dropped := drop_service_links(os.environ):
        logger.warning(
            "ignored %s: Kubernetes sets them for a Service called vllm, vLLM would read its own settings from them",
            ", ".join(dropped),
        )
    os.environ.setdefault("VLLM_LOGGING_LEVEL", settings.logging.level.upper())
    # A file named by the environment would win over that flag of the user's.
    if settings.logging.format == "json" and "logging_config" not in settings.engine:
        os.environ.setdefault("VLLM_LOGGING_CONFIG_PATH", str(_write_json_logging(settings)))
    # A gateway does not report its use to a third party unless asked to.
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    # A killed engine leaves semaphores to Python's tracker process, which removes them, and complains after the last
    # line of our log: that line is the cause.
    quiet = "ignore::UserWarning:multiprocessing.resource_tracker"
    os.environ["PYTHONWARNINGS"] = ",".join(filter(None, (os.environ.get("PYTHONWARNINGS"), quiet)))


def drop_service_links(environ: MutableMapping[str, str]) -> list[str]:
    """Remove and name the variables that Kubernetes injects into every pod beside a Service called `vllm`.

    vLLM takes VLLM_PORT for the first port of its engine, and refuses to start on `tcp://10.0.0.1:8000`.
    """
    found = sorted(name for name, value in environ.items() if _SERVICE_LINK.match(f"{name}={value}"))
    for name in found:
        del environ[name]
    return found


def _write_json_logging(settings: ProximaSettings) -> Path:
    """The logging configuration of vLLM, here and in the processes of the engine, where our code logs too."""
    levels = dict.fromkeys(("vllm", "proxima_engine", "proxima_kernels"), settings.logging.level)
    path = Path(os.environ[DIRECTORY_VARIABLE]) / "logging.json"
    path.write_text(json.dumps(logging_config("json", levels, root="warning")), encoding="utf-8")
    return path


def prepare_platform(settings: ProximaSettings) -> bool:
    """Set the environment the engine processes inherit; returns whether the platform is CPU."""
    from vllm.platforms import current_platform

    on_cpu = bool(current_platform.is_cpu())
    if on_cpu:
        platform_cpu.refuse_quantization(settings.engine.get("quantization"))
        platform_cpu.apply_defaults(settings.engine)
    return on_cpu
