"""Named cost profiles: `profiles.yaml`, and what `calibrate` wrote."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from proxima_config.errors import UsageError
from proxima_config.nearest import nearest
from proxima_engine.lab.cost import CostModel, Device, Efficiency, Fitted, ModelShape, Roofline

_GROUP = re.compile(r"-tp(\d+)$")


@dataclass(frozen=True, slots=True)
class Limits:
    """What an engine is started with on a machine of this kind."""

    max_num_batched_tokens: int
    max_num_seqs: int
    async_scheduling: bool
    """Whether a step is planned while another runs."""


@dataclass(frozen=True, slots=True)
class Profile:
    name: str
    cost: CostModel
    limits: Limits


def profile(name: str) -> Profile:
    """By name, or from a file that `proxima lab calibrate` wrote. Raises UsageError."""
    shipped, fitted = _rooflines(), _fitted()
    if name in fitted:
        return fitted[name]
    if Path(name).suffix in {".yaml", ".yml"}:
        return _from_file(Path(name))
    base = _GROUP.sub("", name)
    if base not in shipped:
        known = [*shipped, *fitted]
        near = nearest(name, known)
        raise UsageError(f"--profile: {name} is unknown; {f'did you mean {near}?' if near else ', '.join(known)}")
    found = _GROUP.search(name)
    ranks = int(found[1]) if found else 1
    if ranks < 1:
        raise UsageError(f"--profile: {name}: a tensor-parallel group has at least one GPU")
    device, model, efficiency, limits = shipped[base]
    return Profile(name, Roofline(device, model, efficiency, ranks), limits)


def names() -> list[str]:
    return [*_rooflines(), *_fitted()]


def _fitted_from(values: Mapping[str, Any]) -> Profile:
    """Raises KeyError or TypeError for values that are no fitted profile."""
    return Profile(values["name"], Fitted(**values["cost"]), Limits(**values["limits"]))


@cache
def _rooflines() -> dict[str, tuple[Device, ModelShape, Efficiency, Limits]]:
    values = _shipped("profiles.yaml")
    efficiency = Efficiency(**values["efficiency"])
    return {
        f"{device}-{model}": (
            Device(**figures),
            ModelShape(**sizes),
            efficiency,
            Limits(**values["limits"][device]),
        )
        for device, figures in values["devices"].items()
        for model, sizes in values["models"].items()
    }


@cache
def _fitted() -> dict[str, Profile]:
    return {
        name: _fitted_from({"name": name, **values}) for name, values in _shipped("profiles.yaml")["fitted"].items()
    }


def _from_file(path: Path) -> Profile:
    try:
        return _fitted_from(yaml.safe_load(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise UsageError(f"--profile: {path} cannot be read ({error.strerror})") from error
    except (yaml.YAMLError, KeyError, TypeError) as error:
        raise UsageError(f"--profile: {path} is no profile that `proxima lab calibrate` wrote") from error


def _shipped(name: str) -> dict[str, Any]:
    text = (resources.files("proxima_engine.lab") / name).read_text(encoding="utf-8")
    loaded: dict[str, Any] = yaml.safe_load(text)
    return loaded
