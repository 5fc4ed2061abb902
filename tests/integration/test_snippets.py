"""Every command and snippet of README.md and docs/quickstart.md does what it says there, against the shared gateway."""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from gateway_process import PROXIMA

from proxima_bench.tune import command as tune
from proxima_config.command_parser import CommandParser

pytestmark = pytest.mark.engine

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("README.md", "docs/quickstart.md")
SHOWN_URL = "http://127.0.0.1:8000"
ELSEWHERE = {
    "make serve": "tests/integration/test_openai_sdk.py::test_chat_is_right",
    "make test": "tests/integration/test_snippets.py::test_every_command_is_run_here_or_by_the_test_that_is_named",
    "make docs": "tests/unit/test_docs_site.py::test_every_page_is_in_the_site_and_its_lists_are_lists",
    "make setup": "tests/unit/test_setup_script.py::test_the_installed_environment_needs_nothing_more",
    "make figures": "tests/unit/test_figures.py::test_the_picture_is_that_of_the_results",
    "proxima serve": "tests/e2e/test_small_pool.py::test_short_requests_start_before_a_head_that_does_not_fit",
    "proxima tune": "tests/e2e/test_tune.py::test_one_that_is_killed_goes_on_and_writes_what_serve_takes",
    "docker compose": "tests/deploy/test_compose.py::test_the_gateway_takes_its_environment",
    "helm install": "tests/deploy/test_pod.py::test_it_is_ready_when_its_probes_say_so",
    "helm test": "tests/deploy/test_pod.py::test_the_script_of_helm_test_passes",
}
"""Beginning of a command that would install, start an engine or need a container daemon or cluster -> who runs that.
Here only its arguments are checked: of `make` by a dry run, of `proxima serve` by `proxima doctor`, and of
`proxima tune` by its parser."""


@dataclass(frozen=True)
class Snippet:
    page: str
    line: int
    kind: str
    text: str
    shows: str = ""
    """What the page says comes out; "..." stands for anything."""

    def __str__(self) -> str:
        return f"{Path(self.page).stem}-{self.line}"

    @property
    def elsewhere(self) -> str | None:
        command = self.text.removeprefix(".venv/bin/")
        return next((test for begin, test in ELSEWHERE.items() if command.startswith(begin)), None)


def snippets(page: str) -> Iterator[Snippet]:
    text = (ROOT / page).read_text(encoding="utf-8")
    for block in re.finditer(r"^```(\w+)\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        line, kind = text.count("\n", 0, block.start()) + 2, block[1]
        if kind == "console":
            yield from commands(page, line, block[2].splitlines())
        else:
            yield Snippet(page, line, kind, block[2])


def commands(page: str, first: int, lines: list[str]) -> Iterator[Snippet]:
    """Each begins with "$ " and goes on while a quote is open; what follows is its output."""
    starts = [number for number, line in enumerate(lines) if line.startswith("$ ")]
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        text, rest = lines[start][2:], start + 1
        while not complete(text):
            text, rest = f"{text}\n{lines[rest]}", rest + 1
        yield Snippet(page, first + start, "console", text, "\n".join(lines[rest:end]))


def complete(command: str) -> bool:
    try:
        shlex.split(command, comments=True)
    except ValueError:
        return False
    return True


ALL = [snippet for page in PAGES for snippet in snippets(page)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Path:
    """With the files that the pages speak of."""
    made = tmp_path_factory.mktemp("snippets")
    shutil.copytree(tiny_model, made / "my-model")
    # As long as the contexts of the presets, as models are.
    config = json.loads((tiny_model / "config.json").read_text(encoding="utf-8")) | {"max_position_embeddings": 8192}
    (made / "my-model" / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (made / "gateway.yaml").write_text("server: {port: 0}\n", encoding="utf-8")
    (made / ".venv" / "bin").mkdir(parents=True)
    (made / ".venv" / "bin" / "proxima").symlink_to(PROXIMA)
    return made


def run(command: list[str], folder: Path) -> str:
    # Somebody else may have the usual port.
    environment = {**os.environ, "NO_PROXY": "*", "no_proxy": "*", "PROXIMA__SERVER__PORT": "0"}
    environment["PATH"] = f"{PROXIMA.parent}{os.pathsep}{environment['PATH']}"
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, f"{command}:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    return done.stdout


def assert_shows(output: str, shown: str) -> None:
    """Without regard to spaces, which are another tool's affair."""
    rest = "".join(output.split())
    for part in filter(None, ("".join(part.split()) for part in shown.split("..."))):
        assert part in rest, f"not in the output, or not there: {part}\n{output}"
        rest = rest.partition(part)[2]


@pytest.mark.parametrize("snippet", [each for each in ALL if not each.elsewhere], ids=str)
def test_a_snippet_does_what_it_says(gateway_url: str, folder: Path, snippet: Snippet) -> None:
    text = snippet.text.replace(SHOWN_URL, gateway_url)
    if snippet.kind == "python":
        output = run([sys.executable, "-c", text], folder)
        assert_shows(output, re.findall(r"print\(.*\)  # (.*)", snippet.text)[0])
        return
    assert snippet.kind == "console"
    for tool in ("curl", "jq"):
        if re.search(rf"(?:^|[|(]\s*){tool}\b", text, re.MULTILINE) and shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed on this machine")
    if text.startswith("proxima top"):
        text = text.replace("proxima top", f"proxima top {gateway_url}")
    output = run(["bash", "-o", "pipefail", "-c", text], folder)
    assert output.strip()
    assert_shows(output, snippet.shows)


@pytest.mark.parametrize("snippet", [each for each in ALL if each.elsewhere], ids=str)
def test_what_is_run_elsewhere_has_arguments_that_work(folder: Path, snippet: Snippet) -> None:
    words = shlex.split(snippet.text, comments=True)
    if words[0] == "make":
        output = run(["make", "--dry-run", "--no-print-directory", f"--directory={ROOT}", *words[1:]], folder)
        arguments = next((word.removeprefix("ARGS=") for word in words if word.startswith("ARGS=")), "")
        assert {"serve": "proxima serve", "test": "pytest"}[words[1]] in output
        assert arguments in output
    elif words[1] == "tune":
        parser = CommandParser(prog="proxima tune")
        tune.COMMAND.configure(parser)
        options = parser.parse_args(words[2:])
        assert (folder / options.model).is_dir()
        assert options.out.suffix == ".yaml"
    else:
        output = run(["proxima", "doctor", *words[2:]], folder)
        assert "my-model" in output


def test_every_command_is_run_here_or_by_the_test_that_is_named() -> None:
    assert len(ALL) > 15
    assert {snippet.kind for snippet in ALL} == {"console", "python"}, "a block of another kind is not run by anybody"
    for test in ELSEWHERE.values():
        file, _, name = test.partition("::")
        tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
        functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
        assert not name or name in functions, test
    for page in PAGES:
        text = (ROOT / page).read_text(encoding="utf-8")
        # In the middle of a sentence, where a command may be broken over two lines.
        inline = re.findall(r"(?<!`)`((?:make|docker|helm)\s[^`]+)`(?!`)", text)
        for command in (" ".join(each.split()) for each in inline):
            assert any(command.startswith(begin) for begin in ELSEWHERE), command
