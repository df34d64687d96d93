"""The panels of each system that classifies; those of `flover` are in `generations`."""

from __future__ import annotations

from deploy.grafana.queries import Panel, level, mean, quantiles, rate, share
from deploy.grafana.shared import batches, common, padding, queue, tasks


def arlo() -> list[Panel]:
    """Polymorphic and partitioned models."""
    own, runtime = "tidal_arlo", "{{model}} {{runtime}}"
    return [
        *common("arlo"),
        *queue("arlo"),
        batches("arlo", mean(f"{own}_batch_distinct_lengths", "model", "{{model}} different lengths")),
        Panel(
            "Queries by runtime",
            "reqps",
            (rate(f"{own}_executed_queries_total", "model, runtime", runtime),),
            "Queries executed per second, by the length of the runtime in tokens.",
            stacked=True,
        ),
        Panel(
            "Engine time by runtime",
            "s",
            quantiles(f"{own}_execute_seconds", "model, runtime", runtime, (0.5, 0.99)),
            "Time of a batch. Much above the profile: other load on the cores, or a build on another machine.",
        ),
        Panel(
            "Length of queries",
            "short",
            quantiles(f"{own}_query_length_tokens", "model", "{{model}}"),
            "Number of tokens with special tokens. The lengths of the spec should fit this distribution.",
        ),
        padding("arlo"),
        Panel(
            "Instances of partitioned models",
            "short",
            (level(f"{own}_instances", "model, runtime", runtime),),
            "Active instances by runtime, including those that are being removed.",
            stacked=True,
        ),
        Panel(
            "Partitioned: outstanding, demoted",
            "short",
            (
                level(f"{own}_outstanding_queries", "model, runtime", f"{runtime} outstanding"),
                rate(f"{own}_demoted_queries_total", "model", "{{model}} demoted per second"),
            ),
            "Queries that wait for a runtime or run on it, and dispatches to a longer runtime than needed. Against "
            "many demotions, add instances of the shorter runtimes, or raise `slo_ms`.",
        ),
    ]


def tabi() -> list[Panel]:
    """Cascades."""
    own, by_level = "tidal_tabi", "{{model}} level {{level}}"
    answered, _ = rate(f"{own}_answered_queries_total", "model, level", "")
    every, _ = rate(f"{own}_answered_queries_total", "model", "")
    return [
        *common("tabi"),
        Panel(
            "Share answered by level",
            "percentunit",
            ((f"{answered} / on (model) group_left {every}", by_level),),
            "Level that answered. A larger share of the last level than in the build means other data, or lost "
            "calibration.",
            stacked=True,
        ),
        Panel(
            "Time of a level",
            "s",
            quantiles(f"{own}_level_seconds", "model, level", by_level, (0.5, 0.99)),
            "Time until the model of a level answers.",
        ),
        Panel(
            "Wait for a level",
            "s",
            quantiles(f"{own}_level_queue_seconds", "model, level", by_level, (0.5, 0.99)),
            "Time that queries wait for a level whose capacity is exhausted.",
        ),
        Panel(
            "Confidence",
            "percentunit",
            (mean(f"{own}_confidence", "model, level", by_level),),
            "Mean calibrated confidence of each level's answers. A change without a new version means other data.",
        ),
        Panel(
            "Words pruned",
            "percentunit",
            (share(f"{own}_pruned_words_total", f"{own}_seen_words_total", "model", "{{model}}"),),
            "Share of the words that are not passed to the next level.",
        ),
        Panel(
            "Degraded answers",
            "reqps",
            (
                rate(f"{own}_degraded_queries_total", "model, cause", "{{model}} for {{cause}}"),
                rate(f"{own}_level_failures_total", "model, level", f"{by_level} failed"),
                level(f"{own}_lost_calls", "model, level", f"{by_level} calls abandoned"),
            ),
            "Queries answered without a level that they needed, by cause, and failures of levels. Abandoned calls hold "
            "threads until the model is loaded again.",
        ),
        Panel(
            "Answered before the last level",
            "reqps",
            (rate(f"{own}_early_returned_queries_total", "model", "{{model}}"),),
            "Queries per second answered by a smaller level with enough confidence.",
        ),
        Panel(
            "Active candidate",
            "short",
            (level(f"{own}_active_candidate", "model, candidate", "{{model}} {{candidate}}"),),
            "Number of servers on which a candidate is active. It changes under load if `overload_ms` is set.",
        ),
    ]


def pets() -> list[Panel]:
    """Tasks on one frozen encoder."""
    own, name = "tidal_pets", "{{model}}"
    return [
        *common("pets"),
        *queue("pets"),
        batches(
            "pets",
            mean(f"{own}_batch_distinct_tasks", "model", f"{name} tasks"),
            mean(f"{own}_batch_distinct_kinds", "model", f"{name} kinds"),
        ),
        Panel(
            "Queries by kind of task",
            "reqps",
            (rate(f"{own}_executed_queries_total", "model, kind", f"{name} {{{{kind}}}}"),),
            "Queries executed per second, by the kind of fine-tuning of their task.",
            stacked=True,
        ),
        Panel(
            "Engine time",
            "s",
            quantiles(f"{own}_execute_seconds", "model", name, (0.5, 0.99)),
            "Time of a batch in the engine.",
        ),
        *tasks("pets"),
        padding("pets"),
        Panel(
            "Merged copies",
            "short",
            (
                level(f"{own}_merged_copies", "model", f"{name} copies"),
                rate(f"{own}_merged_queries_total", "model", f"{name} queries per second"),
            ),
            "Copies of the base with a frequent task merged into it, and queries executed on them.",
        ),
        Panel(
            "Length of queries",
            "short",
            quantiles(f"{own}_query_length_tokens", "model", name),
            "Number of tokens with special tokens.",
        ),
    ]


def otas() -> list[Panel]:
    """Vision transformers."""
    own, name = "tidal_otas", "{{model}}"
    return [
        *common("otas"),
        *queue("otas"),
        Panel(
            "Queries by γ",
            "reqps",
            (rate(f"{own}_executed_queries_total", "model, gamma", f"{name} γ {{{{gamma}}}}"),),
            "Queries executed per second by γ: above 0 prompts are added, below 0 tokens are merged. If γ is always "
            "the lowest, the load is too high for the deadlines.",
            stacked=True,
        ),
        Panel(
            "Batches by γ",
            "ops",
            (rate(f"{own}_batches_total", "model, gamma", f"{name} γ {{{{gamma}}}}"),),
            "Batches executed per second, by the γ of their queries.",
            stacked=True,
        ),
        Panel(
            "Query outcomes",
            "reqps",
            (rate(f"{own}_outcomes_total", "model, outcome", f"{name} {{{{outcome}}}}"),),
            "Queries per second that were answered in time or late, evicted because they could not meet their "
            "deadline, cancelled, or failed.",
            stacked=True,
        ),
        Panel(
            "Utility per second",
            "short",
            (rate(f"{own}_utility_total", "model, outcome", f"{name} {{{{outcome}}}}"),),
            "Utility of queries by outcome. Only queries in time earn their utility.",
            stacked=True,
        ),
        batches("otas", mean(f"{own}_batch_distinct_tasks", "model", f"{name} tasks")),
        Panel(
            "Engine utilization",
            "percentunit",
            (
                rate(f"{own}_execute_seconds_sum", "model", f"{name} busy"),
                rate(f"{own}_predicted_seconds_total", "model", f"{name} predicted"),
            ),
            "Share of time in which the engine runs, measured and predicted by the profile for the same batches. A "
            "large difference means a profile of another machine or load.",
            limits=(0.9, 0.98),
        ),
        Panel(
            "Decision time",
            "s",
            quantiles(f"{own}_decision_seconds", "model", name, (0.5, 0.99)),
            "Time of the policy to choose a batch and its γ.",
        ),
        *tasks("otas"),
    ]
