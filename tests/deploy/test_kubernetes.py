"""Manifests: the published schemas, and everything in them that names something else."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceServicer

from tests.deploy.custom_resources import problems
from tests.deploy.project import ROOT, accepts, documents, pyproject, series
from tidal.commands.serve import STATUS_PORT
from tidal.errors import InvalidArgument
from tidal.server.process import KILL_AFTER_S
from tidal.server.protection import MAX_INPUT_SIZE
from tidal_gateway.api.routes import ROUTES
from tidal_gateway.keys.store import add_key
from tidal_gateway.settings import GatewaySettings, read_settings

FOLDER = "deploy/kubernetes"
PLAIN = ("namespace", "storage", "serving", "network", "availability", "ingress", "autoscaling", "build")
_KUBERNETES = ("1.28", "1.34")
PROBES = {
    "startupProbe": {"path": "/ready", "port": STATUS_PORT},
    "readinessProbe": {"path": "/ready", "port": STATUS_PORT},
    "livenessProbe": {"path": "/live", "port": STATUS_PORT},
}


def load(name: str, kind: str) -> dict[str, Any]:
    (found,) = (each for each in documents(f"{FOLDER}/{name}.yaml") if each["kind"] == kind)
    return found


def gateway_flags(container: dict[str, Any]) -> dict[str, Any]:
    """Settings that a container gives to `tidal gateway`."""
    return {name: value for name, value in accepts(container["args"]).items() if name in GatewaySettings.model_fields}


@pytest.fixture(scope="module")
def deployment() -> dict[str, Any]:
    return load("serving", "Deployment")


@pytest.fixture(scope="module")
def pod(deployment: dict[str, Any]) -> dict[str, Any]:
    return deployment["spec"]["template"]["spec"]


@pytest.fixture(scope="module")
def containers(pod: dict[str, Any]) -> dict[str, Any]:
    return {each["name"]: each for each in pod["containers"]}


@pytest.mark.parametrize("version", _KUBERNETES)
@pytest.mark.parametrize("name", PLAIN)
def test_manifests_fit_the_schemas_of_kubernetes(name: str, version: str) -> None:
    for document in documents(f"{FOLDER}/{name}.yaml"):
        kubernetes_validate.validate(document, version, strict=True)


def test_the_schemas_reject_unknown_fields(deployment: dict[str, Any]) -> None:
    wrong = {**deployment, "spec": {**deployment["spec"], "replica": 1}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, _KUBERNETES[0], strict=True)


def test_commands_are_those_of_the_code(containers: dict[str, Any], pod: dict[str, Any]) -> None:
    served = accepts(containers["triton"]["args"])
    assert served["host"] == "0.0.0.0"
    assert accepts(containers["controller"]["args"])["host"] == "0.0.0.0"
    ports = {port["name"]: port["containerPort"] for each in containers.values() for port in each["ports"]}
    assert ports == {
        "http": served["http_port"],
        "grpc": served["grpc_port"],
        "metrics": served["metrics_port"],
        "status": STATUS_PORT,
        "controller": accepts(containers["controller"]["args"])["metrics_port"],
        "openai": GatewaySettings.model_fields["port"].default,
        "openai-metrics": GatewaySettings.model_fields["metrics_port"].default,
    }
    waits = int(containers["triton"]["lifecycle"]["preStop"]["exec"]["command"][1])
    assert pod["terminationGracePeriodSeconds"] >= waits + served["exit_timeout"] + KILL_AFTER_S


def test_the_server_is_protected(containers: dict[str, Any]) -> None:
    """Kubernetes sets no stack limit: `tidal serve`, the image's entry point, gives the server what it needs."""
    served = [containers["triton"], *load("kserve", "ServingRuntime")["spec"]["containers"]]
    for container in served:
        assert "command" not in container, "the image's entry point starts tidal serve"
        assert container["args"][0] == "serve"
        called = accepts(container["args"])
        assert not called["open_admin"]
        assert called["http_max_input_size"] == MAX_INPUT_SIZE


def test_builds_are_of_the_code_and_on_the_machines_that_serve(pod: dict[str, Any]) -> None:
    job = load("build", "Job")["spec"]["template"]["spec"]
    assert job["nodeSelector"] == pod["nodeSelector"]
    (container,) = job["containers"]
    _, option, line = container["command"]
    assert option == "-c"
    built = accepts(line.replace("*", "spec").removeprefix("tidal ").split())
    assert str(built["repository"]) in [mount["mountPath"] for mount in container["volumeMounts"]]


def test_probes_ask_the_status_endpoint(containers: dict[str, Any]) -> None:
    assert {name: containers["triton"][name]["httpGet"] | {"port": STATUS_PORT} for name in PROBES} == PROBES
    assert all(containers["triton"][name]["httpGet"]["port"] == "status" for name in PROBES)


def test_the_gateway_needs_keys_and_reaches_the_server(
    pod: dict[str, Any], containers: dict[str, Any], tmp_path: Path
) -> None:
    gateway, served = containers["gateway"], accepts(containers["triton"]["args"])
    given = gateway_flags(gateway)
    keys = given.pop("keys")
    with pytest.raises(InvalidArgument, match="there are no keys"):
        read_settings(given, {}, None)
    add_key(tmp_path / keys.name, "me")
    settings = read_settings({**given, "keys": tmp_path / keys.name}, {}, None)
    assert settings.server == (f"127.0.0.1:{served['grpc_port']},status=127.0.0.1:{STATUS_PORT}",)
    (mount,) = gateway["volumeMounts"]
    assert str(keys.parent) == mount["mountPath"]
    (volume,) = (each for each in pod["volumes"] if each["name"] == mount["name"])
    assert volume["secret"] == {"secretName": "tidal-keys"}
    waits = int(gateway["lifecycle"]["preStop"]["exec"]["command"][1])
    assert pod["terminationGracePeriodSeconds"] > waits + settings.drain_s + settings.exit_timeout_s
    paths = {gateway[name]["httpGet"]["path"] for name in ("startupProbe", "livenessProbe")}
    assert paths <= {route.path for route in ROUTES if route.open}


def test_mounted_volumes_exist(pod: dict[str, Any], containers: dict[str, Any]) -> None:
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    used = [mount for each in (*pod["initContainers"], *pod["containers"]) for mount in each["volumeMounts"]]
    assert {mount["name"] for mount in used} == set(volumes)
    places = {mount["mountPath"]: volumes[mount["name"]] for mount in containers["triton"]["volumeMounts"]}
    (runtime,) = re.findall(r"XDG_RUNTIME_DIR=(\S+)", (ROOT / "Dockerfile").read_text())
    assert places["/dev/shm"]["emptyDir"]["medium"] == "Memory"
    assert runtime in places
    assert str(accepts(containers["triton"]["args"])["repository"]) in places
    claim = volumes["published"]["persistentVolumeClaim"]["claimName"]
    assert claim == load("storage", "PersistentVolumeClaim")["metadata"]["name"]


def test_the_controller_finds_the_server(pod: dict[str, Any], containers: dict[str, Any]) -> None:
    assert pod["shareProcessNamespace"] is True
    assert containers["controller"]["volumeMounts"] == containers["triton"]["volumeMounts"]
    assert containers["controller"]["image"] == containers["triton"]["image"]


@pytest.mark.parametrize(("name", "kind"), [("serving", "Deployment"), ("build", "Job")])
def test_pods_run_without_rights(name: str, kind: str) -> None:
    pod = load(name, kind)["spec"]["template"]["spec"]
    context = pod["securityContext"]
    assert context["runAsNonRoot"]
    assert context["seccompProfile"] == {"type": "RuntimeDefault"}
    assert context["runAsUser"] == context["runAsGroup"] == context["fsGroup"] == 1000
    for container in (*pod.get("initContainers", []), *pod["containers"]):
        own = container["securityContext"]
        assert own["allowPrivilegeEscalation"] is False
        assert own["capabilities"] == {"drop": ["ALL"]}
        # Equal in all containers of a pod: else the kubelet gives none of them cores of its own.
        assert container["resources"]["requests"] == container["resources"]["limits"]


def test_kserve_runs_without_rights_too() -> None:
    """KServe has no field for the pod's own context: the container's has to be enough for the namespace's standard."""
    runtime = load("kserve", "ServingRuntime")["spec"]
    for container in runtime["containers"]:
        own = container["securityContext"]
        assert own["runAsNonRoot"] is True
        assert own["runAsUser"] == own["runAsGroup"] == 1000
        assert own["seccompProfile"] == {"type": "RuntimeDefault"}
        assert own["allowPrivilegeEscalation"] is False
        assert own["capabilities"] == {"drop": ["ALL"]}


def test_everything_selects_the_pods_of_the_deployment(deployment: dict[str, Any], containers: dict[str, Any]) -> None:
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert deployment["spec"]["selector"]["matchLabels"] == labels
    ports = {port["name"] for each in containers.values() for port in each["ports"]}
    for service in (each for each in documents(f"{FOLDER}/serving.yaml") if each["kind"] == "Service"):
        assert service["spec"]["selector"] == labels
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports
    policy = load("network", "NetworkPolicy")["spec"]
    assert policy["podSelector"]["matchLabels"] == labels
    assert {port["port"] for rule in policy["ingress"] for port in rule["ports"]} == ports
    monitor = load("monitoring", "PodMonitor")["spec"]
    assert monitor["selector"]["matchLabels"] == labels
    assert [end["port"] for end in monitor["podMetricsEndpoints"]] == ["metrics", "controller", "openai-metrics"]


def test_pods_are_spread_and_disrupted_one_at_a_time(deployment: dict[str, Any], pod: dict[str, Any]) -> None:
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    spread = pod["topologySpreadConstraints"]
    assert [each["topologyKey"] for each in spread] == ["kubernetes.io/hostname", "topology.kubernetes.io/zone"]
    for each in spread:
        assert each["labelSelector"]["matchLabels"] == labels
        # A cluster of one node or zone serves as well.
        assert each["whenUnsatisfiable"] == "ScheduleAnyway"
    budget = load("availability", "PodDisruptionBudget")["spec"]
    assert budget["selector"]["matchLabels"] == labels
    # `minAvailable` of a single pod would keep its node from being drained for ever.
    assert budget["maxUnavailable"] == 1
    assert "minAvailable" not in budget


def test_the_ingress_leads_to_inference_alone() -> None:
    services = {
        each["metadata"]["name"]: each for each in documents(f"{FOLDER}/serving.yaml") if each["kind"] == "Service"
    }
    found: dict[str, list[tuple[str, str]]] = {}
    for ingress in documents(f"{FOLDER}/ingress.yaml"):
        hosts = [host for tls in ingress["spec"]["tls"] for host in tls["hosts"]]
        for rule in ingress["spec"]["rules"]:
            assert rule["host"] in hosts
            for path in rule["http"]["paths"]:
                service = path["backend"]["service"]
                named = [port["name"] for port in services[service["name"]]["spec"]["ports"]]
                assert service["port"]["name"] in named
                found.setdefault(service["port"]["name"], []).append((path["path"], path["pathType"]))
    assert found["openai"] == [("/", "Prefix")]
    assert sorted(found["http"]) == [("/v2", "Exact"), ("/v2/health", "Prefix"), ("/v2/models", "Prefix")]
    methods = {path.removeprefix("/inference.GRPCInferenceService/") for path, kind in found["grpc"] if kind == "Exact"}
    assert len(methods) == len(found["grpc"])
    assert {"ModelInfer", "ModelStreamInfer"} <= methods
    assert methods <= set(dir(GRPCInferenceServiceServicer))
    assert not any(re.search("Repository|SharedMemory|Trace|Log", method) for method in methods)


def test_each_ingress_limits_bodies_and_waits_for_answers(containers: dict[str, Any]) -> None:
    ingresses = {
        ingress["metadata"]["name"]: {
            name.removeprefix("nginx.ingress.kubernetes.io/"): value
            for name, value in ingress["metadata"]["annotations"].items()
        }
        for ingress in documents(f"{FOLDER}/ingress.yaml")
    }
    openai = ingresses.pop("tidal-openai")
    assert {each["proxy-body-size"] for each in ingresses.values()} == {"4m"}
    gateway = read_settings({**gateway_flags(containers["gateway"]), "keys": None, "open": True}, {}, None)
    assert openai["proxy-body-size"] == f"{gateway.max_body_bytes >> 20}m"
    assert int(openai["proxy-read-timeout"]) > gateway.timeout_s
    # A body takes up to 55 times its size in memory while it is read; the gateway itself takes less than half a GiB.
    assert containers["gateway"]["resources"]["limits"]["memory"] == "1Gi"
    assert 55 * gateway.max_body_bytes < 1 << 29
    page = (ROOT / "docs/how-to/run-behind-nginx.md").read_text()
    on_page = dict(re.findall(r"^ *(client_max_body_size|proxy_read_timeout) (\d+)\w;$", page, re.MULTILINE))
    assert int(on_page["client_max_body_size"]) << 20 == read_settings({"open": True}, {}, None).max_body_bytes
    assert on_page["proxy_read_timeout"] == openai["proxy-read-timeout"]


def test_the_autoscaler_scales_on_the_recorded_series(deployment: dict[str, Any]) -> None:
    scaler = load("autoscaling", "HorizontalPodAutoscaler")["spec"]
    assert scaler["scaleTargetRef"]["name"] == deployment["metadata"]["name"]
    assert "replicas" not in deployment["spec"]
    (metric,) = scaler["metrics"]
    (adapter,) = documents(f"{FOLDER}/prometheus-adapter.yaml")
    (rule,) = adapter["rules"]["custom"]
    (recorded,) = load("monitoring", "PrometheusRule")["spec"]["groups"][0]["rules"]
    assert metric["pods"]["metric"]["name"] == rule["name"]["as"] == recorded["record"]
    assert rule["seriesQuery"].startswith(f"{recorded['record']}{{")
    (pattern,) = re.findall(r'__name__=~"(.*)"', recorded["expr"])
    waiting = {name for name in series() if re.search(r"_waiting_(queries|generations)$", name)}
    assert {name for name in series() if re.fullmatch(pattern, name)} == waiting


def test_named_files_and_versions_exist() -> None:
    (kustomization,) = documents(f"{FOLDER}/kustomization.yaml")
    for name in kustomization["resources"]:
        assert (ROOT / FOLDER / name).is_file()
    version = pyproject()["version"]
    assert kustomization["images"] == [{"name": "tidal", "newTag": version}]
    for name in ("build", "kserve", "cluster"):
        text = (ROOT / FOLDER / f"{name}.yaml").read_text()
        assert set(re.findall(r"image: tidal[a-z-]*:(\S+)", text)) == {version}


def test_the_kserve_runtime_serves_the_model_format_and_volume() -> None:
    runtime, service = load("kserve", "ServingRuntime"), load("kserve", "InferenceService")
    (container,) = runtime["spec"]["containers"]
    served = accepts(container["args"])
    assert str(served["repository"]) == "/mnt/models"
    (port,) = container["ports"]
    assert port["containerPort"] == served["http_port"] == 8080
    assert {name: container[name]["httpGet"] for name in PROBES} == PROBES
    model = service["spec"]["predictor"]["model"]
    assert model["runtime"] == runtime["metadata"]["name"]
    assert model["modelFormat"]["name"] in [each["name"] for each in runtime["spec"]["supportedModelFormats"]]
    assert model["protocolVersion"] in runtime["spec"]["protocolVersions"]
    claim = load("storage", "PersistentVolumeClaim")["metadata"]["name"]
    assert model["storageUri"] == f"pvc://{claim}"
    assert runtime["spec"]["annotations"]["prometheus.kserve.io/port"] == str(served["metrics_port"])


@pytest.mark.parametrize("name", ["monitoring", "kserve"])
def test_custom_resources_fit_the_published_types(name: str) -> None:
    for document in documents(f"{FOLDER}/{name}.yaml"):
        assert problems(document, document["kind"]) == []


def test_the_types_of_custom_resources_reject_unknown_fields() -> None:
    runtime, monitor = load("kserve", "ServingRuntime"), load("monitoring", "PodMonitor")
    runtime["spec"]["supportedModelFormats"][0] |= {"autoSelect": "yes", "versions": []}
    assert problems(runtime, "ServingRuntime") == [
        "ServingRuntime.spec.supportedModelFormats[0].autoSelect is 'yes', not bool",
        "ServingRuntime.spec.supportedModelFormats[0].versions is unknown",
    ]
    monitor["spec"]["podMetricsEndpoints"][0]["ports"] = "metrics"
    del monitor["spec"]["selector"]
    assert problems(monitor, "PodMonitor") == [
        "PodMonitor.spec has no selector",
        "PodMonitor.spec.podMetricsEndpoints[0].ports is unknown",
    ]


def test_the_pod_of_the_runtime_of_kserve_fits_the_schemas_of_kubernetes() -> None:
    spec = load("kserve", "ServingRuntime")["spec"]
    pod = {"containers": spec["containers"], "volumes": spec["volumes"]}
    document = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "tidal"}, "spec": pod}
    kubernetes_validate.validate(document, _KUBERNETES[-1], strict=True)
