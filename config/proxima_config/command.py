"""What a package offers to the command line.

Each package registers its commands under the entry-point group ``proxima.commands``; the name of the entry point is
the name of the command, its value a :class:`Command`. Modules that define one import nothing heavy at module level:
`proxima --help` loads them all.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass

ENTRY_POINT_GROUP = "proxima.commands"


@dataclass(frozen=True)
class Command:
    """One word of the command line.

    ``configure`` adds arguments to the command's parser; ``run`` does the work and returns the exit code
    (0 success, 1 failed, 2 wrong usage). Errors derived from ProximaError are printed by the caller.
    """

    summary: str
    examples: str
    configure: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]
