"""Reads a configuration file into dotted keys, each with the line it stands on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from proxima_config.errors import ConfigError


@dataclass(frozen=True)
class FileValue:
    value: Any
    line: int


class _Loader(yaml.SafeLoader):
    """Safe YAML without dates: what JSON cannot hold stays a text."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def read_file(path: Path) -> dict[str, FileValue]:
    """All values of the file by dotted key, dashes in names read as underscores.

    Sections become dotted keys one level deep (``server.port``, ``engine.max_num_seqs``); what a vLLM flag has below
    that is its value. Raises ConfigError that names file and line.
    """
    return parse_text(_text_of(path), str(path))


def parse_text(text: str, source: str) -> dict[str, FileValue]:
    """As ``read_file``, for text that is already at hand."""
    try:
        loader = _Loader(text)
        root = loader.get_single_node()
        if root is None or (isinstance(root, yaml.MappingNode) and not root.value):
            raise ConfigError(f"{source}: the file is empty; it must have at least one key")
        return dict(_values(loader, root, source))
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise ConfigError(f"{source}:{line}: not valid YAML: {error.problem or error.context}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{source}: not valid YAML: {' '.join(str(error).split())}") from error
    except RecursionError as error:
        raise ConfigError(f"{source}: nested too deeply, or a part of itself") from error


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise ConfigError(f"{path}: no such file") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not a text file in UTF-8 (byte {error.start})") from error
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from error


def _values(loader: _Loader, root: yaml.Node, source: str) -> Iterator[tuple[str, FileValue]]:
    for name, line, node in _entries(root, source, "the file"):
        if isinstance(node, yaml.MappingNode) and node.value:
            loader.flatten_mapping(node)
            for leaf, leaf_line, leaf_node in _entries(node, source, name):
                _refuse_duplicates(leaf_node, source)
                yield f"{name}.{leaf}", FileValue(loader.construct_object(leaf_node, deep=True), leaf_line)
        else:
            yield name, FileValue(loader.construct_object(node, deep=True), line)


def _entries(node: yaml.Node, source: str, place: str) -> Iterator[tuple[str, int, yaml.Node]]:
    line = node.start_mark.line + 1
    if not isinstance(node, yaml.MappingNode):
        raise ConfigError(f"{source}:{line}: {place} must be a mapping of keys to values")
    seen: dict[str, int] = {}
    for key, value in node.value:
        line = key.start_mark.line + 1
        if not isinstance(key, yaml.ScalarNode) or key.tag != "tag:yaml.org,2002:str":
            what = repr(key.value) if isinstance(key, yaml.ScalarNode) else "a collection"
            raise ConfigError(f"{source}:{line}: a key must be a name, not {what}")
        name = key.value.replace("-", "_")
        if "." in name:
            raise ConfigError(f"{source}:{line}: {key.value}: write the part after the dot as a key one level below")
        if name in seen:
            raise ConfigError(f"{source}:{line}: duplicate key {key.value}; it is already set in line {seen[name]}")
        seen[name] = line
        yield name, line, value


def _refuse_duplicates(node: yaml.Node, source: str) -> None:
    """Duplicate keys below a flag; YAML loaders silently keep the last one."""
    if isinstance(node, yaml.SequenceNode):
        for item in node.value:
            _refuse_duplicates(item, source)
    elif isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in seen:
                raise ConfigError(f"{source}:{key.start_mark.line + 1}: duplicate key {key.value}")
            seen.add(str(key.value))
            _refuse_duplicates(value, source)
