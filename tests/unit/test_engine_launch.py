"""What vLLM's parser is told."""

from __future__ import annotations

import json
from typing import Any

import pytest

from proxima_config.settings import ProximaSettings
from proxima_engine.launch import engine_argv
from proxima_engine.models import ResolvedModel


@pytest.mark.parametrize(
    ("own", "told"),
    [
        pytest.param({}, {"backend": "xgrammar"}, id="one_backend"),
        pytest.param(
            {"disable_any_whitespace": True}, {"backend": "xgrammar", "disable_any_whitespace": True}, id="more"
        ),
        pytest.param({"backend": "guidance"}, {"backend": "guidance"}, id="the_users_own"),
    ],
)
def test_all_grammars_have_one_backend(own: dict[str, Any], told: dict[str, Any]) -> None:
    settings = ProximaSettings(engine={"structured_outputs_config": own} if own else {})
    argv = engine_argv(settings, ResolvedModel("/srv/model", "model"), on_cpu=False)
    flag = "--structured-outputs-config="
    (value,) = [each.removeprefix(flag) for each in argv if each.startswith(flag)]
    assert json.loads(value) == told
