"""Write the lock files in requirements/ from pyproject.toml, or check that they are fresh.

    .venv/bin/python scripts/lock.py           # resolve again (needs the package index)
    .venv/bin/python scripts/lock.py --check   # compare fingerprints; no network, used by `make check`

Each lock's first line carries a fingerprint of what it was resolved from, so that an edit of the dependencies
without a new resolution is caught, while a new release on the index is not mistaken for staleness.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
REQUIREMENTS = ROOT / "requirements"
OVERRIDES = REQUIREMENTS / "overrides.txt"
FINGERPRINT = "# inputs: sha256:"
# name -> (extras to resolve, locks that constrain it, whether the CPU torch build is wanted)
LOCKS: dict[str, tuple[list[str], list[str], bool]] = {
    "cpu": (["cpu"], [], True),
    "cuda": (["cuda"], [], False),
    "dev": (["cpu", "dev"], ["cpu"], True),
}


def fingerprint(extras: list[str]) -> str:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    inputs = {
        "python": project["requires-python"],
        "base": project["dependencies"],
        "extras": {name: project["optional-dependencies"][name] for name in extras},
        "overrides": OVERRIDES.read_text(encoding="utf-8"),
    }
    return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()


def resolve(name: str, torch_index: str) -> None:
    extras, constraints, cpu_torch = LOCKS[name]
    target = REQUIREMENTS / f"{name}.txt"
    command = ["uv", "pip", "compile", "pyproject.toml", "--python-version", "3.11", "--no-header", "--quiet"]
    command += [part for extra in extras for part in ("--extra", extra)]
    command += [part for lock in constraints for part in ("--constraint", f"requirements/{lock}.txt")]
    command += ["--overrides", str(OVERRIDES.relative_to(ROOT))] if cpu_torch else []
    command += ["--no-emit-index-url", "--no-emit-find-links", "--annotation-style", "line"]
    # Only where CPU wheels are wanted: "2.13.0+cpu" satisfies "==2.13.0" too, and would win over the index.
    command += ["--find-links", os.environ.get("PIP_FIND_LINKS", f"{torch_index}/torch/")] if cpu_torch else []
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if result.returncode:
        sys.exit(f"lock: cannot resolve {name}:\n{result.stderr}")
    lines = [f"{FINGERPRINT}{fingerprint(extras)}", f"# written by scripts/lock.py; extras: {', '.join(extras)}"]
    target.write_text("\n".join(lines) + "\n" + result.stdout, encoding="utf-8")
    print(f"lock: wrote {target.relative_to(ROOT)} ({result.stdout.count('==')} packages)")


def stale() -> list[str]:
    problems = []
    for name, (extras, _, _) in LOCKS.items():
        target = REQUIREMENTS / f"{name}.txt"
        first = target.read_text(encoding="utf-8").splitlines()[0] if target.exists() else ""
        if first != f"{FINGERPRINT}{fingerprint(extras)}":
            problems.append(f"requirements/{name}.txt does not match pyproject.toml: run `make lock`")
    return problems


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="only compare fingerprints")
    parser.add_argument(
        "--torch-index", default="", help="where PyTorch's CPU wheels are, unless PIP_FIND_LINKS is set"
    )
    parser.add_argument("names", nargs="*", choices=[*LOCKS, []], help="which locks to write (default: all)")
    arguments = parser.parse_args()
    if arguments.check:
        problems = stale()
        if problems:
            sys.exit("\n".join(problems))
        print("lock: requirements/ is fresh")
        return
    for name in arguments.names or LOCKS:
        resolve(name, arguments.torch_index)


if __name__ == "__main__":
    main()
