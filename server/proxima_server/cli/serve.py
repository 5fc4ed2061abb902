"""`proxima serve`: the gateway with its engine."""

from __future__ import annotations

import argparse
import atexit
import contextlib
import os
import sys

from proxima_config import arguments
from proxima_config.command import Command
from proxima_config.tree import env_name
from proxima_server import listening, logs, open_files

_EXAMPLES = """\
  proxima serve                                        the embedded model on http://127.0.0.1:8000
  proxima serve meta-llama/Llama-2-7b-chat-hf          a model of the Hugging Face hub (HF_TOKEN for gated ones)
  proxima serve ./my-model --port 8123 --max-num-seqs 64
  proxima serve --no-use-proxima                       vLLM's own scheduler
  proxima serve --config proxima.yaml                  `proxima config show` tells what results
"""


def _configure(parser: argparse.ArgumentParser) -> None:
    arguments.add_model_argument(parser)
    arguments.add_arguments(parser)


def _run(options: argparse.Namespace) -> int:
    loaded = arguments.load(options)
    settings = loaded.settings
    # Hashed by now; the engine's processes inherit the environment and need not know.
    os.environ.pop(env_name("auth.api_keys"), None)

    logs.configure(settings.logging)
    _silence_teardown()
    open_files.raise_limit()
    # First of all the port: imports, and preparing or finding a model, can take long and would be in vain.
    with contextlib.ExitStack() as sockets:
        api = sockets.enter_context(listening.listen(settings.server.host, settings.server.port))
        admin = None
        if settings.admin.port:
            admin = sockets.enter_context(listening.listen(settings.admin.host, settings.admin.port, "admin-"))
        from proxima_server import process

        return process.serve(loaded, api, admin)


def _silence_teardown() -> None:
    """Drop what native libraries print about their own leaks when the interpreter ends: the last line of a failed
    start is its cause. Registered first, this is the last exit handler to run."""
    atexit.register(lambda: os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno()))


COMMAND = Command(
    summary="Serve a model over an OpenAI-compatible API.",
    examples=_EXAMPLES,
    configure=_configure,
    run=_run,
)
