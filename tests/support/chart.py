"""The Helm chart, rendered by Helm's own engine, and its objects checked against schemas."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import helm_python as helm
import kubernetes_validate
import yaml

CHART = Path(__file__).resolve().parents[2] / "deploy" / "helm" / "proxima"
KUBERNETES = ("1.32.0", "1.36.0")
"""Versions whose schemas every object must satisfy."""
Object = dict[str, Any]


@dataclass(frozen=True)
class Rendered:
    objects: list[Object]
    notes: str

    def kinds(self) -> set[str]:
        return {each["kind"] for each in self.objects}

    def all(self, kind: str) -> list[Object]:
        return [each for each in self.objects if each["kind"] == kind]

    def one(self, kind: str, name: str | None = None) -> Object:
        (found,) = (each for each in self.all(kind) if name in (None, each["metadata"]["name"]))
        return found

    def pod(self) -> Object:
        """Spec of the pod that answers HTTP."""
        spec: Object = self.one("Deployment", "llm-proxima")["spec"]["template"]["spec"]
        return spec

    def container(self) -> Object:
        (found,) = (each for each in self.pod()["containers"] if each["name"] == "proxima")
        return dict(found)

    def settings(self) -> Object:
        """The file for `proxima serve --config`."""
        return dict(yaml.safe_load(self.one("ConfigMap", "llm-proxima")["data"]["proxima.yaml"]))


def render(values: Object | None = None) -> Rendered:
    """The release `llm` in the namespace `prod`. Raises HelmError."""
    with helm.Chart.load(CHART) as chart:
        chart.validate_schema(values or {})
        manifests = chart.render(values or {}, name="llm", namespace="prod")
    notes = manifests.pop("proxima/templates/NOTES.txt")
    return Rendered(list(_objects(manifests)), notes)


def _objects(manifests: dict[str, str]) -> Iterator[Object]:
    for text in manifests.values():
        yield from (each for each in yaml.safe_load_all(text) if each)


def ci_files() -> list[Path]:
    return sorted((CHART / "ci").glob("*-values.yaml"))


def values_of(path: Path) -> Object:
    return yaml.safe_load(path.read_text()) or {}


def check_kubernetes(each: Object) -> None:
    """Strictly: unknown fields are errors. Raises what names the field."""
    _check_text(json.dumps(each, sort_keys=True))


@functools.cache
def _check_text(text: str) -> None:
    """Most objects are the same in most files of values, and a check takes a while."""
    for version in KUBERNETES:
        kubernetes_validate.validate(json.loads(text), version, strict=True)
