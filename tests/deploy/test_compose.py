"""docker-compose.yml and what it mounts."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import compose_spec
import pytest
import yaml

from proxima_config.layering import load_settings

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docker-compose.yml").read_text()
_VARIABLE = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}")


def _filled(environment: dict[str, str]) -> dict[str, Any]:
    """The file with variables filled in after it is parsed, as Compose does it; figures become figures."""

    def fill(node: Any) -> Any:
        if isinstance(node, dict):
            return {key: fill(value) for key, value in node.items()}
        if isinstance(node, list):
            return [fill(value) for value in node]
        if not isinstance(node, str):
            return node
        text = _VARIABLE.sub(lambda match: environment.get(match[1]) or match[2] or "", node)
        return int(text) if text.isdigit() and _VARIABLE.fullmatch(node) else text

    return dict(fill(yaml.safe_load(TEXT)))


def test_compose_takes_the_file():
    understood = compose_spec.PyCompose.from_yaml(yaml.safe_dump(_filled({}))).to_spec()
    assert understood.services.keys() == _filled({})["services"].keys()


def test_the_parser_refuses_what_compose_would_refuse():
    with pytest.raises(Exception, match="prots"):
        compose_spec.PyCompose.from_yaml("services: {a: {image: b, prots: []}}").to_spec()


def test_the_default_is_one_gateway_on_the_cpu_beside_prometheus_and_grafana():
    services = _filled({})["services"]
    assert {name for name, service in services.items() if "profiles" not in service} == {
        *("gateway", "prometheus", "grafana")
    }
    assert services["gateway"]["scale"] == 1
    assert services["gateway-gpu"]["profiles"] == ["gpu"]


def test_every_variable_is_in_the_example_with_its_default():
    example = dict(re.findall(r"^#?([A-Z_]+)=(.*)$", (ROOT / ".env.example").read_text(), re.MULTILINE))
    used = {name: default or "" for name, default in _VARIABLE.findall(TEXT)}
    assert used.keys() <= example.keys()
    differing = {name for name, default in used.items() if default and example[name] != default}
    # The example says how to choose the other gateway.
    assert differing == {"PROXIMA_CPU_GATEWAYS"}


@pytest.mark.parametrize("service", ["gateway", "gateway-gpu"])
def test_the_gateway_takes_its_environment(service: str):
    environment = {name: str(value) for name, value in _filled({})["services"][service]["environment"].items()}
    settings = load_settings(environ=environment).settings
    assert settings.model == "smollm2-135m"
    assert settings.scheduler.kind == "proxima"


@pytest.mark.parametrize("service", ["gateway", "gateway-gpu"])
def test_docker_waits_for_the_drain(service: str):
    described = _filled({})["services"][service]
    grace_s = int(described["stop_grace_period"].removesuffix("s"))
    assert grace_s >= int(described["environment"]["PROXIMA__LIFECYCLE__DRAIN_S"]) + 15


def test_ports_are_for_this_machine_only():
    for service in _filled({})["services"].values():
        assert all(port.startswith("127.0.0.1:") for port in service["ports"])


def test_what_is_mounted_is_there():
    mounts = [each for service in _filled({})["services"].values() for each in service["volumes"]]
    folders = [each.split(":")[0] for each in mounts if each.startswith("./")]
    assert folders
    assert all((ROOT / folder).exists() for folder in folders)


def test_prometheus_and_grafana_find_what_they_watch():
    services = _filled({})["services"]
    scrape = yaml.safe_load((ROOT / "deploy/compose/prometheus.yml").read_text())
    (target,) = scrape["scrape_configs"][0]["static_configs"][0]["targets"]
    name, port = target.split(":")
    for service in ("gateway", "gateway-gpu"):
        assert name in services[service]["networks"]["default"]["aliases"]
        assert services[service]["ports"][0].endswith(f":{port}")
    source = yaml.safe_load((ROOT / "deploy/compose/grafana/datasources/prometheus.yaml").read_text())["datasources"][0]
    assert source["url"] == "http://prometheus:9090"
    folder = yaml.safe_load((ROOT / "deploy/compose/grafana/dashboards/proxima.yaml").read_text())["providers"][0]
    boards = [each.split(":")[1] for each in services["grafana"]["volumes"] if "dashboard.json" in each]
    assert [str(Path(board).parent) for board in boards] == [folder["options"]["path"]]
