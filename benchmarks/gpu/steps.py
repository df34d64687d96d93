"""The steps of a visit, in the order of their value, with what each requires and the claims it gives."""

from __future__ import annotations

from dataclasses import dataclass

# Libraries of every step that runs Tidal's torch engines.
_TORCH = ("torch", "numpy", "pydantic", "safetensors", "psutil", "tokenizers")


@dataclass(frozen=True, slots=True)
class Step:
    """A part of the visit that runs in a process of its own.

    Attributes:
        name: Name of the step, and of its module in this package.
        title: Subject of the measurement.
        limit_s: Longest duration in seconds on a GPU.
        requires: Modules that must be importable; the step is skipped otherwise.
    """

    name: str
    title: str
    limit_s: float
    requires: tuple[str, ...] = _TORCH


@dataclass(frozen=True, slots=True)
class Goal:
    """A claim that a step may give.

    Attributes:
        name: Name of the claim.
        bound: Relation and number, such as "<= 0.8".
        step: Name of the step that measures it.
        paper: Published figure, if there is one.
    """

    name: str
    bound: str
    step: str
    paper: str | None = None

    def holds(self, measured: float) -> bool:
        """Whether a figure meets the goal."""
        relation, bound = self.bound.split()
        return measured <= float(bound) if relation == "<=" else measured >= float(bound)


STEPS = (
    Step("gpu_tests", "tests that need a GPU (pytest -m gpu)", 120, ("pytest", *_TORCH)),
    Step("answers", "torch engines of all systems against their answers on the CPU", 90),
    Step("lengths", "BERT-base: static, dynamic and variable-length kernels by input length", 75),
    Step("live_arlo", "BERT-base under load: one length, dynamic lengths, Arlo", 60),
    Step("tasks", "BERT-base with 32 tasks: PetS against a model per task", 60),
    Step("gammas", "ViT-B/16: throughput by gamma", 75),
    Step("gpt2", "decoder of GPT-2's size: Flover against concurrent instances and transformers", 60),
    Step("gptj", "decoder of GPT-J's size: Flover against concurrent instances and transformers", 75),
    Step("task_memory", "device memory by number of tasks", 30),
    Step("plans", "TensorRT: a plan of BERT-base, its answers and latency", 90, ("tensorrt", "cuda.bindings", *_TORCH)),
)

GOALS = (
    Goal("gpu_tests_failed", "<= 0", "gpu_tests"),
    Goal("gpu_answers_error", "<= 0.02", "answers"),
    Goal("gpu_static_vs_dynamic", "<= 0.82", "lengths", "1/1.22 to 1/3.56"),
    Goal("gpu_arlo_mean_vs_dt[90]", "<= 0.80", "live_arlo"),
    Goal("gpu_pets_vs_seqs[32]", ">= 1.6", "tasks", "1.53 to 1.87"),
    Goal("gpu_otas_throughput[-15/0]", ">= 1.5", "gammas"),
    Goal("gpu_flover_vs_instances[32]", ">= 11", "gpt2", "11"),
    Goal("gpu_task_memory_vs_models[32]", "<= 0.15", "task_memory"),
)


def find_step(name: str) -> Step:
    """Return the step with this name; raises `KeyError` if there is none."""
    return {step.name: step for step in STEPS}[name]
