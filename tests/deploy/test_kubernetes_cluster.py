"""The RayCluster and what belongs to it: KubeRay's types, commands of the code, ports, secrets and the end of a pod."""

from __future__ import annotations

import copy
import re
import shlex
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest

from tests.deploy import custom_resources
from tests.deploy.project import ROOT, accepts, documents
from tests.deploy.ray_cluster import KUBERNETES, pods, problems
from tidal.cluster.connection import environment
from tidal.cluster.records import _END_S
from tidal.commands.serve import STATUS_PORT
from tidal.repository.cluster_table import check_node_name
from tidal.server.process import KILL_AFTER_S

FILE = "deploy/kubernetes/cluster.yaml"
# `ray.io/cluster`, `ray.io/node-type` and others are given by KubeRay to each pod, whatever its template has.
NODES = {"ray.io/cluster": "tidal-cluster", "ray.io/node-type": "worker"}
# Calls to the agent, and connecting to Ray, when a node leaves.
_LEAVE_S = 30.0


def load(kind: str, name: str = "tidal-cluster") -> dict[str, Any]:
    (found,) = (each for each in documents(FILE) if each["kind"] == kind and each["metadata"]["name"] == name)
    return found


@pytest.fixture
def cluster() -> dict[str, Any]:
    return load("RayCluster")


@pytest.fixture
def head(cluster: dict[str, Any]) -> dict[str, Any]:
    return next(pods(cluster))


@pytest.fixture
def node(cluster: dict[str, Any]) -> dict[str, Any]:
    _, found = pods(cluster)
    return found


def container(pod: dict[str, Any], name: str) -> dict[str, Any]:
    (found,) = (each for each in (*pod.get("initContainers", []), *pod["containers"]) if each["name"] == name)
    return found


def ports(of: dict[str, Any]) -> dict[str, int]:
    return {port["name"]: port["containerPort"] for port in of["ports"]}


def test_documents_fit_the_types(cluster: dict[str, Any]) -> None:
    assert problems(cluster) == []
    for document in documents(FILE):
        if document["kind"] == "PodMonitor":
            assert custom_resources.problems(document, "PodMonitor") == []
        elif document["kind"] != "RayCluster":
            for version in KUBERNETES:
                kubernetes_validate.validate(document, version, strict=True)


def test_the_types_reject_unknown_fields_and_pods(cluster: dict[str, Any]) -> None:
    wrong = copy.deepcopy(cluster)
    del wrong["spec"]["headGroupSpec"]["rayStartParams"]
    wrong["spec"]["workerGroupSpecs"][0]["replica"] = 2
    first, second = sorted(problems(wrong))
    assert first == "$.spec.headGroupSpec: 'rayStartParams' is a required property"
    assert second.startswith("$.spec.workerGroupSpecs[0]: Additional properties are not allowed ('replica' was")
    _, pod = pods(cluster)
    pod["containers"][0]["livenessProb"] = {}
    assert len(problems(cluster)) == len(KUBERNETES)


def test_kuberay_leaves_commands_and_probes_as_they_are(cluster: dict[str, Any]) -> None:
    """KubeRay replaces commands without the annotation, and adds probes of Ray's dashboard where there are none."""
    assert cluster["metadata"]["annotations"] == {"ray.io/overwrite-container-cmd": "true"}
    for pod in pods(cluster):
        first = pod["containers"][0]
        assert {"readinessProbe", "livenessProbe"} <= set(first)
        # It adds a port `metrics` to the first container, and a volume at /dev/shm, where there is none.
        assert "metrics" in ports(first)
        assert "/dev/shm" in [mount["mountPath"] for mount in first["volumeMounts"]]
        assert "command" not in first, "the image's entry point is tidal"


def test_commands_are_those_of_the_code(cluster: dict[str, Any], head: dict[str, Any], node: dict[str, Any]) -> None:
    started = accepts(container(head, "head")["args"])
    joined = accepts(container(node, "agent")["args"])
    served = accepts(container(node, "triton")["args"])
    assert started["block"]
    assert joined["block"]
    assert started["token_file"] == joined["token_file"]
    assert not started["insecure"]
    # KubeRay's Service of the head has the ports of the head's container.
    assert joined["address"] == f"{cluster['metadata']['name']}-head-svc:{started['port']}"
    assert ports(container(head, "head")) == {"gcs-server": started["port"], "metrics": started["metrics_port"]}
    assert ports(container(node, "agent")) == {"metrics": joined["metrics_port"]}
    assert ports(container(node, "triton")) == {
        "http": served["http_port"],
        "grpc": served["grpc_port"],
        "server-metrics": served["metrics_port"],
        "status": STATUS_PORT,
    }
    # The names of a pod's containers are in one network: each port is free.
    used = [*ports(container(node, "triton")).values(), *ports(container(node, "agent")).values()]
    assert len(set(used)) == len(used)


def test_addresses_are_those_of_the_pod(head: dict[str, Any], node: dict[str, Any]) -> None:
    for each in (container(head, "head"), container(node, "agent")):
        fields = {v["name"]: v["valueFrom"]["fieldRef"]["fieldPath"] for v in each["env"] if "valueFrom" in v}
        called = accepts(each["args"])
        assert fields[called["host"].strip("$()")] == "status.podIP"
        assert fields.get(str(called.get("name")).strip("$()"), "metadata.name") == "metadata.name"
    # Other nodes reach the server at the pod's address.
    assert accepts(container(node, "triton")["args"])["host"] == "0.0.0.0"
    assert check_node_name("tidal-cluster-nodes-worker-x7k2p")


def test_all_have_the_same_secret(head: dict[str, Any], node: dict[str, Any]) -> None:
    secrets = []
    for pod, name in ((head, "head"), (node, "agent")):
        each = container(pod, name)
        file = Path(str(accepts(each["args"])["token_file"]))
        (mount,) = (m for m in each["volumeMounts"] if m["mountPath"] == str(file.parent))
        assert mount["readOnly"]
        (volume,) = (v for v in pod["volumes"] if v["name"] == mount["name"])
        # Readable by the group of the pod alone.
        assert volume["secret"]["defaultMode"] == 0o440
        secrets.append((volume["secret"]["secretName"], file))
    assert secrets[0] == secrets[1]
    (name, file) = secrets[0]
    assert f"create secret generic {name} --from-literal {file.name}=" in (ROOT / FILE).read_text()
    # KubeRay copies the variables of the agent to its container that waits for the head.
    plain = {v["name"]: v["value"] for v in container(node, "agent")["env"] if "value" in v}
    expected = environment(file)
    assert plain == {name: expected[name] for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN_PATH")}


def test_the_server_is_a_sidecar_that_the_agent_finds(node: dict[str, Any]) -> None:
    triton, agent = container(node, "triton"), container(node, "agent")
    assert triton["restartPolicy"] == "Always"
    assert "startupProbe" in triton, "the agent starts once the server is ready"
    assert [each["name"] for each in node["initContainers"]] == ["models", "triton"]
    assert node["shareProcessNamespace"] is True
    assert triton["image"] == agent["image"]
    assert all(mount in agent["volumeMounts"] for mount in triton["volumeMounts"])
    (runtime,) = re.findall(r"XDG_RUNTIME_DIR=(\S+)", (ROOT / "Dockerfile").read_text())
    places = [mount["mountPath"] for mount in triton["volumeMounts"]]
    assert {runtime, "/dev/shm", str(accepts(triton["args"])["repository"])} == set(places)
    for each in (triton["readinessProbe"], agent["readinessProbe"]):
        assert each["httpGet"]["path"] == "/ready"
        assert each["httpGet"]["port"] in ("status", STATUS_PORT)


def test_a_node_drains_before_its_pod_ends(node: dict[str, Any]) -> None:
    agent, triton = container(node, "agent"), container(node, "triton")
    shell, option, line = agent["lifecycle"]["preStop"]["exec"]["command"]
    assert (shell, option) == ("/bin/sh", "-c")
    drained = accepts(shlex.split(line)[1:])
    assert drained["node"] == "$POD_NAME"
    assert accepts(agent["args"])["name"] == "$(POD_NAME)"
    serving = accepts(triton["args"])["exit_timeout"] + KILL_AFTER_S
    assert node["terminationGracePeriodSeconds"] >= drained["timeout"] + _LEAVE_S + _END_S + serving


def test_mounted_volumes_exist(head: dict[str, Any], node: dict[str, Any]) -> None:
    for pod in (head, node):
        containers = (*pod.get("initContainers", []), *pod["containers"])
        used = {mount["name"] for each in containers for mount in each["volumeMounts"]}
        assert used == {volume["name"] for volume in pod["volumes"]}
    (claim,) = (v["persistentVolumeClaim"]["claimName"] for v in node["volumes"] if v["name"] == "published")
    (storage,) = documents("deploy/kubernetes/storage.yaml")
    assert claim == storage["metadata"]["name"]


def test_pods_run_without_rights_and_have_cores_of_their_own(cluster: dict[str, Any]) -> None:
    for pod in pods(cluster):
        context = pod["securityContext"]
        assert context["runAsNonRoot"]
        assert context["runAsUser"] == context["runAsGroup"] == context["fsGroup"] == 1000
        assert context["seccompProfile"] == {"type": "RuntimeDefault"}
        assert pod["automountServiceAccountToken"] is False
        for each in (*pod.get("initContainers", []), *pod["containers"]):
            assert each["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
            assert each["resources"]["requests"] == each["resources"]["limits"]


def test_everything_selects_the_pods_of_the_cluster(head: dict[str, Any], node: dict[str, Any]) -> None:
    names = {*ports(container(head, "head")), *ports(container(node, "agent")), *ports(container(node, "triton"))}
    for name in ("tidal-cluster", "tidal-cluster-nodes"):
        service = load("Service", name)["spec"]
        assert service["selector"] == NODES
        assert {port["targetPort"] for port in service["ports"]} <= {"http", "grpc"} <= names
    budget = load("PodDisruptionBudget")["spec"]
    assert budget["selector"]["matchLabels"] == NODES
    # Of pods whose owner has no scale subresource, only an integer `minAvailable` is counted.
    assert (budget["minAvailable"], "maxUnavailable" in budget) == (1, False)
    monitor = load("PodMonitor")["spec"]
    assert monitor["selector"]["matchLabels"].items() <= NODES.items()
    assert {end["port"] for end in monitor["podMetricsEndpoints"]} == {"metrics", "server-metrics"} <= names
    (spread,) = node["topologySpreadConstraints"]
    assert spread["labelSelector"]["matchLabels"] == NODES


def test_ports_of_ray_are_open_to_the_pods_of_the_cluster_alone(node: dict[str, Any]) -> None:
    policy = load("NetworkPolicy")["spec"]
    own = {"matchLabels": {"ray.io/cluster": "tidal-cluster"}}
    assert policy["podSelector"] == own
    within, entrances, monitoring = policy["ingress"]
    assert within == {"from": [{"podSelector": own}]}
    assert {port["port"] for port in entrances["ports"]} == {"http", "grpc"}
    assert {port["port"] for port in monitoring["ports"]} == {"metrics", "server-metrics", "status"}
    assert "namespaceSelector" in monitoring["from"][0]


def test_the_version_of_ray_is_the_pinned_one(cluster: dict[str, Any]) -> None:
    assert f"\nray=={cluster['spec']['rayVersion']}\n" in (ROOT / "constraints.txt").read_text()
    (build,) = re.findall(r"--build-arg EXTRAS=(\S+)", (ROOT / FILE).read_text())
    (default,) = re.findall(r"^ARG EXTRAS=(\S+)", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert build == f"{default},ray"
