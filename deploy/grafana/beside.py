"""The panels of the server itself and of the controller."""

from __future__ import annotations

from deploy.grafana.queries import INSTANCE, Panel, level, mean, rate, share

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
            (
                (f"up{_ON}", "{{instance}} {{job}}"),
                (f'tidal_cluster_nodes{{state="serves", {INSTANCE}}}', "controller sees the server {{node}}"),
            ),
            "1 if Prometheus can read the metrics, and if the controller sees the server of each node serve; else 0.",
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
    """Panels of the decisions of `tidal controller`, or of a cluster's controller, about partitioned models."""
    own, runtime = "tidal_cluster", "{{model}} {{runtime}}"
    return [
        Panel(
            "Instances: running and planned",
            "short",
            (
                level(f"{own}_instances", "model, runtime", f"{runtime} running"),
                level(f"{own}_planned_instances", "model, runtime", f"{runtime} planned"),
            ),
            "Instances of each runtime on all nodes, and those of the last plan. They differ while a change is carried "
            "out, or if it failed.",
        ),
        Panel(
            "Demand per SLO period",
            "short",
            (level(f"{own}_demand_queries", "model, runtime", runtime),),
            "Queries by runtime in an SLO period, on which the last plan is based. Empty if it does not use them.",
            stacked=True,
        ),
        Panel(
            "Arrivals by runtime",
            "reqps",
            (rate(f"{own}_queries_total", "model, runtime", runtime),),
            "Queries that arrived at all nodes, by the shortest runtime that fits them.",
            stacked=True,
        ),
        Panel(
            "Mean latency",
            "s",
            (
                level(f"{own}_observed_latency_seconds", "model", "{{model}} observed"),
                level(f"{own}_predicted_latency_seconds", "model", "{{model}} predicted"),
            ),
            "Mean latency that the profile predicts for the planned instances, and that of the queries before the "
            "plan. A large difference means other load on the cores, or a profile of another machine.",
        ),
        Panel(
            "Plans and changes",
            "ops",
            (
                rate(f"{own}_plans_total", "model, trigger", "{{model}} plan: {{trigger}}"),
                rate(f"{own}_plans_total", "model, action", "{{model}} plan: {{action}}"),
                rate(f"{own}_changes_total", "model, result", "{{model}} change {{result}}"),
                rate(f"{own}_moved_instances_total", "model", "{{model}} instances moved"),
            ),
            "Plans by what required them and by what they do, changes by result, and instances that started or ended. "
            "`tidal cluster status`, or the output of `tidal controller`, has the reason of the last plan, and that of "
            "a failed change.",
        ),
        Panel(
            "Time of plans and changes",
            "s",
            (
                mean(f"{own}_planning_seconds", "model", "{{model}} plan"),
                mean(f"{own}_change_seconds", "model", "{{model}} change"),
            ),
            "Mean time to compute a plan, and to carry out a change.",
        ),
        Panel(
            "Blocked, short of devices",
            "short",
            (
                level(f"{own}_planning_blocked", "model", "{{model}} blocked"),
                level(f"{own}_instances_short", "model", "{{model}} instances missing"),
                level(f"{own}_devices", "model", "{{model}} devices"),
            ),
            "1 while nothing can be decided about a model (`tidal cluster status`, or the output of `tidal "
            "controller`, says why), the instances that its SLO lacks, and those that the devices of the nodes hold.",
        ),
    ]
