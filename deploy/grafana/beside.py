"""The panels of the server itself, and of the controller beside it."""

from __future__ import annotations

from deploy.grafana.queries import Panel, level, rate, share


def triton() -> list[Panel]:
    """What the server tells by itself. Its durations end where a backend takes a request over, but for `engine`."""
    gpu = "{{gpu_uuid}}"
    return [
        Panel(
            "Requests that models took", "reqps", (rate("nv_inference_request_success", "model", "{{model}}"),), True
        ),
        Panel(
            "Requests that failed",
            "reqps",
            (rate("nv_inference_request_failure", "model, reason", "{{model}} {{reason}}"),),
            True,
        ),
        Panel(
            "Pending in Triton's queues", "short", (level("nv_inference_pending_request_count", "model", "{{model}}"),)
        ),
        Panel(
            "Time in Triton's queue, and in the model",
            "µs",
            (
                share("nv_inference_queue_duration_us", "nv_inference_request_success", "model", "{{model}} queue"),
                share(
                    "nv_inference_compute_infer_duration_us", "nv_inference_request_success", "model", "{{model}} model"
                ),
            ),
        ),
        Panel(
            "Rows in an execution",
            "short",
            (share("nv_inference_count", "nv_inference_exec_count", "model", "{{model}}"),),
        ),
        Panel("Processor", "percentunit", (("nv_cpu_utilization", "used"),)),
        Panel("Memory", "bytes", (("nv_cpu_memory_used_bytes", "used"), ("nv_cpu_memory_total_bytes", "of"))),
        Panel(
            "Server and controller answer",
            "short",
            (("up", "{{job}}"), ("tidal_controller_server_up", "controller sees the server")),
        ),
        Panel("GPU", "percentunit", (("nv_gpu_utilization", gpu),)),
        Panel(
            "GPU memory",
            "bytes",
            (("nv_gpu_memory_used_bytes", f"{gpu} used"), ("nv_gpu_memory_total_bytes", f"{gpu} of")),
        ),
    ]


def controller() -> list[Panel]:
    """What `tidal controller` decides about partitioned models."""
    own, runtime = "tidal_controller", "{{model}} {{runtime}}"
    return [
        Panel("Instances wanted", "short", (level(f"{own}_instances", "model, runtime", runtime),), True),
        Panel("Queries in an SLO period", "short", (level(f"{own}_demand_queries", "model, runtime", runtime),), True),
        Panel(
            "Mean latency",
            "s",
            (
                level(f"{own}_observed_latency_seconds", "model", "{{model}} observed"),
                level(f"{own}_predicted_latency_seconds", "model", "{{model}} predicted"),
            ),
        ),
        Panel(
            "Decisions, changes, and what is lacking",
            "short",
            (
                rate(f"{own}_decisions_total", "model, action", "{{model}} {{action}} a second"),
                level(f"{own}_instances_short", "model", "{{model}} instances lacking"),
            ),
        ),
    ]
