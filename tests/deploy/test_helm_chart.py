"""The Helm chart, rendered and checked by Helm: schemas, the manifests beside it, and what each value changes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import kubernetes_validate
import pytest
import yaml
from jsonschema import Draft7Validator

from testing.helm import INSTALLED, helm
from tests.deploy import custom_resources, ray_cluster
from tests.deploy.charts import CHART, EVERYTHING, Documents, plain, render
from tests.deploy.project import accepts, documents, pyproject
from tidal_gateway.settings import GatewaySettings

needs_helm = pytest.mark.skipif(not INSTALLED, reason="needs helm-python-sdk")
VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
SCHEMA = json.loads((CHART / "values.schema.json").read_text())
MANIFESTS = ("storage", "serving", "network", "availability", "monitoring", "autoscaling", "cluster")
CASES: dict[str, dict[str, Any]] = {
    "defaults": {},
    "everything": EVERYTHING,
    "cluster alone": {**EVERYTHING, "serving": {"enabled": False}},
    "server alone": {
        "controller": {"enabled": False},
        "gateway": {"enabled": False},
        "podDisruptionBudget": {"enabled": False},
        "networkPolicy": {"enabled": False},
        "modelRepository": {"existingClaim": "mine"},
        "monitoring": {"enabled": True, "labels": {"release": "prometheus"}},
    },
    "all values": {
        **EVERYTHING,
        "nameOverride": "models",
        "image": {"repository": "registry.example.com/tidal", "tag": "2", "pullPolicy": "Always"},
        "imagePullSecrets": [{"name": "registry"}],
        "serverArgs": ["--strict"],
        "env": [{"name": "OMP_NUM_THREADS", "value": "4"}],
        "nodeSelector": {"tidal/machine": None, "kind": "a"},
        "tolerations": [{"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}],
        "affinity": {"podAntiAffinity": {}},
        "podAnnotations": {"team": "search"},
        "service": {"type": "LoadBalancer", "annotations": {"internal": "true"}},
        "resources": {"requests": {"cpu": "8", "memory": "16Gi"}, "limits": {"cpu": "8", "memory": "16Gi"}},
        "modelRepository": {"storageClassName": "fast", "size": "1Ti", "accessModes": ["ReadOnlyMany"]},
        "gateway": {"args": ["--workers=2"], "maxBodyBytes": 16777216},
    },
}


def leaves(values: dict[str, Any], prefix: str = "") -> Iterator[str]:
    for name, value in values.items():
        # What the schema has as a free mapping is one value.
        if isinstance(value, dict) and name not in ("affinity", "nodeSelector", "requests", "limits", "labels"):
            yield from leaves(value, f"{prefix}{name}.") if value else [f"{prefix}{name}"]
        else:
            yield f"{prefix}{name}"


def by_name(pod: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {each["name"]: each for each in (*pod.get("initContainers", []), *pod["containers"])}


def pods_of(found: Documents) -> Iterator[dict[str, Any]]:
    for (kind, _), document in found.items():
        if kind == "Deployment":
            yield document["spec"]["template"]["spec"]
        elif kind == "RayCluster":
            yield from ray_cluster.pods(document)


def test_versions_are_the_projects() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == pyproject()["version"]


def test_the_schema_accepts_the_defaults_and_names_each_value() -> None:
    Draft7Validator.check_schema(SCHEMA)
    assert list(Draft7Validator(SCHEMA).iter_errors(VALUES)) == []
    # `global` is of charts that contain this one.
    assert set(SCHEMA["properties"]) == {*VALUES, "global"}
    for name, value in VALUES.items():
        declared = SCHEMA["properties"][name]
        if declared.get("additionalProperties") is False:
            assert set(declared["properties"]) == set(value), name


def test_each_value_is_used() -> None:
    text = "\n".join(file.read_text() for file in (CHART / "templates").iterdir())
    used = set(re.findall(r"\.Values\.([\w.]+)", text))
    for leaf in leaves(VALUES):
        parents = [leaf.rpartition(".")[0]] if leaf.endswith((".requests", ".limits")) else []
        assert {leaf, *parents} & used, f"{leaf} changes nothing"
    assert {each for each in used if each not in {*leaves(VALUES)} and not each.lower().endswith("resources")} == set()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"imag": {}}, "'imag' was unexpected"),
        ({"image": {"name": "tidal"}}, "'name' was unexpected"),
        ({"service": {"type": "Ingress"}}, "'Ingress' is not one of ['ClusterIP', 'NodePort', 'LoadBalancer']"),
        ({"serving": {"replicas": "2"}}, "'2' is not of type 'integer'"),
        ({"resources": {"limit": {"cpu": "4"}}}, "'limit' was unexpected"),
        ({"sharedMemory": "1 GB"}, "'1 GB' is not valid under any of the given schemas"),
        ({"cluster": {"tokenSecret": ""}}, "'' does not match"),
        ({"cluster": {"rayVersion": 2.6}}, "2.6 is not of type 'string'"),
    ],
)
def test_the_schema_refuses(values: dict[str, Any], message: str) -> None:
    (error,) = Draft7Validator(SCHEMA).iter_errors(values)
    assert message in error.message


@needs_helm
def test_helm_refuses_what_the_schema_refuses() -> None:
    (rendered,) = helm(CHART, [("tidal", {"serving": {"replica": 1}})])
    assert "additional properties 'replica' not allowed" in rendered.error
    assert 3 in [severity for severity, _ in rendered.messages]


@needs_helm
def test_the_autoscaler_needs_the_recorded_series() -> None:
    (rendered,) = helm(CHART, [("tidal", {"autoscaling": {"enabled": True}})])
    assert "set monitoring.enabled to true" in rendered.error


@needs_helm
def test_lint_has_neither_errors_nor_warnings() -> None:
    for rendered in helm(CHART, [("tidal", values) for values in CASES.values()]):
        # Information alone: a chart should have an icon.
        assert [message for severity, message in rendered.messages if severity > 1] == []
        assert rendered.error == ""


@needs_helm
@pytest.mark.parametrize("case", CASES)
def test_documents_fit_the_schemas(case: str) -> None:
    for (kind, _), document in render(CASES[case]).items():
        if kind == "RayCluster":
            assert ray_cluster.problems(document) == []
        elif kind in ("PodMonitor", "PrometheusRule"):
            assert custom_resources.problems(document, kind) == []
        else:
            for version in ray_cluster.KUBERNETES:
                kubernetes_validate.validate(document, version, strict=True)


@needs_helm
def test_the_defaults_are_the_manifests() -> None:
    rendered = {key: plain(document) for key, document in render(EVERYTHING).items()}
    committed = {
        (document["kind"], document["metadata"]["name"]): plain(document)
        for name in MANIFESTS
        for document in documents(f"deploy/kubernetes/{name}.yaml")
    }
    assert set(rendered) == set(committed)
    for key, document in committed.items():
        assert rendered[key] == document, key


@needs_helm
@pytest.mark.parametrize("case", CASES)
def test_commands_are_those_of_the_code(case: str) -> None:
    for pod in pods_of(render(CASES[case])):
        for each in by_name(pod).values():
            if "args" in each:
                accepts(each["args"])


@needs_helm
def test_values_reach_both_kinds_of_pods() -> None:
    head, node, deployed = pods_of(render(CASES["all values"]))
    for pod in (deployed, head, node):
        assert pod["nodeSelector"] == {"kind": "a"}
        assert pod["tolerations"][0]["key"] == "gpu"
        assert pod["affinity"] == {"podAntiAffinity": {}}
        assert pod["imagePullSecrets"] == [{"name": "registry"}]
        assert {each["imagePullPolicy"] for each in by_name(pod).values()} == {"Always"}
    assert {each["image"] for each in by_name(deployed).values()} == {"registry.example.com/tidal:2"}
    assert {each["image"] for pod in (head, node) for each in by_name(pod).values()} == {"tidal-cluster:0.1.0"}
    for pod in (deployed, node):
        triton = by_name(pod)["triton"]
        assert accepts(triton["args"])["strict"]
        assert {"name": "OMP_NUM_THREADS", "value": "4"} in triton["env"]
        assert triton["resources"]["limits"] == {"cpu": "8", "memory": "16Gi"}
    gateway = by_name(deployed)["gateway"]
    assert "--max-body-bytes=16777216" in gateway["args"]
    assert accepts(gateway["args"])["workers"] == 2


@needs_helm
def test_what_is_off_leaves_nothing_behind() -> None:
    found = render(CASES["server alone"])
    assert {kind for kind, _ in found} == {"Deployment", "Service", "PodMonitor", "PrometheusRule"}
    (pod,) = pods_of(found)
    assert set(by_name(pod)) == {"models", "triton"}
    claims = [v["persistentVolumeClaim"] for v in pod["volumes"] if "persistentVolumeClaim" in v]
    assert claims == [{"claimName": "mine", "readOnly": True}]
    assert "openai" not in json.dumps([*found.values()])
    assert [end["port"] for end in found["PodMonitor", "tidal"]["spec"]["podMetricsEndpoints"]] == ["metrics"]
    assert found["PodMonitor", "tidal"]["metadata"]["labels"]["release"] == "prometheus"
    assert found["Deployment", "tidal"]["spec"]["replicas"] == VALUES["serving"]["replicas"]


@needs_helm
def test_a_cluster_serves_by_itself() -> None:
    found = render(CASES["cluster alone"])
    assert [kind for kind, _ in found if kind in ("Deployment", "HorizontalPodAutoscaler")] == []
    assert {name for kind, name in found if kind != "PersistentVolumeClaim"} == {"tidal-cluster", "tidal-cluster-nodes"}


@needs_helm
@pytest.mark.parametrize("seconds", [1, 300])
def test_pods_have_the_time_that_their_servers_have(seconds: int) -> None:
    _, node, deployed = pods_of(render({"exitTimeoutSeconds": seconds, "cluster": {"enabled": True}}))
    for pod, more in ((deployed, 20), (node, VALUES["cluster"]["drainTimeoutSeconds"] + 90)):
        assert accepts(by_name(pod)["triton"]["args"])["exit_timeout"] == seconds
        assert pod["terminationGracePeriodSeconds"] == seconds + more
    gateway = accepts(by_name(deployed)["gateway"]["args"])
    assert gateway["exit_timeout_s"] == seconds
    assert "exit_timeout_s" in GatewaySettings.model_fields


@needs_helm
def test_two_releases_share_a_namespace() -> None:
    first, second = render(EVERYTHING, "one"), render(EVERYTHING, "two")
    assert set(first) & set(second) == set()
    assert ("Deployment", "one-tidal") in first
    assert ("RayCluster", "two-tidal-cluster") in second
    labels = first["Deployment", "one-tidal"]["spec"]["template"]["metadata"]["labels"]
    selector = second["Service", "two-tidal"]["spec"]["selector"]
    assert not selector.items() <= labels.items()
    # Nodes of a cluster are not pods of the Deployment's Services.
    assert set(second["Service", "two-tidal-cluster"]["spec"]["selector"]) & set(labels) == set()


@needs_helm
def test_the_notes_name_the_secrets_that_pods_need() -> None:
    serving, cluster = helm(CHART, [("tidal", {}), ("tidal", CASES["cluster alone"])])
    (first,), (second,) = (
        [text for name, text in each.templates.items() if name.endswith("NOTES.txt")] for each in (serving, cluster)
    )
    assert "create secret generic tidal-keys --from-file keys.json" in first
    assert "tidal-cluster" not in first
    assert "create secret generic tidal-cluster --from-literal token=" in second
    assert "tidal-keys" not in second
