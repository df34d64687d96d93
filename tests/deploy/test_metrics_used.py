"""Every query of dashboard, alerts and autoscaler is PromQL, over metrics that there are."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import promql_parser
import pytest

from deploy.grafana import dashboard
from tests.deploy.project import ON_GPUS, ROOT, SERVERS_OWN, SYSTEMS, documents, series

_TEMPLATED = re.compile(r"\$__rate_interval|\$model")


def panels() -> list[dict[str, Any]]:
    drawn = json.loads(dashboard.TARGET.read_text())["panels"]
    return [panel for panel in drawn if panel["type"] != "row"]


def queries() -> Iterator[tuple[str, str]]:
    """Where a query stands, and the query."""
    for panel in panels():
        for target in panel["targets"]:
            yield f"dashboard: {panel['title']}", plain(target["expr"])
    for group in documents("deploy/prometheus/alerts.yml")[0]["groups"]:
        for rule in group["rules"]:
            yield f"alert: {rule['alert']}", rule["expr"]
    _, rules = documents("deploy/kubernetes/monitoring.yaml")
    for group in rules["spec"]["groups"]:
        for rule in group["rules"]:
            yield f"record: {rule['record']}", rule["expr"]


def plain(query: str) -> str:
    """A query as Grafana sends it."""
    return _TEMPLATED.sub(lambda found: {"$model": ".*"}.get(found.group(), "1m"), query)


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
def test_query_reads_metrics_that_there_are(where: str, query: str) -> None:
    found = list(selectors(promql_parser.parse(query)))
    assert found, where
    for selector in found:
        for name in names(selector):
            known = name == "up" or name in series() | SERVERS_OWN | ON_GPUS
            assert known, f"{where}: {name} is published by nobody"


def test_the_dashboard_is_what_its_code_gives() -> None:
    assert dashboard.TARGET.read_text() == dashboard.text(), "run python -m deploy.grafana"


def test_every_system_has_a_row_with_panels() -> None:
    rows = [title.partition(":")[0].lower() for title, _ in dashboard.ROWS]
    assert set(SYSTEMS) | {"triton", "controller"} == set(rows)
    assert len({panel["id"] for panel in panels()}) == len(panels())


def test_panels_do_not_overlap_and_stay_inside() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in json.loads(dashboard.TARGET.read_text())["panels"]:
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
    text = (ROOT / "docs" / "serving.md").read_text()
    told = set(re.findall(r"`(tidal_(?:arlo|tabi|pets|otas|flover|controller)_[a-z_]+[a-z])`", text))
    families = {re.sub(r"_(bucket|sum|count)$", "", name) for name in series()}
    assert told, "no metric is documented"
    assert told <= families
