"""Every query of dashboard, alerts and autoscaler is valid PromQL over published metrics."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import promql_parser
import pytest

from deploy.grafana import dashboard
from tests.deploy.project import ON_GPUS, ROOT, SERVERS_OWN, SYSTEMS, documents, series
from tests.deploy.queries import panels, queries, rows

#: Families of a server, a node or a cluster as a whole, which have no model.
_OF_A_CLUSTER = (
    *(
        "nodes",
        "report_timestamp_seconds",
        "table_outdated",
        "lost_nodes_total",
        "controller_start_timestamp_seconds",
        "wanted_nodes",
    ),
    *(f"node_{name}_timestamp_seconds" for name in ("start", "read", "table")),
    *("node_server_up", "node_draining"),
)
WITHOUT_MODEL = frozenset({"up", *(f"tidal_cluster_{name}" for name in _OF_A_CLUSTER)}) | {
    name for name in SERVERS_OWN | ON_GPUS if name.startswith(("nv_cpu_", "nv_gpu_"))
}


def selectors(node: Any) -> Iterator[Any]:
    """The vector selectors of a parsed query."""
    if isinstance(node, promql_parser.VectorSelector):
        yield node
        return
    for name in ("expr", "lhs", "rhs", "param", "vector_selector"):
        inner = getattr(node, name, None)
        if inner is not None and not isinstance(inner, str | int | float):
            yield from selectors(inner)
    for inner in getattr(node, "args", None) or ():
        yield from selectors(inner)


def names(selector: Any) -> list[str]:
    """The series that a selector names, each alternative of a pattern by itself."""
    if selector.name:
        return [selector.name]
    (pattern,) = (each.value for each in selector.matchers.matchers if each.name == "__name__")
    found = [name for name in series() if re.fullmatch(pattern, name)]
    for alternative in re.sub(r"\([^)]*\)", "", pattern).split("|"):
        assert any(re.search(alternative.replace("tidal_", ""), name) for name in found), (pattern, alternative)
    return found


@pytest.mark.parametrize(("where", "query"), [pytest.param(*each, id=f"{n}") for n, each in enumerate(queries())])
def test_queries_read_published_metrics(where: str, query: str) -> None:
    found = list(selectors(promql_parser.parse(query)))
    assert found, where
    for selector in found:
        for name in names(selector):
            known = name == "up" or name in series() | SERVERS_OWN | ON_GPUS
            assert known, f"{where}: {name} is published by nobody"


def test_the_dashboard_is_generated_from_its_code() -> None:
    assert dashboard.TARGET.read_text() == dashboard.text(), "run python -m deploy.grafana"


def test_every_system_has_a_row_with_panels() -> None:
    titles = [row["title"].partition(":")[0].lower() for row, _ in rows()]
    assert titles[0] == "overview"
    assert {*SYSTEMS, "triton", "controller", "cluster"} == set(titles[1:])
    assert all(inside for _, inside in rows())
    ids = [panel["id"] for panel in panels()] + [row["id"] for row, _ in rows()]
    assert len(set(ids)) == len(ids)


def test_it_opens_with_the_overview_alone() -> None:
    assert [row["collapsed"] for row, _ in rows()] == [False, *[True] * len(dashboard.ROWS)]
    _, overview = rows()[0]
    wanted = ["Served models", "Requests", "Errors", "Slowest p99", "Queue depth", "Restarts in an hour"]
    assert [panel["title"] for panel in overview][:6] == wanted
    assert [panel["type"] for panel in overview][:6] == ["table", *["stat"] * 5]
    # Grafana shows the panels between two rows under the first only where that is open.
    drawn = json.loads(dashboard.TARGET.read_text())["panels"]
    assert all(panel["type"] == "row" for panel in drawn[1 + len(overview) :])


def test_panels_are_described_and_bad_values_are_marked() -> None:
    for panel in panels():
        assert re.fullmatch(r"[A-Z0-9].{15,}\.", panel["description"], re.DOTALL), panel["title"]
        steps = panel["fieldConfig"]["defaults"]["thresholds"]["steps"]
        assert steps[0]["value"] is None
        values = [step["value"] for step in steps[1:]]
        assert values == sorted(set(values)), panel["title"]
        if panel["type"] == "timeseries":
            style = panel["fieldConfig"]["defaults"]["custom"]["thresholdsStyle"]["mode"]
            assert style == ("dashed" if values else "off"), panel["title"]
    marked = {panel["title"] for panel in panels() if len(panel["fieldConfig"]["defaults"]["thresholds"]["steps"]) == 3}
    assert marked >= {
        "Errors",
        "Slowest p99",
        "Queue depth",
        "Restarts in an hour",
        "Errors by model",
        "CPU utilization",
    }


def test_every_query_selects_by_the_variables() -> None:
    variables = {each["name"]: each for each in dashboard.dashboard()["templating"]["list"]}
    assert list(variables) == ["datasource", "instance", "model"]
    # Models are those of the chosen instances.
    assert 'instance=~"$instance"' in variables["model"]["query"]["query"]
    for panel in panels():
        assert panel["datasource"]["uid"] == "${datasource}"
        for target in panel["targets"]:
            assert target["datasource"]["uid"] == "${datasource}"
            parsed = promql_parser.parse(target["expr"].replace("$__rate_interval", "1m"))
            for selector in selectors(parsed):
                by = {(each.name, each.value) for each in selector.matchers.matchers}
                wanted = {("instance", "$instance")}
                if selector.name not in WITHOUT_MODEL:
                    wanted.add(("model", "$model"))
                assert wanted <= by, f"{panel['title']}: {target['expr']}"


def test_the_server_and_its_controller_are_one_instance() -> None:
    (config,) = documents("deploy/prometheus/prometheus.yml")
    labels = [job["static_configs"][0]["labels"] for job in config["scrape_configs"]]
    assert labels == [{"instance": "triton"}] * 3
    monitor, _ = documents("deploy/kubernetes/monitoring.yaml")
    relabelled = [end["relabelings"] for end in monitor["spec"]["podMetricsEndpoints"]]
    assert relabelled == [[{"sourceLabels": ["__meta_kubernetes_pod_name"], "targetLabel": "instance"}]] * 3


def test_the_server_of_a_node_and_its_agent_are_one_instance() -> None:
    (config,) = documents("deploy/prometheus/cluster.yml")
    hosts = {
        job["job_name"]: {
            each["labels"]["instance"]: target.split(":")[0]
            for each in job["static_configs"]
            for target in each["targets"]
        }
        for job in config["scrape_configs"]
    }
    assert hosts["triton"] == hosts["agent"]
    assert hosts.keys() == {"triton", "agent", "cluster"}


def test_panels_do_not_overlap_and_stay_inside() -> None:
    for row, inside in rows():
        taken: set[tuple[int, int]] = set()
        for panel in (row, *inside):
            place = panel["gridPos"]
            assert place["x"] + place["w"] <= 24
            cells = {
                (x, y)
                for x in range(place["x"], place["x"] + place["w"])
                for y in range(place["y"], place["y"] + place["h"])
            }
            assert not cells & taken, panel["title"]
            taken |= cells


def test_the_metrics_of_the_documentation_are_published() -> None:
    text = (ROOT / "docs" / "reference" / "metrics.md").read_text()
    documented = set(re.findall(r"`(tidal_(?:arlo|tabi|pets|otas|flover|cluster)_[a-z_]+[a-z])`", text))
    families = {re.sub(r"_(bucket|sum|count)$", "", name) for name in series()}
    assert documented, "no metric is documented"
    assert documented <= families
