"""`proxima model`: the models that come with Proxima."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from proxima_config.command import Command
from proxima_config.errors import ModelError, UsageError
from proxima_config.nearest import nearest

if TYPE_CHECKING:
    from proxima_engine.models import EmbeddedModel


def _configure(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    listing = actions.add_parser("list", help="embedded models and whether they are prepared")
    listing.set_defaults(act=_list)
    preparing = actions.add_parser("prepare", help="put an embedded model into the cache, or check the one there")
    preparing.add_argument("name", metavar="NAME", help="name of an embedded model")
    preparing.add_argument("--force", action="store_true", help="make it again even if it is whole")
    preparing.set_defaults(act=_prepare)
    path = actions.add_parser("path", help="print the folder of an embedded model; exit 1 if it is not prepared")
    path.add_argument("name", metavar="NAME", help="name of an embedded model")
    path.set_defaults(act=_path)
    for action in (listing, preparing, path):
        action.add_argument("--json", action="store_true", help="print JSON")


def _run(options: argparse.Namespace) -> int:
    act = options.act
    code: int = act(options)
    return code


def _list(options: argparse.Namespace) -> int:
    from proxima_engine import models

    rows = [
        {
            "name": model.name,
            "summary": model.summary,
            "licence": model.licence,
            "prepared": models.is_whole(models.prepared_path(model)),
            "path": str(models.prepared_path(model)),
        }
        for model in models.embedded_models().values()
    ]
    if options.json:
        print(json.dumps(rows, indent=2))
        return 0
    for row in rows:
        state = row["path"] if row["prepared"] else "not prepared"
        print(f"{row['name']}  {row['summary']}, {row['licence']}  [{state}]")
    return 0


def _prepare(options: argparse.Namespace) -> int:
    from proxima_engine import models

    path = models.prepare(_embedded(options.name), force=options.force)
    print(json.dumps({"name": options.name, "path": str(path)}) if options.json else path)
    return 0


def _path(options: argparse.Namespace) -> int:
    from proxima_engine import models

    model = _embedded(options.name)
    path = models.prepared_path(model)
    prepared = models.is_whole(path)
    if options.json:
        print(json.dumps({"name": model.name, "path": str(path), "prepared": prepared}))
    elif prepared:
        print(path)
    else:
        raise ModelError(f"{model.name} is not prepared; run `proxima model prepare {model.name}`")
    return 0 if prepared else 1


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
    examples="""\
  proxima model list
  proxima model prepare smollm2-135m
  proxima serve "$(proxima model path smollm2-135m)"
""",
    configure=_configure,
    run=_run,
)
