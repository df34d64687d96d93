"""Requests for nodes to Ray's autoscaler."""

from __future__ import annotations

from collections.abc import Sequence

from tidal.cluster.handles import first_line
from tidal.errors import Unavailable

#: Resource that each node of a cluster has in Ray, once.
NODE_RESOURCE = "tidal_node"


def request_nodes(hosts: Sequence[str], more: int) -> None:
    """Request nodes from Ray's autoscaler; without one Ray notes the request, and nothing follows.

    Args:
        hosts: Addresses of present nodes, which it is to keep.
        more: Number of further nodes.

    Raises:
        Unavailable: The head does not answer.
    """
    import ray
    from ray.autoscaler.sdk import request_resources

    kept: list[dict[str, float]] = [{f"node:{host}": 0.001, NODE_RESOURCE: 1} for host in hosts]
    further: list[dict[str, float]] = [{NODE_RESOURCE: 1}] * more
    try:
        request_resources(bundles=kept + further)
    except (ray.exceptions.RayError, RuntimeError) as error:
        raise Unavailable(f"the head does not accept a request for nodes: {first_line(error)}") from None
