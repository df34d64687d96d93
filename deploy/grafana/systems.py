"""The panels of each system."""

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
        Panel("Queries by runtime", "reqps", (rate(f"{own}_executed_queries_total", "model, runtime", runtime),), True),
        Panel(
            "Engine time by runtime", "s", quantiles(f"{own}_execute_seconds", "model, runtime", runtime, (0.5, 0.99))
        ),
        Panel("Length of queries in tokens", "short", quantiles(f"{own}_query_length_tokens", "model", "{{model}}")),
        padding("arlo"),
        Panel(
            "Instances of partitioned models", "short", (level(f"{own}_instances", "model, runtime", runtime),), True
        ),
        Panel(
            "Partitioned: outstanding, demoted",
            "short",
            (
                level(f"{own}_outstanding_queries", "model, runtime", f"{runtime} outstanding"),
                rate(f"{own}_demoted_queries_total", "model", "{{model}} demoted a second"),
            ),
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
            "Share answered by level", "percentunit", ((f"{answered} / on (model) group_left {every}", by_level),), True
        ),
        Panel("Time of a level", "s", quantiles(f"{own}_level_seconds", "model, level", by_level, (0.5, 0.99))),
        Panel("Wait for a level", "s", quantiles(f"{own}_level_queue_seconds", "model, level", by_level, (0.5, 0.99))),
        Panel("Confidence", "percentunit", (mean(f"{own}_confidence", "model, level", by_level),)),
        Panel(
            "Words pruned",
            "percentunit",
            (share(f"{own}_pruned_words_total", f"{own}_seen_words_total", "model", "{{model}}"),),
        ),
        Panel(
            "Without a level that they needed",
            "reqps",
            (
                rate(f"{own}_degraded_queries_total", "model, cause", "{{model}} for {{cause}}"),
                rate(f"{own}_level_failures_total", "model, level", f"{by_level} failed"),
                level(f"{own}_lost_calls", "model, level", f"{by_level} calls given up"),
            ),
        ),
        Panel(
            "Answered before the last level",
            "reqps",
            (rate(f"{own}_early_returned_queries_total", "model", "{{model}}"),),
        ),
        Panel(
            "Candidate that serves",
            "short",
            (level(f"{own}_active_candidate", "model, candidate", "{{model}} {{candidate}}"),),
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
            True,
        ),
        Panel("Engine time", "s", quantiles(f"{own}_execute_seconds", "model", name, (0.5, 0.99))),
        *tasks("pets"),
        padding("pets"),
        Panel(
            "On merged copies",
            "short",
            (
                level(f"{own}_merged_copies", "model", f"{name} copies"),
                rate(f"{own}_merged_queries_total", "model", f"{name} queries a second"),
            ),
        ),
        Panel("Length of queries in tokens", "short", quantiles(f"{own}_query_length_tokens", "model", name)),
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
            True,
        ),
        Panel("Batches by γ", "ops", (rate(f"{own}_batches_total", "model, gamma", f"{name} γ {{{{gamma}}}}"),), True),
        Panel(
            "What became of queries",
            "reqps",
            (rate(f"{own}_outcomes_total", "model, outcome", f"{name} {{{{outcome}}}}"),),
            True,
        ),
        Panel(
            "Utility a second",
            "short",
            (rate(f"{own}_utility_total", "model, outcome", f"{name} {{{{outcome}}}}"),),
            True,
        ),
        batches("otas", mean(f"{own}_batch_distinct_tasks", "model", f"{name} tasks")),
        Panel(
            "Engine: busy, and as predicted",
            "percentunit",
            (
                rate(f"{own}_execute_seconds_sum", "model", f"{name} busy"),
                rate(f"{own}_predicted_seconds_total", "model", f"{name} predicted"),
            ),
        ),
        Panel("Time to decide", "s", quantiles(f"{own}_decision_seconds", "model", name, (0.5, 0.99))),
        *tasks("otas"),
    ]


def flover() -> list[Panel]:
    """Generations."""
    own, name = "tidal_flover", "{{model}}"
    return [
        *common("flover"),
        Panel("Time to the first token", "s", quantiles(f"{own}_time_to_first_token_seconds", "model", name)),
        Panel("Time for each further token", "s", quantiles(f"{own}_time_per_output_token_seconds", "model", name)),
        Panel(
            "Tokens a second",
            "short",
            (
                rate(f"{own}_generated_tokens_total", "model", f"{name} generated"),
                rate(f"{own}_prompt_tokens_total", "model", f"{name} read"),
            ),
        ),
        Panel(
            "Slots and generations",
            "short",
            (
                level(f"{own}_running_generations", "model", f"{name} running"),
                level(f"{own}_taken_slots", "model", f"{name} slots taken"),
                level(f"{own}_waiting_generations", "model", f"{name} waiting"),
            ),
        ),
        Panel("Wait for a slot", "s", quantiles(f"{own}_queue_seconds", "model", name, (0.5, 0.99))),
        Panel(
            "A step",
            "s",
            (
                *quantiles(f"{own}_step_seconds", "model", f"{name} step", (0.5, 0.99)),
                *quantiles(f"{own}_between_steps_seconds", "model", f"{name} between steps", (0.5, 0.99)),
            ),
        ),
        Panel(
            "Generations in a step; slots that it covers",
            "short",
            (
                mean(f"{own}_fused_generations", "model", f"{name} generations"),
                share(f"{own}_step_slots_total", f"{own}_step_seconds_count", "model", f"{name} slots"),
            ),
        ),
        Panel(
            "Engine: busy with",
            "percentunit",
            (
                rate(f"{own}_step_seconds_sum", "model", f"{name} steps"),
                rate(f"{own}_prefill_seconds_total", "model", f"{name} prompts"),
            ),
            stacked=True,
        ),
        Panel(
            "What became of generations",
            "reqps",
            (rate(f"{own}_generations_total", "model, outcome", f"{name} {{{{outcome}}}}"),),
            True,
        ),
        Panel("Bytes moved between slots", "Bps", (rate(f"{own}_moved_bytes_total", "model", name),)),
        Panel(
            "Slots moved; shuffles",
            "ops",
            (
                rate(f"{own}_moved_slots_total", "model", f"{name} slots"),
                rate(f"{own}_shuffles_total", "model", f"{name} shuffles"),
            ),
        ),
        Panel(
            "Refused for what they hold; slots repaired",
            "ops",
            (
                rate(f"{own}_refused_requests_total", "model", f"{name} refused"),
                rate(f"{own}_repaired_slots_total", "model", f"{name} repaired"),
            ),
        ),
    ]
