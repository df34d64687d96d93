"""The documents that Helm makes of the chart."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import yaml

from testing.helm import Rendered, helm
from tests.deploy.project import ROOT

CHART = ROOT / "deploy/helm/tidal"
# What the chart's optional parts need.
EVERYTHING = {"cluster": {"enabled": True}, "monitoring": {"enabled": True}, "autoscaling": {"enabled": True}}
# Labels that name the release and the chart, which files without Helm have not.
_OF_HELM = ("app.kubernetes.io/instance", "app.kubernetes.io/version", "app.kubernetes.io/managed-by", "helm.sh/chart")
Documents = dict[tuple[str, str], dict[str, Any]]


def render(values: Mapping[str, Any], release: str = "tidal") -> Documents:
    """The documents of a release by kind and name.

    Raises:
        AssertionError: Helm refuses the values, or two documents have one name.
    """
    (rendered,) = helm(CHART, [(release, values)])
    assert not rendered.error
    return documents_of(rendered)


def documents_of(rendered: Rendered) -> Documents:
    """The documents of a rendered chart by kind and name."""
    found: Documents = {}
    for name, text in rendered.templates.items():
        for document in yaml.safe_load_all(text) if name.endswith(".yaml") else ():
            if document is not None:
                key = (document["kind"], document["metadata"]["name"])
                assert key not in found
                found[key] = document
    return found


def plain(document: dict[str, Any]) -> dict[str, Any]:
    """A document without what Helm, or a file that is applied without it, has alone."""
    metadata = {name: value for name, value in document["metadata"].items() if name not in ("namespace", "labels")}
    annotations = metadata.pop("annotations", {})
    annotations.pop("helm.sh/resource-policy", None)
    spec = _plain(document["spec"])
    if document["kind"] == "Service":
        spec = {"type": "ClusterIP", **spec}
    return {**document, "metadata": {**metadata, "annotations": annotations}, "spec": spec}


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if not isinstance(value, dict):
        return value
    found = {}
    for name, each in value.items():
        if name in _OF_HELM or name == "imagePullPolicy":
            continue
        # The kustomization names the tag.
        found[name] = re.sub("^tidal$", "tidal:0.1.0", each) if name == "image" else _plain(each)
    return found
