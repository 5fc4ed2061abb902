"""The Helm chart: what it renders, for the defaults and for each file of ci/, and what it refuses."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import helm_python as helm
import jsonschema
import pytest
import yaml
from chart import CHART, Object, Rendered, check_kubernetes, ci_files, render, values_of
from chart_crds import SPECS

from proxima_config.layering import load_settings

ERROR = 3
FILES = [pytest.param(path, id=path.name.removesuffix("-values.yaml")) for path in ci_files()]


@functools.cache
def _rendered(path: Path) -> Rendered:
    return render(values_of(path))


def ci(name: str) -> Rendered:
    return _rendered(CHART / "ci" / f"{name}-values.yaml")


@pytest.mark.parametrize("path", FILES)
def test_helm_lints_it_without_a_finding(path: Path):
    report = helm.lint(CHART, values_of(path), strict=True)
    assert report["total_charts_linted"] == 1
    assert report["errors"] == []
    assert [each["error"] for each in report["messages"] if each["severity"] > 1] == []


@pytest.mark.parametrize("path", FILES)
def test_every_object_fits_its_schema(path: Path):
    objects = _rendered(path).objects
    assert len(objects) >= 3
    for each in objects:
        if schema := SPECS.get((each["apiVersion"], each["kind"])):
            jsonschema.validate(each["spec"], schema)
        else:
            check_kubernetes(each)
    # Foreign kinds hold pods of Kubernetes.
    for group in _rendered(path).all("LeaderWorkerSet"):
        for pod in _pods([group]):
            check_kubernetes({"apiVersion": "v1", "kind": "Pod", **pod})


@pytest.mark.parametrize("path", FILES)
def test_names_are_unique_and_labelled(path: Path):
    objects = [each for each in _rendered(path).objects if each["metadata"]["name"] != "llm-more"]
    names = [(each["kind"], each["metadata"]["name"]) for each in objects]
    assert len(names) == len(set(names))
    assert all(each["metadata"]["labels"]["app.kubernetes.io/instance"] == "llm" for each in objects)


@pytest.mark.parametrize("path", FILES)
def test_the_gateway_takes_the_settings_that_it_renders(path: Path, tmp_path: Path):
    file = tmp_path / "proxima.yaml"
    file.write_text(_rendered(path).one("ConfigMap", "llm-proxima")["data"]["proxima.yaml"])
    assert load_settings(environ={}, config_file=file).settings.server.host == "0.0.0.0"


@pytest.mark.parametrize("path", FILES)
def test_selectors_find_the_pods_that_they_mean(path: Path):
    rendered = _rendered(path)
    pods = [pod["metadata"]["labels"] for pod in _pods(rendered.objects)]
    for service in rendered.all("Service"):
        found = [labels for labels in pods if service["spec"]["selector"].items() <= labels.items()]
        component = "router" if service["metadata"]["name"].endswith("-router") else "server"
        assert [labels["app.kubernetes.io/component"] for labels in found] == [component]
    for budget in rendered.all("PodDisruptionBudget"):
        wanted = budget["spec"]["selector"]["matchLabels"].items()
        assert sum(wanted <= labels.items() for labels in pods) == 1


@pytest.mark.parametrize("path", FILES)
def test_every_pod_is_hardened_and_has_no_service_links(path: Path):
    for pod in _pods(_rendered(path).objects):
        spec = pod["spec"]
        assert spec["enableServiceLinks"] is False
        assert spec["securityContext"]["runAsNonRoot"] is True
        ours = [each for each in spec["containers"] if each["name"] != "beside"]
        for container in ours:
            context = container["securityContext"]
            assert context["readOnlyRootFilesystem"] is True
            assert context["allowPrivilegeEscalation"] is False
            assert context["capabilities"] == {"drop": ["ALL"]}


OPTIONAL = [
    *("Ingress", "HTTPRoute", "HorizontalPodAutoscaler", "ScaledObject", "PersistentVolumeClaim", "LeaderWorkerSet"),
    *("PodMonitor", "ServiceMonitor", "PrometheusRule", "InferencePool", "InferenceObjective", "Role", "Job"),
]


def test_what_is_not_asked_for_renders_nothing():
    assert ci("default").kinds().isdisjoint(OPTIONAL)
    assert ci("nothing-optional").kinds() == {"Deployment", "Service", "ConfigMap"}


@pytest.mark.parametrize("kind", OPTIONAL)
def test_each_optional_kind_has_a_file_of_values(kind: str):
    assert any(kind in _rendered(path).kinds() for path in ci_files())


@pytest.mark.parametrize(
    ("values", "seconds"),
    [
        pytest.param({}, 10 + 120 + 15, id="defaults"),
        pytest.param({"config": {"lifecycle": {"drain_s": 600.5}}}, 626, id="rounded_up"),
        pytest.param({"shutdown": {"preStopSeconds": 0}}, 135, id="no_prestop"),
        pytest.param({"shutdown": {"terminationGracePeriodSeconds": 131}}, 131, id="just_enough"),
        pytest.param({"config": {"lifecycle": {"drain_s": None}}}, 10 + 25 + 15, id="the_gateways_own_default"),
    ],
)
def test_grace_period_follows_from_prestop_and_drain(values: Object, seconds: int):
    assert render(values).pod()["terminationGracePeriodSeconds"] == seconds


ROUTE = {"enabled": True, "parentRefs": [{"name": "public"}], "hostnames": ["llm.example.com"]}


@pytest.mark.parametrize(
    ("values", "says"),
    [
        pytest.param({"shutdown": {"terminationGracePeriodSeconds": 130}}, "raise it, or leave it empty", id="grace"),
        pytest.param({"replicaCuont": 2}, "replicaCuont", id="unknown_key"),
        pytest.param({"gpu": {"cuont": 1}}, "cuont", id="unknown_nested_key"),
        pytest.param({"config": {"server": {"prot": 1}}}, "prot", id="unknown_setting"),
        pytest.param({"config": {"engine": {"max_num_sqes": 1}}}, "max_num_sqes", id="unknown_engine_flag"),
        pytest.param({"config": {"lifecycle": {"drain_s": -1}}}, "drain_s", id="setting_out_of_bounds"),
        pytest.param({"config": {"auth": {"api_keys": "me=secret"}}}, "api_keys", id="keys_in_values"),
        pytest.param({"config": {"admin": {"token": "secret"}}}, "token", id="token_in_values"),
        pytest.param({"ingress": {"enabled": True}}, "ingress.host", id="ingress_without_host"),
        pytest.param({"httpRoute": ROUTE | {"hostnames": []}}, "httpRoute.hostnames", id="route_without_host"),
        pytest.param(
            {"ingress": {"enabled": True}, "httpRoute": ROUTE | {"hostnames": []}}, "host", id="both_without_host"
        ),
        pytest.param({"httpRoute": ROUTE | {"parentRefs": []}}, "httpRoute.parentRefs", id="route_without_gateway"),
        pytest.param({"httpRoute": ROUTE | {"canary": {"weight": 101}}}, "weight", id="weight"),
        pytest.param(
            {"autoscaling": {"hpa": {"enabled": True}, "keda": {"enabled": True, "prometheus": "http://p"}}},
            "contradict",
            id="two_autoscalers",
        ),
        pytest.param({"autoscaling": {"minReplicas": 5, "maxReplicas": 2}}, "minReplicas", id="min_above_max"),
        pytest.param({"autoscaling": {"minReplicas": 0}}, "minReplicas", id="scale_to_zero"),
        pytest.param({"autoscaling": {"keda": {"enabled": True}}}, "keda.prometheus", id="keda_without_prometheus"),
        pytest.param({"metricGate": {"enabled": True}}, "metricGate.prometheus", id="gate_without_prometheus"),
        pytest.param(
            {"podMonitor": {"enabled": True}, "serviceMonitor": {"enabled": True}}, "twice", id="two_monitors"
        ),
        pytest.param({"inferencePool": {"enabled": True}}, "endpointPicker", id="pool_without_picker"),
        pytest.param({"router": {"enabled": True}}, "router.image", id="router_without_image"),
        pytest.param({"multiNode": {"enabled": True}}, "gpu.count", id="nodes_without_gpus"),
        pytest.param(
            {"multiNode": {"enabled": True}, "gpu": {"count": 8}, "config": {"model": "a/b", "preset": "gpu"}},
            "config.preset",
            id="workers_and_preset",
        ),
        pytest.param(
            {"modelDownload": {"enabled": True}, "config": {"model": "/models/mine"}}, "folder", id="download_a_folder"
        ),
        pytest.param({"config": {"server": {"port": 8001}}}, "are the same", id="one_port_for_two"),
        pytest.param({"image": {"digest": "latest"}}, "digest", id="digest"),
        pytest.param({"rollout": {"strategy": "blue"}}, "strategy", id="strategy"),
    ],
)
def test_bad_values_are_refused_by_name(values: Object, says: str):
    with pytest.raises(helm.HelmError) as refused:
        render(values)
    assert says in str(refused.value)


def test_numbers_reach_the_settings_as_they_were_written():
    assert ci("gpu").settings()["engine"]["kv_cache_memory_bytes"] == 17179869184


def test_gpus_are_limited_and_the_image_is_for_them():
    container = ci("gpu").container()
    assert container["resources"]["limits"] == {"memory": "24Gi", "nvidia.com/gpu": 1}
    assert container["image"] == "proxima-gateway:0.1.0-cuda"
    assert ci("extras").container()["image"].startswith("proxima-gateway@sha256:")


def test_secrets_are_mounted_where_the_settings_look():
    rendered = ci("secrets")
    settings, container = rendered.settings(), rendered.container()
    mounts = {each["mountPath"] for each in container["volumeMounts"]}
    for path in (settings["auth"]["api_keys_file"], settings["admin"]["token_file"]):
        assert str(Path(path).parent) in mounts
    token = next(each for each in container["env"] if each["name"] == "HF_TOKEN")
    assert token["valueFrom"]["secretKeyRef"] == {"name": "hf", "key": "HF_TOKEN"}


def test_everything_that_is_written_goes_to_a_mounted_folder():
    container = ci("default").container()
    mounts = {each["mountPath"] for each in container["volumeMounts"] if not each.get("readOnly")}
    folders = [Path(each["value"]) for each in container["env"] if each["value"].startswith("/")]
    assert folders
    assert all(any(folder.is_relative_to(mount) for mount in mounts) for folder in folders)


def test_a_change_of_the_settings_replaces_the_pods():
    first, second = (
        each.one("Deployment")["spec"]["template"]["metadata"]["annotations"]["checksum/config"]
        for each in (ci("default"), ci("native-scheduler"))
    )
    assert first != second


def test_rollback_to_the_native_scheduler_is_one_line():
    assert ci("native-scheduler").settings()["scheduler"] == {"kind": "native"}


@pytest.mark.parametrize(
    ("strategy", "rolling"),
    [
        pytest.param("surge", {"maxSurge": 1, "maxUnavailable": 0}, id="spare_gpu"),
        pytest.param("replace", {"maxSurge": 0, "maxUnavailable": 1}, id="no_spare_gpu"),
        pytest.param("recreate", None, id="volume_of_one_node"),
    ],
)
def test_rollouts_with_and_without_a_spare_gpu(strategy: str, rolling: Object | None):
    spec = render({"rollout": {"strategy": strategy}}).one("Deployment")["spec"]
    assert spec["strategy"].get("rollingUpdate") == rolling
    # A model that loads for long is no failed rollout.
    startup = spec["template"]["spec"]["containers"][0]["startupProbe"]
    assert spec["progressDeadlineSeconds"] > startup["periodSeconds"] * startup["failureThreshold"]


def test_probes_ask_their_own_endpoints_on_the_admin_port():
    container = ci("default").container()
    assert {
        name: container[name]["httpGet"]["path"] for name in ("startupProbe", "readinessProbe", "livenessProbe")
    } == {
        "startupProbe": "/health/startup",
        "readinessProbe": "/health/ready",
        "livenessProbe": "/health/live",
    }
    assert container["startupProbe"]["httpGet"]["port"] == "admin"
    one_port = ci("one-port").container()
    assert one_port["livenessProbe"]["httpGet"] == {"path": "/health/live", "port": "http", "scheme": "HTTPS"}
    assert [each["name"] for each in one_port["ports"]] == ["http"]


def test_the_admin_port_is_closed_to_other_namespaces_and_not_in_the_service():
    rendered = ci("default")
    assert [each["name"] for each in rendered.one("Service")["spec"]["ports"]] == ["http"]
    api, admin = rendered.one("NetworkPolicy")["spec"]["ingress"]
    assert "from" not in api
    assert admin["ports"] == [{"port": "admin"}]
    assert admin["from"] == [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}]
    nobody = render({"networkPolicy": {"adminFrom": []}}).one("NetworkPolicy")["spec"]["ingress"][1]
    assert nobody["from"] == [{"podSelector": {}}], "no peers must not mean everybody"


def test_streams_are_not_cut():
    rule = ci("http-route").one("HTTPRoute")["spec"]["rules"][0]
    assert rule["timeouts"] == {"request": "0s", "backendRequest": "0s"}
    annotations = ci("ingress").one("Ingress")["metadata"]["annotations"]
    assert annotations["nginx.ingress.kubernetes.io/proxy-buffering"] == "off"


def test_canary_gets_its_share_of_the_route():
    backends = ci("canary-stable").one("HTTPRoute")["spec"]["rules"][0]["backendRefs"]
    assert [(each["name"], each["weight"]) for each in backends] == [("llm-proxima", 90), ("llm-canary-proxima", 10)]


def test_autoscalers_own_the_number_of_replicas():
    for name in ("hpa", "keda"):
        assert "replicas" not in ci(name).one("Deployment")["spec"]


def test_pool_and_router_stand_between_route_and_pods():
    backend = ci("inference-pool").one("HTTPRoute")["spec"]["rules"][0]["backendRefs"][0]
    pool = ci("inference-pool").one("InferencePool")
    assert (backend["kind"], backend["name"]) == ("InferencePool", pool["metadata"]["name"])
    rule = ci("router").one("Ingress")["spec"]["rules"][0]
    assert rule["http"]["paths"][0]["backend"]["service"]["name"] == "llm-proxima-router"


@pytest.mark.parametrize("executor", ["mp", "ray"])
def test_a_group_of_nodes_has_a_leader_that_serves_and_workers_that_join_it(executor: str):
    rendered = ci(f"multi-node-{executor}")
    template = rendered.one("LeaderWorkerSet")["spec"]["leaderWorkerTemplate"]
    leader, worker = (template[name]["spec"]["containers"][0] for name in ("leaderTemplate", "workerTemplate"))
    assert "proxima" in leader["command"]
    assert "readinessProbe" in leader
    assert "readinessProbe" not in worker
    assert any("$(LWS_LEADER_ADDRESS)" in part for part in worker["command"])
    assert rendered.settings()["engine"]["distributed_executor_backend"] == executor
    # Workers stay until the leader has drained.
    grace = template["leaderTemplate"]["spec"]["terminationGracePeriodSeconds"]
    assert worker["lifecycle"]["preStop"]["sleep"]["seconds"] == grace - 5


def test_workers_get_the_leaders_engine_flags_under_vllms_names():
    data = ci("multi-node-mp").one("ConfigMap", "llm-proxima")["data"]
    assert yaml.safe_load(data["worker.yaml"]) == {
        "model": "deepseek-ai/DeepSeek-R1",
        "distributed-executor-backend": "mp",
        "pipeline-parallel-size": 2,
        "tensor-parallel-size": 8,
        "trust-remote-code": True,
    }


def test_init_container_fetches_the_model_into_the_cache():
    hub = render({"modelDownload": {"enabled": True, "revision": "v1"}, "config": {"model": "org/name"}})
    assert hub.pod()["initContainers"][0]["command"] == ["hf", "download", "org/name", "--revision", "v1"]
    embedded = render({"modelDownload": {"enabled": True}}).pod()["initContainers"][0]
    assert embedded["command"] == ["proxima", "model", "prepare", "smollm2-135m"]
    assert {"name": "cache", "mountPath": "/cache"} in embedded["volumeMounts"]


def test_notes_print_a_call_that_fits_the_release():
    assert "https://llm.example.com" in ci("ingress").notes
    assert "port-forward service/llm-proxima 8000:8000" in ci("default").notes
    assert '"model": "smollm2-135m"' in ci("default").notes
    assert "Authorization: Bearer" in ci("secrets").notes
    assert "Rollouts need 4 spare GPU(s)" in render({"gpu": {"count": 4}}).notes


def test_objects_of_ones_own_are_templates():
    assert ci("extras").one("ConfigMap", "llm-more")["data"] == {"answer": "42"}


def test_spreading_constraints_find_the_pods():
    (constraint,) = ci("extras").pod()["topologySpreadConstraints"]
    assert constraint["labelSelector"]["matchLabels"]["app.kubernetes.io/component"] == "server"


def test_alerts_carry_labels_for_routing():
    groups = ci("alerts-and-dashboard").one("PrometheusRule")["spec"]["groups"]
    labels = [rule["labels"] for group in groups for rule in group["rules"] if "alert" in rule]
    assert labels
    assert all(each["team"] == "serving" and each["severity"] for each in labels)


def test_the_chart_can_be_packaged(tmp_path: Path):
    archive = helm.package(CHART, destination=tmp_path)
    with helm.Chart.load(archive) as chart:
        assert chart.render(name="llm").keys() >= {"proxima/templates/deployment.yaml"}


def _pods(objects: list[Object]) -> list[dict[str, Any]]:
    """Metadata and spec of every pod that the objects make."""
    found = []
    for each in objects:
        spec = each.get("spec", {})
        templates = [spec.get("template"), *spec.get("leaderWorkerTemplate", {}).values()]
        templates += [each] if each["kind"] == "Pod" else []
        found += [{key: each[key] for key in ("metadata", "spec")} for each in templates if isinstance(each, dict)]
    return found
