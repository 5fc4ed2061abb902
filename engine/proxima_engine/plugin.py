"""vLLM's `vllm.general_plugins` entry point: runs in the gateway and in every engine process.

In a process that the gateway did not start (another program of the same environment uses vLLM) it does nothing.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import threading
from pathlib import Path

from proxima_engine.root_cause import DIRECTORY_VARIABLE, FailureHandler


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


def _die_with(parent: multiprocessing.process.BaseProcess) -> None:
    """A gateway that was killed cannot stop its engine, and vLLM's engine process would serve nobody for ever."""
    parent.join()
    os._exit(1)
