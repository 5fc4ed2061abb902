"""`proxima model`: the models that come with Proxima."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING, Any

from proxima_config.command import Command
from proxima_config.errors import ModelError, UsageError
from proxima_config.nearest import nearest

if TYPE_CHECKING:
    from proxima_engine.models import EmbeddedModel

_EXAMPLES = """\
  proxima model list
  proxima model prepare smollm2-135m
  proxima model path smollm2-135m --json
"""


def _configure(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    listing = actions.add_parser("list", help="embedded models, and which are prepared")
    listing.set_defaults(action=_list)
    preparing = actions.add_parser("prepare", help="put an embedded model into the cache, or check the one there")
    preparing.add_argument("--force", action="store_true", help="make it again even if it is whole")
    preparing.set_defaults(action=_prepare)
    path = actions.add_parser("path", help="print the folder of a prepared model; exit 1 if it is not prepared")
    path.set_defaults(action=_path)
    for action in (preparing, path):
        action.add_argument("name", metavar="NAME", help="name of an embedded model")
    for action in (listing, preparing, path):
        action.add_argument("--json", action="store_true", help="print JSON")


def _run(options: argparse.Namespace) -> int:
    rows, line = options.action(options)
    sys.stdout.write((json.dumps(rows, indent=2) if options.json else line) + "\n")
    sys.stdout.flush()
    return 0


def _list(_: argparse.Namespace) -> tuple[list[dict[str, Any]], str]:
    from proxima_engine import models

    rows = [_row(model) for model in models.embedded_models().values()]
    lines = [
        f"{row['name']}  {row['summary']}, {row['licence']}  "
        + (f"prepared in {row['path']}" if row["prepared"] else f"not prepared: proxima model prepare {row['name']}")
        for row in rows
    ]
    return rows, "\n".join(lines)


def _prepare(options: argparse.Namespace) -> tuple[dict[str, Any], str]:
    from proxima_engine import models

    model = _embedded(options.name)
    path = models.prepare(model, force=options.force)
    return _row(model), str(path)


def _path(options: argparse.Namespace) -> tuple[dict[str, Any], str]:
    row = _row(_embedded(options.name))
    if not row["prepared"]:
        raise ModelError(f"{row['name']} is not prepared; run: proxima model prepare {row['name']}")
    return row, row["path"]


def _row(model: EmbeddedModel) -> dict[str, Any]:
    from proxima_engine import models

    path = models.prepared_path(model)
    return {
        "name": model.name,
        "summary": model.summary,
        "licence": model.licence,
        "context_tokens": model.context_tokens,
        "prepared": models.is_whole(path),
        "path": str(path),
    }


def _embedded(name: str) -> EmbeddedModel:
    from proxima_engine import models

    known = models.embedded_models()
    if name not in known:
        near = nearest(name, known)
        hint = f"did you mean {near}?" if near else f"embedded models: {', '.join(sorted(known))}"
        raise UsageError(f"no embedded model is called {name}; {hint}")
    return known[name]


COMMAND = Command(
    summary="List, prepare and find the models that come with Proxima.",
    examples=_EXAMPLES,
    configure=_configure,
    run=_run,
)
