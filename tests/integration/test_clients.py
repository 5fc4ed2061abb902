"""The clients that people use complete a chat, a stream and a tool call through the gateway."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from client_programs import CLIENTS, install

pytestmark = [pytest.mark.engine, pytest.mark.slow]

MODEL = "smollm2-135m"
QUESTION = "What is the capital of France?"
ANSWER = "The capital of France is Paris."
CALLS = ([["get_weather", {"city": "Paris"}]], [["get_weather", {"city": "Rome"}]])


def run(*command: str | Path, folder: Path, **environment: str) -> str:
    """Standard output of `command`, which must succeed."""
    proxies = {name: "" for name in os.environ if name.lower() in ("http_proxy", "https_proxy", "all_proxy")}
    done = subprocess.run(
        [str(part) for part in command],
        cwd=folder,
        env={**os.environ, **proxies, "NO_PROXY": "*", **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, f"{command}:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def programs() -> Path:
    return install()


@pytest.fixture(scope="module")
def node(programs: Path) -> Path:
    """Folder of the Node clients, with all they need."""
    folder = CLIENTS / "node"
    path = f"{programs}{os.pathsep}{os.environ['PATH']}"
    subprocess.run(
        [programs / "npm", "ci", "--no-audit", "--no-fund"],
        cwd=folder,
        env={**os.environ, "PATH": path},
        check=True,
        capture_output=True,
        timeout=600,
    )
    return folder


def check(answers: dict[str, Any]) -> None:
    assert answers["chat"].strip() == ANSWER
    assert answers["stream"].strip() == ANSWER
    assert answers["tool"] in CALLS
    assert answers.get("tool_stream", CALLS[0]) in CALLS
    assert answers["error"][0] == 404
    assert answers["error"][1] in ("model_not_found", None), "LiteLLM keeps no codes"
    assert answers.get("responses", ANSWER).strip() == ANSWER
    assert answers.get("responses_stream", ANSWER).strip() == ANSWER


@pytest.mark.parametrize("client", ["openai", "langchain", "litellm"])
def test_python_client(gateway_url: str, programs: Path, client: str, tmp_path: Path) -> None:
    output = run(programs / "python", CLIENTS / "clients.py", client, f"{gateway_url}/v1", MODEL, folder=tmp_path)
    check(json.loads(output.splitlines()[-1]))


@pytest.mark.parametrize("client", ["openai", "vercel"])
def test_node_client(gateway_url: str, programs: Path, node: Path, client: str) -> None:
    output = run(programs / "node", "clients.mjs", client, f"{gateway_url}/v1", MODEL, folder=node)
    check(json.loads(output.splitlines()[-1]))


@pytest.fixture
def llm(gateway_url: str, programs: Path, tmp_path: Path) -> Any:
    """Runs the `llm` command with the gateway as one of its models."""
    entry = {"model_id": "proxima", "model_name": MODEL, "api_base": f"{gateway_url}/v1", "supports_tools": True}
    (tmp_path / "extra-openai-models.yaml").write_text(json.dumps([entry]), encoding="utf-8")

    def ask(*options: str) -> str:
        command = [programs / "llm", "-m", "proxima", "-o", "temperature", "0", "--key", "none", *options, QUESTION]
        return run(*command, folder=tmp_path, LLM_USER_PATH=str(tmp_path)).strip()

    return ask


@pytest.mark.parametrize("options", [["--no-stream"], []], ids=["whole", "streamed"])
def test_llm_command(llm: Any, options: list[str]) -> None:
    assert llm(*options) == ANSWER


def test_llm_command_with_tools(llm: Any) -> None:
    # The command cannot force a call; whether this small model makes one is its own affair.
    assert llm("-T", "llm_version", "-o", "max_tokens", "40")
