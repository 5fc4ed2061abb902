"""vLLM's `vllm.general_plugins` entry points: they run in the gateway and in every engine process.

In a process that the gateway did not start (another program of the same environment uses vLLM), `register` does
nothing.
"""

from __future__ import annotations

import copyreg
import logging
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from proxima_engine.root_cause import DIRECTORY_VARIABLE, FailureHandler

if TYPE_CHECKING:
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

ATTENTION_BACKEND = ("PROXIMA", "proxima_engine.attention_backend.ProximaAttentionBackend")


def register() -> None:
    """Record failures for the gateway and tie the life of this process to its parent's."""
    directory = os.environ.get(DIRECTORY_VARIABLE)
    parent = multiprocessing.parent_process()
    if directory is None or parent is None:
        return
    logging.getLogger("vllm").addHandler(FailureHandler(Path(directory)))
    if threading.current_thread() is threading.main_thread():
        # Ctrl-C reaches the whole process group; the gateway drains and then stops the engine itself.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_die_with, args=(parent,), name="parent-watch", daemon=True).start()


def register_attention_backend() -> None:
    """Make `--attention-backend PROXIMA` known; the backend itself is imported when it is chosen."""
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

    name, path = ATTENTION_BACKEND
    if name not in AttentionBackendEnum.__members__:
        register_backend(name, path)
        # vLLM hands its configuration to a new process before that process has loaded any plugin, where a member that
        # travels by value, as enums do, is unknown.
        copyreg.pickle(AttentionBackendEnum, _by_name)


def _by_name(member: AttentionBackendEnum) -> tuple[Callable[[str], AttentionBackendEnum], tuple[str]]:
    return backend_of, (member.name,)


def backend_of(name: str) -> AttentionBackendEnum:
    """The member of that name, ours included."""
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    register_attention_backend()
    return AttentionBackendEnum[name]


def _die_with(parent: multiprocessing.process.BaseProcess) -> None:
    """A gateway that was killed cannot stop its engine, and vLLM's engine process would serve nobody for ever."""
    parent.join()
    os._exit(1)
