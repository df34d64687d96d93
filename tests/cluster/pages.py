"""Reading pages of `tidal_cluster_*` metrics."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from tidal.server.local_http import open_url

Values = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def values(page: str) -> Values:
    """The values of a page by series."""
    families = text_string_to_metric_families(page)
    return {(each.name, tuple(sorted(each.labels.items()))): each.value for part in families for each in part.samples}


def of(found: Values, name: str, **labels: str) -> dict[str, float]:
    """Values of a family's series with these labels, by their other labels."""
    return {
        " ".join(value for key, value in names if key not in labels): value
        for (family, names), value in found.items()
        if family == f"tidal_cluster_{name}" and labels.items() <= dict(names).items()
    }


def read(address: str) -> Values:
    with open_url(f"http://{address}/metrics", 10) as response:
        return values(response.read().decode())
