"""Write what of the Helm chart is generated, or check that it is fresh.

    .venv/bin/python scripts/generate_chart.py            # write
    .venv/bin/python scripts/generate_chart.py --check    # exit 1 and name the stale files

The comments of values.yaml are the source of values.schema.json and README.md: `# --` describes the key below,
`# @schema` adds to what its default says about its type. `config` has the schema of the settings themselves.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from proxima_config.json_schema import settings_schema
from proxima_config.monitoring.dashboard import dashboard
from proxima_config.monitoring.rules import rules

CHART = Path(__file__).resolve().parent.parent / "deploy" / "helm" / "proxima"
# Secrets belong into Secrets; in values they would lie readable in the release.
SECRET_KEYS = (("auth", "api_keys"), ("admin", "token"))
_README_HEAD = """\
# Helm chart of Proxima Gateway

```console
$ helm install proxima deploy/helm/proxima                                # the embedded model, on CPU
$ helm install llm deploy/helm/proxima -f deploy/helm/proxima/ci/gpu-values.yaml
$ helm test llm                                                           # a real chat call
```

[docs/deploy.md](../../../docs/deploy.md) leads from a laptop to many nodes; `ci/` has one small file of values for each
feature. The table is generated from the comments of `values.yaml` by `make docs`. Unknown keys are refused, those of
`config` too, which are described in [docs/configuration.md](../../../docs/configuration.md).

| value | default | meaning |
|---|---|---|
"""
_TYPES = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}


@dataclass(frozen=True)
class Comment:
    """What stands above a key."""

    text: str
    schema: dict[str, Any]


def values_schema(root: yaml.MappingNode, lines: list[str]) -> dict[str, Any]:
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Values of the chart proxima"}
    # Helm passes `global` to every chart.
    return head | _closed(root, lines, {"global": {"type": "object"}})


def _closed(node: yaml.MappingNode, lines: list[str], more: dict[str, Any] | None = None) -> dict[str, Any]:
    properties = {key.value: _schema(key, value, lines) for key, value in node.value} | (more or {})
    return {"type": "object", "additionalProperties": False, "properties": properties}


def _schema(key: yaml.Node, value: yaml.Node, lines: list[str]) -> dict[str, Any]:
    comment = _comment(key, lines)
    if comment.schema.get("$config"):
        return config_schema() | {"description": comment.text}
    default = _construct(value)
    about: dict[str, Any] = {"description": comment.text} if comment.text else {}
    if isinstance(value, yaml.MappingNode) and value.value and not comment.text:
        return _closed(value, lines)
    if default is not None:
        about["type"] = _TYPES[type(default)]
    return about | comment.schema


def config_schema() -> dict[str, Any]:
    """The settings' own schema, in one spelling and without secrets."""
    schema = _one_spelling({name: part for name, part in settings_schema().items() if name != "$schema"})
    for section, key in SECRET_KEYS:
        del schema["properties"][section]["properties"][key]
    return schema


def _one_spelling(schema: dict[str, Any]) -> dict[str, Any]:
    if "properties" not in schema:
        return schema
    properties = schema["properties"]
    kept = {name: part for name, part in properties.items() if name.replace("-", "_") == name}
    return schema | {"properties": {name: _one_spelling(part) for name, part in kept.items()}}


def readme(root: yaml.MappingNode, lines: list[str]) -> str:
    return _README_HEAD + "".join(_rows("", root, lines))


def _rows(prefix: str, node: yaml.MappingNode, lines: list[str]) -> list[str]:
    rows = []
    for key, value in node.value:
        comment, name = _comment(key, lines), f"{prefix}{key.value}"
        if isinstance(value, yaml.MappingNode) and value.value and not comment.text:
            rows += _rows(f"{name}.", value, lines)
            continue
        default = json.dumps(_construct(value), ensure_ascii=False)
        rows.append(f"| `{name}` | `{default}` | {comment.text.replace('|', chr(92) + '|')} |\n")
    return rows


def _comment(key: yaml.Node, lines: list[str]) -> Comment:
    """The lines of comment directly above a key."""
    line, above = key.start_mark.line - 1, list[str]()
    while line >= 0 and lines[line].lstrip().startswith("#"):
        above.insert(0, lines[line].lstrip()[1:].strip())
        line -= 1
    schemas = [each.removeprefix("@schema") for each in above if each.startswith("@schema")]
    text = " ".join(each for each in above if not each.startswith("@schema"))
    described = text[3:] if text.startswith("-- ") else ""
    return Comment(described, {name: part for each in schemas for name, part in json.loads(each).items()})


def _construct(node: yaml.Node) -> Any:
    return yaml.SafeLoader("").construct_object(node, deep=True)


def files() -> dict[str, str]:
    """Path below the chart -> content."""
    text = (CHART / "values.yaml").read_text(encoding="utf-8")
    root, lines = yaml.compose(text), text.splitlines()
    assert isinstance(root, yaml.MappingNode)
    return {
        "values.schema.json": json.dumps(values_schema(root, lines), ensure_ascii=False, indent=1) + "\n",
        "README.md": readme(root, lines),
        "files/rules.yaml": rules(),
        "files/dashboard.json": dashboard(),
    }


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--check", action="store_true", help="compare only")
    check = options.parse_args().check
    stale = []
    for name, content in files().items():
        path = CHART / name
        if path.exists() and path.read_text(encoding="utf-8") == content:
            continue
        stale.append(name)
        if not check:
            path.write_text(content, encoding="utf-8")
    if not check:
        return 0
    for name in stale:
        print(f"deploy/helm/proxima/{name} is stale: run `make docs`", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
