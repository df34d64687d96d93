"""The panels of the server itself, and of the controller beside it."""

from __future__ import annotations

from deploy.grafana.queries import INSTANCE, Panel, level, rate, share

_ON = f"{{{INSTANCE}}}"


def triton() -> list[Panel]:
    """What the server measures by itself. Its durations end where a backend takes a request over, but for `engine`."""
    gpu, server = "{{instance}} {{gpu_uuid}}", "{{instance}}"
    return [
        Panel(
            "Requests taken",
            "reqps",
            (rate("nv_inference_request_success", "model", "{{model}}"),),
            "Requests that Triton handed to models, those of models to other models included. Refusals by Tidal count "
            "as taken where they are answered later.",
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
            "Requests that Triton has not handed to a model yet. Tidal's models take them at once: a number that stays "
            "is a model that is loading or stuck.",
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
            "Means per request by Triton's clock. Tidal's models answer later than `execute` ends: their latencies are "
            "in the rows below.",
        ),
        Panel(
            "Rows per execution",
            "short",
            (share("nv_inference_count", "nv_inference_exec_count", "model", "{{model}}"),),
            "Rows that Triton hands to a model at once. Batches are made by the model: see its own row.",
        ),
        Panel(
            "Processor",
            "percentunit",
            ((f"nv_cpu_utilization{_ON}", server),),
            "Use of all cores of the machine, by everything that runs there.",
            limits=(0.8, 0.95),
        ),
        Panel(
            "Memory",
            "bytes",
            (
                (f"nv_cpu_memory_used_bytes{_ON}", f"{server} used"),
                (f"nv_cpu_memory_total_bytes{_ON}", f"{server} total"),
            ),
            "Memory of the machine. A model's process that the kernel ends for lack of it shows in `tidal models "
            "status`.",
        ),
        Panel(
            "Server and controller answer",
            "short",
            ((f"up{_ON}", "{{instance}} {{job}}"), (f"tidal_controller_server_up{_ON}", "controller sees the server")),
            "1 where Prometheus can read the metrics, and where the controller finds its server; 0 where not.",
        ),
        Panel(
            "GPU",
            "percentunit",
            ((f"nv_gpu_utilization{_ON}", gpu),),
            "Share of time in which a kernel ran. Empty on machines without a GPU.",
            limits=(0.9, 0.98),
        ),
        Panel(
            "GPU memory",
            "bytes",
            ((f"nv_gpu_memory_used_bytes{_ON}", f"{gpu} used"), (f"nv_gpu_memory_total_bytes{_ON}", f"{gpu} total")),
            "Memory of each GPU. Both versions of a model need room while one replaces the other.",
        ),
    ]


def controller() -> list[Panel]:
    """What `tidal controller` decides about partitioned models."""
    own, runtime = "tidal_controller", "{{model}} {{runtime}}"
    return [
        Panel(
            "Instances wanted",
            "short",
            (level(f"{own}_instances", "model, runtime", runtime),),
            "Instances of each runtime that the controller asks for.",
            stacked=True,
        ),
        Panel(
            "Queries in an SLO period",
            "short",
            (level(f"{own}_demand_queries", "model, runtime", runtime),),
            "Demand by runtime that the decision was made for.",
            stacked=True,
        ),
        Panel(
            "Mean latency",
            "s",
            (
                level(f"{own}_observed_latency_seconds", "model", "{{model}} observed"),
                level(f"{own}_predicted_latency_seconds", "model", "{{model}} predicted"),
            ),
            "What the profile predicts for the allocation, and what was observed. Far apart: other load on the cores, "
            "or a profile of another machine.",
        ),
        Panel(
            "Decisions, changes, missing instances",
            "short",
            (
                rate(f"{own}_decisions_total", "model, action", "{{model}} {{action}} per second"),
                level(f"{own}_instances_short", "model", "{{model}} instances missing"),
            ),
            "Missing instances: the model cannot keep its SLO with those that it may have.",
        ),
    ]
