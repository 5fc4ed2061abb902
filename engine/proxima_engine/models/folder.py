"""A prepared model on disk: where it lies, how it gets there in one piece, and how one tells that it is whole.

A folder is built aside and renamed into place, so whoever finds it finds all of it. Its manifest lists every file with
size and SHA-256: sizes are compared on every start (milliseconds), digests when the user asks to prepare.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from proxima_config.errors import ModelError

MANIFEST = "proxima-manifest.json"
# Raised when a change of the conversion makes folders of older versions worth replacing.
FORMAT = 1
_CHUNK_BYTES = 1 << 20


def cache_directory(environ: Mapping[str, str] = os.environ) -> Path:
    """Where prepared models lie: below XDG_CACHE_HOME, else ~/.cache."""
    # The XDG specification wants relative paths ignored.
    configured = environ.get("XDG_CACHE_HOME", "")
    base = Path(configured) if configured.startswith("/") else Path.home() / ".cache"
    return base / "proxima" / "models"


def is_whole(folder: Path, *, check_digests: bool = False) -> bool:
    """Whether every file of the manifest is there with its size, and with its digest if asked for."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
        if manifest["format"] != FORMAT:
            return False
        for name, entry in manifest["files"].items():
            path = folder / name
            if path.stat().st_size != entry["bytes"]:
                return False
            if check_digests and sha256(path) != entry["sha256"]:
                return False
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        # Missing, unreadable or mangled: all of them mean "prepare it again".
        return False
    return True


def sha256(path: Path, progress: Callable[[int], None] = lambda _: None) -> str:
    """Hex digest of a file; progress is called with the number of bytes read since the last call."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
            progress(len(chunk))
    return digest.hexdigest()


def write_manifest(folder: Path) -> None:
    files = {
        path.name: {"bytes": path.stat().st_size, "sha256": sha256(path)}
        for path in sorted(folder.iterdir())
        if path.name != MANIFEST
    }
    (folder / MANIFEST).write_text(json.dumps({"format": FORMAT, "files": files}, indent=1) + "\n")


@contextlib.contextmanager
def lock(folder: Path, on_wait: Callable[[], None]) -> Iterator[None]:
    """Keep other processes from preparing the same folder; on_wait is called if one is at it.

    The kernel drops the lock when its holder dies, however it dies.
    """
    with explained(folder.parent):
        folder.parent.mkdir(parents=True, exist_ok=True)
        file = (folder.parent / f".{folder.name}.lock").open("w")
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_wait()
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def building(folder: Path) -> Iterator[Path]:
    """An empty folder aside which takes the place of ``folder`` if the block ends well. Call with the lock held."""
    for left_over in folder.parent.glob(f".{folder.name}.*.partial"):
        shutil.rmtree(left_over, ignore_errors=True)
    with explained(folder.parent):
        aside = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", suffix=".partial", dir=folder.parent))
        try:
            yield aside
            _finish(aside)
            if folder.exists():
                # A folder cannot be renamed over a full one. Killed between the two lines, the next run builds anew.
                folder.rename(Path(tempfile.mkdtemp(prefix=f".{folder.name}.", suffix=".partial", dir=folder.parent)))
            aside.rename(folder)
        finally:
            for left_over in folder.parent.glob(f".{folder.name}.*.partial"):
                shutil.rmtree(left_over, ignore_errors=True)


def _finish(folder: Path) -> None:
    """Readable for all, as downloads are, and on the disk before the rename: a power cut must not leave empty files."""
    folder.chmod(0o755)
    for path in folder.iterdir():
        path.chmod(0o644)
        with path.open("rb") as file:
            os.fsync(file.fileno())


@contextlib.contextmanager
def explained(directory: Path) -> Iterator[None]:
    """Turn the operating system's refusals into a line that says what to do."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise ModelError(
                f"no space left in {directory}; free some, or set XDG_CACHE_HOME to a folder with more"
            ) from error
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST):
            raise ModelError(
                f"cannot write to {directory}: {error.strerror}; set XDG_CACHE_HOME to a writable folder"
            ) from error
        raise ModelError(f"cannot write to {directory}: {error}") from error


def require_space(directory: Path, wanted_bytes: int) -> None:
    """Raise ModelError if fewer than wanted_bytes are free where directory is (or will be)."""
    free = shutil.disk_usage(directory).free
    if free < wanted_bytes:
        raise ModelError(
            f"{directory} has {free >> 20} MiB free and {wanted_bytes >> 20} MiB are needed; "
            "free some, or set XDG_CACHE_HOME to a folder with more"
        )
