"""Programs written against OpenAI's API, from their lock in tests/clients.

They have an environment of their own, for they need other versions of the libraries that vLLM pins.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CLIENTS = ROOT / "tests" / "clients"


def install() -> Path:
    """The folder of the programs, which takes half a minute the first time."""
    uv, environment = Path(sys.executable).parent / "uv", ROOT / ".venv-clients"
    lock = CLIENTS / "requirements.txt"
    for command in (["venv", "--allow-existing", "--python", sys.executable], ["pip", "sync", str(lock), "--python"]):
        subprocess.run([uv, *command, environment], check=True, capture_output=True, timeout=600)
    return environment / "bin"
