"""The panels of `flover`, which generates texts."""

from __future__ import annotations

from deploy.grafana.queries import Panel, level, mean, quantiles, rate, share
from deploy.grafana.shared import common


def flover() -> list[Panel]:
    """Generations."""
    own, name = "tidal_flover", "{{model}}"
    return [
        *common("flover"),
        Panel(
            "Time to the first token",
            "s",
            quantiles(f"{own}_time_to_first_token_seconds", "model", name),
            "Time from arrival to the first token: wait for a slot, and prefill.",
        ),
        Panel(
            "Time per output token",
            "s",
            quantiles(f"{own}_time_per_output_token_seconds", "model", name),
            "Mean time between the tokens of a generation.",
        ),
        Panel(
            "Tokens per second",
            "short",
            (
                rate(f"{own}_generated_tokens_total", "model", f"{name} generated"),
                rate(f"{own}_prompt_tokens_total", "model", f"{name} prefilled"),
            ),
            "Generated tokens, and prefilled tokens of prompts.",
        ),
        Panel(
            "Slots and generations",
            "short",
            (
                level(f"{own}_running_generations", "model", f"{name} running"),
                level(f"{own}_taken_slots", "model", f"{name} slots in use"),
                level(f"{own}_waiting_generations", "model", f"{name} waiting"),
            ),
            "Generations wait if all slots are in use: raise `max_concurrency` in the spec.",
        ),
        Panel(
            "Keys and values",
            "bytes",
            (
                level(f"{own}_kv_cache_bytes", "model", f"{name} committed"),
                level(f"{own}_kv_cache_budget_bytes", "model", f"{name} budget"),
            ),
            "Memory committed to keys and values, those kept for later prompts included, and its budget.",
        ),
        Panel(
            "Preemptions, recomputed tokens",
            "ops",
            (
                rate(f"{own}_preemptions_total", "model", f"{name} preemptions"),
                rate(f"{own}_recomputed_tokens_total", "model", f"{name} tokens"),
            ),
            "Generations requeued because keys and values exceeded their budget, and the tokens prefilled again: raise "
            "`kv_cache_mb`.",
        ),
        Panel(
            "Wait for a slot",
            "s",
            quantiles(f"{own}_queue_seconds", "model", name, (0.5, 0.99)),
            "Time from arrival until slots are allocated.",
        ),
        Panel(
            "Decode step",
            "s",
            (
                *quantiles(f"{own}_step_seconds", "model", f"{name} step", (0.5, 0.99)),
                *quantiles(f"{own}_between_steps_seconds", "model", f"{name} between steps", (0.5, 0.99)),
            ),
            "Time of a step, and from one step to the next. A large difference means that prefills run in between: see "
            "`prefill_share`.",
        ),
        Panel(
            "Generations per step",
            "short",
            (
                mean(f"{own}_fused_generations", "model", f"{name} generations"),
                share(f"{own}_step_slots_total", f"{own}_step_seconds_count", "model", f"{name} slots"),
            ),
            "Means per step: generations that share it, and slots that it covers, including free slots in between.",
        ),
        Panel(
            "Engine utilization",
            "percentunit",
            (
                rate(f"{own}_step_seconds_sum", "model", f"{name} decode"),
                rate(f"{own}_prefill_seconds_total", "model", f"{name} prefill"),
            ),
            "Share of time in decode steps and in prefill.",
            stacked=True,
            limits=(0.9, 0.98),
        ),
        Panel(
            "Generation outcomes",
            "reqps",
            (rate(f"{own}_generations_total", "model, outcome", f"{name} {{{{outcome}}}}"),),
            "Generations per second by outcome: end of text, stop text, maximum length, cancelled, late, or failed.",
            stacked=True,
        ),
        Panel(
            "Bytes moved between slots",
            "Bps",
            (rate(f"{own}_moved_bytes_total", "model", name),),
            "Keys and values copied to make the slots of running generations contiguous.",
        ),
        Panel(
            "Slots moved, shuffles",
            "ops",
            (
                rate(f"{own}_moved_slots_total", "model", f"{name} slots"),
                rate(f"{own}_shuffles_total", "model", f"{name} shuffles"),
            ),
            "Shuffles, which make the slots of running generations contiguous, and the slots that they move.",
        ),
        Panel(
            "Requests refused, slots repaired",
            "ops",
            (
                rate(f"{own}_refused_requests_total", "model", f"{name} refused"),
                rate(f"{own}_repaired_slots_total", "model", f"{name} repaired"),
            ),
            "Requests refused for their input or task. A repaired slot held values that are not finite: see the log of "
            "the model.",
        ),
    ]
