"""The Dockerfile: what can be said of it, and done with it, without a daemon."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from chart import render

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILE = ROOT / "deploy" / "docker" / "Dockerfile"
LINES = DOCKERFILE.read_text().replace("\\\n", " ").splitlines()


def instructions(name: str, stage: str | None = None) -> list[str]:
    """Arguments of an instruction, in one stage or in all."""
    current, found = "", []
    for line in LINES:
        word, _, rest = line.strip().partition(" ")
        if word == "FROM":
            current = rest.split(" AS ")[1]
        elif word == name and stage in (None, current):
            found.append(rest.strip())
    return found


def environment() -> dict[str, str]:
    return dict(re.findall(r"(\w+)=(\S+)", " ".join(instructions("ENV", "base"))))


def copied() -> list[str]:
    """What the build takes from the repository."""
    return [source for each in instructions("COPY", "build") for source in each.split()[:-1]]


def test_hadolint_has_no_finding():
    linter = Path(sys.executable).with_name("hadolint")
    ended = subprocess.run([linter, DOCKERFILE], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_the_process_is_not_root_and_gets_signals_itself():
    user = instructions("USER", "base")[-1]
    assert user == "10001:10001"
    assert render().pod()["securityContext"]["runAsUser"] == int(user.split(":")[0])
    # A shell in between would keep SIGTERM for itself.
    assert instructions("ENTRYPOINT", "base") == ['["proxima"]']
    assert instructions("STOPSIGNAL", "base") == ["SIGTERM"]


def test_caches_lie_in_the_volume_as_in_the_chart():
    assert instructions("VOLUME", "base") == ["/cache"]
    in_chart = {each["name"]: each["value"] for each in render().container()["env"]}
    here = environment()
    assert {name: here[name] for name in in_chart} == in_chart


def test_image_has_a_health_check_and_labels():
    assert "/health/live" in instructions("HEALTHCHECK", "base")[0]
    labels = instructions("LABEL", "base")[0]
    for label in ("title", "description", "licenses", "source", "version", "revision"):
        assert f"org.opencontainers.image.{label}=" in labels


def test_version_is_that_of_package_and_chart():
    (version,) = (each.removeprefix("VERSION=") for each in instructions("ARG", "base") if each.startswith("VERSION="))
    assert f'version = "{version}"' in (ROOT / "pyproject.toml").read_text()
    chart = yaml.safe_load((ROOT / "deploy/helm/proxima/Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (version, version)


def test_docker_is_sent_what_the_build_copies_and_no_more():
    rules = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    assert rules[0] == "*"
    sent = {rule[1:] for rule in rules if rule.startswith("!")}
    assert sent == set(copied())


@pytest.mark.slow
def test_the_build_stage_installs_from_what_is_copied_alone(tmp_path: Path):
    """Its commands, run with its files, in another place than the image's."""
    source, environment = tmp_path / "src", tmp_path / "proxima"
    for name in copied():
        target = source / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, target)
    (torch_index,) = (each.partition("=")[2] for each in instructions("ARG", "build"))
    (install,) = instructions("RUN", "build-cpu")
    command = install.replace("python ", f"{sys.executable} ", 1).replace("/opt/proxima", str(environment))
    installed = subprocess.run(
        command,
        shell=True,
        cwd=source,
        env={"TORCH_INDEX": torch_index, **os.environ},
        check=False,
        capture_output=True,
        text=True,
    )
    assert installed.returncode == 0, installed.stdout + installed.stderr
    shutil.rmtree(source)  # The last stage has only the environment.
    program = environment / "bin" / "proxima"
    for arguments in (["--version"], ["config", "show"], ["bench", "serve", "--help"], ["lab", "run", "--help"]):
        ended = subprocess.run([program, *arguments], check=False, capture_output=True, text=True, cwd=tmp_path)
        assert ended.returncode == 0, ended.stderr
    shutil.rmtree(environment)  # Gigabytes, of which pytest would keep three.


def test_the_environment_does_not_point_back_at_the_sources():
    """They are not in the last stage."""
    for stage in ("build-cpu", "build-cuda"):
        assert all("--no-editable" in each for each in instructions("RUN", stage))
