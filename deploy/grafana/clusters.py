"""The panels of the nodes of a cluster."""

from __future__ import annotations

from deploy.grafana.queries import INSTANCE, Panel, level, rate

_ON = f"{{{INSTANCE}}}"


def cluster() -> list[Panel]:
    """Panels of `tidal cluster start`, `join` and `up`."""
    own, node = "tidal_cluster", "tidal_cluster_node"
    return [
        Panel(
            "Nodes by state",
            "short",
            ((f"sum by (state) ({own}_nodes{_ON})", "{{state}}"),),
            "Nodes that serve, drain (moving, drained), are being restarted, are away, or whose agent is silent. While "
            "a node is silent or restarting, nothing is decided.",
            stacked=True,
        ),
        Panel(
            "Age of plan, reports and tables",
            "s",
            (
                (f'time() - {own}_plan_timestamp_seconds{{model=~"$model", {INSTANCE}}}', "plan of {{model}}"),
                (f"time() - {own}_report_timestamp_seconds{_ON}", "report of {{node}}"),
                (f"time() - {node}_read_timestamp_seconds{_ON}", "{{instance}} read by the controller"),
                (f"time() - {node}_table_timestamp_seconds{_ON}", "{{instance}} table"),
            ),
            "Time since the last plan, since each agent's last report, and since each node was last read and had the "
            "present table. Reports and tables are some seconds old, except during a change.",
        ),
        Panel(
            "Old tables, lost nodes, restarts",
            "short",
            (
                (f"{own}_table_outdated{_ON}", "{{node}} has an old table"),
                (f"increase({own}_lost_nodes_total{_ON}[1h])", "nodes lost"),
                (f"changes({own}_controller_start_timestamp_seconds{_ON}[1h])", "restarts of the controller"),
                (f"changes({node}_start_timestamp_seconds{_ON}[1h])", "restarts of the agent of {{instance}}"),
            ),
            "Nodes whose fronts dispatch by an old table, and, within an hour, nodes that left without being drained "
            "and restarts of the control processes. Queries go on in all of these cases.",
            limits=(1, 3),
        ),
        Panel(
            "Nodes: instances, utilization",
            "short",
            (
                level(f"{node}_instances", "instance, model", "{{instance}} {{model}} instances"),
                rate(f"{node}_busy_seconds_total", "instance, model", "{{instance}} {{model}} busy"),
            ),
            "Instances of each node, and how many of them compute on average.",
        ),
        Panel(
            "Nodes: servers and changes",
            "short",
            (
                (f"{node}_server_up{_ON}", "{{instance}} serves"),
                (f"{node}_draining{_ON}", "{{instance}} drains"),
                rate(f"{node}_changes_total", "instance, model, result", "{{instance}} {{model}} change {{result}}"),
            ),
            "1 while the server of a node serves, and while the node is drained; changes that its agent carried out, "
            "per second.",
        ),
        Panel(
            "Nodes: arrivals",
            "reqps",
            (rate(f"{node}_queries_total", "instance, model", "{{instance}} {{model}}"),),
            "Queries that arrived at each node. A query may run on another one.",
            stacked=True,
        ),
    ]
