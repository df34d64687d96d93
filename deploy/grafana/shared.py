"""Panels shared by several systems."""

from __future__ import annotations

from deploy.grafana.queries import Panel, Query, level, mean, quantiles, rate, share


def common(system: str) -> list[Panel]:
    """Panels of a system's requests."""
    own = f"tidal_{system}"
    return [
        Panel(
            "Answers",
            "reqps",
            (rate(f"{own}_requests_total", "model, code", "{{model}} {{code}}"),),
            "Requests answered per second, by outcome.",
            stacked=True,
        ),
        Panel(
            "Latency",
            "s",
            quantiles(f"{own}_request_seconds", "model", "{{model}}"),
            "Time from acceptance to answer of accepted requests. Triton's own durations end earlier, when the backend "
            "accepts a request.",
        ),
        Panel(
            "In flight",
            "short",
            (level(f"{own}_in_flight_queries", "model", "{{model}}"),),
            "Queries accepted and not answered yet. At `max_queue_size` (default 1024) further queries are refused.",
            limits=(512, 1024),
        ),
        Panel(
            "Refused, failed, late",
            "reqps",
            (
                rate(f"{own}_requests_total", "model, code", "{{model}} {{code}}", ', code!="OK"'),
                rate(f"{own}_deadline_missed_total", "model", "{{model}} missed its deadline"),
                rate(f"{own}_service_restarts_total", "model", "{{model}} service restarted"),
            ),
            "Requests without a result by code, and missed deadlines. A restart of the service answers all requests in "
            "flight with INTERNAL.",
        ),
    ]


def queue(system: str) -> list[Panel]:
    """Panels of queue depth and queueing time."""
    own, name = f"tidal_{system}", "{{model}}"
    return [
        Panel(
            "Queue depth",
            "short",
            (level(f"{own}_waiting_queries", "model", name),),
            "Queries in the queue. A value that keeps growing means overload.",
            limits=(64, 512),
        ),
        Panel(
            "Time in the queue",
            "s",
            quantiles(f"{own}_queue_seconds", "model", name, (0.5, 0.99)),
            "Time from arrival to execution of executed queries.",
        ),
    ]


def tasks(system: str) -> list[Panel]:
    """Panels of the tasks of a model."""
    own, name = f"tidal_{system}", "{{model}}"
    return [
        Panel(
            "Tasks",
            "short",
            (
                level(f"{own}_tasks", "model", f"{name} known"),
                level(f"{own}_tasks_resident", "model", f"{name} in memory"),
                level(f"{own}_tasks_loading", "model", f"{name} loading"),
                level(f"{own}_waiting_for_task_queries", "model", f"{name} queries waiting for a task"),
            ),
            "Tasks of a model, how many of them are in memory, and queries that wait until their task is loaded.",
        ),
        Panel(
            "Memory of tasks",
            "bytes",
            (
                level(f"{own}_task_bytes", "model", f"{name} used"),
                level(f"{own}_task_budget_bytes", "model", f"{name} budget"),
            ),
            "Memory of loaded tasks. At the budget (`task_memory_mb`) tasks are evicted for others.",
        ),
        Panel(
            "Task loads, evictions, failures",
            "ops",
            (
                rate(f"{own}_task_loads_total", "model", f"{name} loaded"),
                rate(f"{own}_task_evictions_total", "model", f"{name} evicted"),
                rate(f"{own}_task_load_failures_total", "model", f"{name} failed"),
                rate(f"{own}_refused_queries_total", "model, reason", f"{name} refused: {{{{reason}}}}"),
            ),
            "Constant loads and evictions: raise `task_memory_mb`. The model's log has the causes of failures.",
        ),
    ]


def batches(system: str, *more: Query) -> Panel:
    """Panel of the mean batch size, and of other means per batch."""
    return Panel(
        "Batch size",
        "short",
        (mean(f"tidal_{system}_batch_size_queries", "model", "{{model}} queries"), *more),
        "Means per batch: number of queries, and how diverse they are.",
    )


def padding(system: str) -> Panel:
    """Panel of the share of computed tokens that was padding."""
    part, _ = share(f"tidal_{system}_tokens_total", f"tidal_{system}_padded_tokens_total", "model", "")
    return Panel(
        "Padding",
        "percentunit",
        ((f"1 - {part}", "{{model}}"),),
        "Share of the computed tokens that was padding. If it is large, set more `lengths` in the spec, or `form: "
        "dynamic`.",
        limits=(0.5, 0.75),
    )
