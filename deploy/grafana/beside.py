"""The panels of the server itself and of the controller."""

from __future__ import annotations

from deploy.grafana.queries import INSTANCE, Panel, level, rate, share

_ON = f"{{{INSTANCE}}}"


def triton() -> list[Panel]:
    """Panels of Triton's metrics. Except for `engine`, its durations end when a backend accepts a request."""
    gpu, server = "{{instance}} {{gpu_uuid}}", "{{instance}}"
    return [
        Panel(
            "Requests accepted",
            "reqps",
            (rate("nv_inference_request_success", "model", "{{model}}"),),
            "Requests that Triton passed to models, including requests between models. Requests that Tidal refuses "
            "asynchronously count as accepted.",
            stacked=True,
        ),
        Panel(
            "Requests failed",
            "reqps",
            (rate("nv_inference_request_failure", "model, reason", "{{model}} {{reason}}"),),
            "Requests that Triton counts as failed, by its reason.",
            stacked=True,
        ),
        Panel(
            "Pending in Triton's queues",
            "short",
            (level("nv_inference_pending_request_count", "model", "{{model}}"),),
            "Requests that Triton has not passed to a model yet. Tidal's models accept requests at once: a value that "
            "stays above 0 means that the model is loading or stuck.",
            limits=(8, 64),
        ),
        Panel(
            "Time in Triton's queue, and in execute",
            "µs",
            (
                share("nv_inference_queue_duration_us", "nv_inference_request_success", "model", "{{model}} queue"),
                share(
                    "nv_inference_compute_infer_duration_us",
                    "nv_inference_request_success",
                    "model",
                    "{{model}} execute",
                ),
            ),
            "Means per request, measured by Triton. Tidal's models respond after `execute` has returned: their "
            "latencies are in the rows below.",
        ),
        Panel(
            "Rows per execution",
            "short",
            (share("nv_inference_count", "nv_inference_exec_count", "model", "{{model}}"),),
            "Rows that Triton passes to a model at once. Models form their own batches: see the row of the system.",
        ),
        Panel(
            "CPU utilization",
            "percentunit",
            ((f"nv_cpu_utilization{_ON}", server),),
            "Utilization of all cores of the machine by all processes.",
            limits=(0.8, 0.95),
        ),
        Panel(
            "Memory",
            "bytes",
            (
                (f"nv_cpu_memory_used_bytes{_ON}", f"{server} used"),
                (f"nv_cpu_memory_total_bytes{_ON}", f"{server} total"),
            ),
            "Memory of the machine. `tidal models status` shows model processes that the kernel killed for lack of "
            "memory.",
        ),
        Panel(
            "Server and controller up",
            "short",
            ((f"up{_ON}", "{{instance}} {{job}}"), (f"tidal_controller_server_up{_ON}", "controller sees the server")),
            "1 if Prometheus can read the metrics, and if the controller reaches its server; else 0.",
        ),
        Panel(
            "GPU",
            "percentunit",
            ((f"nv_gpu_utilization{_ON}", gpu),),
            "Share of time in which a GPU kernel ran. Empty on machines without a GPU.",
            limits=(0.9, 0.98),
        ),
        Panel(
            "GPU memory",
            "bytes",
            ((f"nv_gpu_memory_used_bytes{_ON}", f"{gpu} used"), (f"nv_gpu_memory_total_bytes{_ON}", f"{gpu} total")),
            "Memory of each GPU. While a new version of a model replaces the old one, both need memory.",
        ),
    ]


def controller() -> list[Panel]:
    """Panels of the decisions of `tidal controller` about partitioned models."""
    own, runtime = "tidal_controller", "{{model}} {{runtime}}"
    return [
        Panel(
            "Target instances",
            "short",
            (level(f"{own}_instances", "model, runtime", runtime),),
            "Number of instances of each runtime that the controller requests.",
            stacked=True,
        ),
        Panel(
            "Demand per SLO period",
            "short",
            (level(f"{own}_demand_queries", "model, runtime", runtime),),
            "Queries by runtime in an SLO period, on which the decision was based.",
            stacked=True,
        ),
        Panel(
            "Mean latency",
            "s",
            (
                level(f"{own}_observed_latency_seconds", "model", "{{model}} observed"),
                level(f"{own}_predicted_latency_seconds", "model", "{{model}} predicted"),
            ),
            "Mean latency predicted by the profile for the allocation, and the observed one. A large difference means "
            "other load on the cores, or a profile of another machine.",
        ),
        Panel(
            "Decisions, changes, missing instances",
            "short",
            (
                rate(f"{own}_decisions_total", "model, action", "{{model}} {{action}} per second"),
                level(f"{own}_instances_short", "model", "{{model}} instances missing"),
            ),
            "Missing instances: the model cannot keep its SLO with the number of instances that it is limited to.",
        ),
    ]
