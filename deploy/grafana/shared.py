"""Panels that several systems have."""

from __future__ import annotations

from deploy.grafana.queries import Panel, Query, level, mean, quantiles, rate, share


def common(system: str) -> list[Panel]:
    """What every system tells of its requests."""
    own = f"tidal_{system}"
    return [
        Panel("Answers", "reqps", (rate(f"{own}_requests_total", "model, code", "{{model}} {{code}}"),), stacked=True),
        Panel("Latency", "s", quantiles(f"{own}_request_seconds", "model", "{{model}}")),
        Panel("Accepted and not answered yet", "short", (level(f"{own}_in_flight_queries", "model", "{{model}}"),)),
        Panel(
            "Refused, failed, late",
            "reqps",
            (
                rate(f"{own}_requests_total", "model, code", "{{model}} {{code}}", ', code!="OK"'),
                rate(f"{own}_deadline_missed_total", "model", "{{model}} missed its deadline"),
                rate(f"{own}_service_restarts_total", "model", "{{model}} restarted inside"),
            ),
        ),
    ]


def queue(system: str) -> list[Panel]:
    """How many wait, and how long those waited that wait no more."""
    own, name = f"tidal_{system}", "{{model}}"
    return [
        Panel("Waiting", "short", (level(f"{own}_waiting_queries", "model", name),)),
        Panel("Time in the queue", "s", quantiles(f"{own}_queue_seconds", "model", name, (0.5, 0.99))),
    ]


def tasks(system: str) -> list[Panel]:
    """Tasks beside a model."""
    own, name = f"tidal_{system}", "{{model}}"
    return [
        Panel(
            "Tasks",
            "short",
            (
                level(f"{own}_tasks", "model", f"{name} known"),
                level(f"{own}_tasks_resident", "model", f"{name} in memory"),
                level(f"{own}_tasks_loading", "model", f"{name} loading"),
                level(f"{own}_waiting_for_task_queries", "model", f"{name} queries that wait for one"),
            ),
        ),
        Panel(
            "Memory of tasks",
            "bytes",
            (
                level(f"{own}_task_bytes", "model", f"{name} taken"),
                level(f"{own}_task_budget_bytes", "model", f"{name} budget"),
            ),
        ),
        Panel(
            "Tasks loaded, evicted, failed; queries refused",
            "ops",
            (
                rate(f"{own}_task_loads_total", "model", f"{name} loaded"),
                rate(f"{own}_task_evictions_total", "model", f"{name} evicted"),
                rate(f"{own}_task_load_failures_total", "model", f"{name} failed"),
                rate(f"{own}_refused_queries_total", "model, reason", f"{name} refused for {{{{reason}}}}"),
            ),
        ),
    ]


def batches(system: str, *more: Query) -> Panel:
    """How many queries share a batch, and what else is mean of it."""
    return Panel(
        "In a batch", "short", (mean(f"tidal_{system}_batch_size_queries", "model", "{{model}} queries"), *more)
    )


def padding(system: str) -> Panel:
    """What share of the computed tokens was padding."""
    part, _ = share(f"tidal_{system}_tokens_total", f"tidal_{system}_padded_tokens_total", "model", "")
    return Panel("Padding", "percentunit", ((f"1 - {part}", "{{model}}"),))
