"""The precision of an encoder's engines: the spec's, or the one that measurements choose."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pydantic import BaseModel

from tidal.arlo.manifest import Trial
from tidal.device import DeviceKind
from tidal.engines import Precision, stored_as
from tidal.errors import InvalidArgument, Unsupported, did_you_mean
from tidal_builders.arlo.choices import MIN_GAIN
from tidal_builders.arlo.ladder import Ladder
from tidal_builders.arlo.opened import Compiled, Opened, open_form
from tidal_builders.arlo.reference import Facts
from tidal_builders.arlo.spec import ArloSpec
from tidal_builders.arlo.verify import Comparison
from tidal_builders.arlo.workers import default_workers
from tidal_builders.runner import StageProgress


class PrecisionChoice(BaseModel):
    """The chosen precision.

    Attributes:
        chosen: Precision to build with; None if no candidate is within its tolerance.
        trials: Candidates that were compared.
        misses: Reasons why candidates were rejected, one clause each.
    """

    chosen: Precision | None
    trials: tuple[Trial, ...]
    misses: tuple[str, ...]


def choose_precision(
    spec: ArloSpec,
    device: DeviceKind,
    facts: Facts,
    compiled: Callable[[Precision], Compiled],
    compare: Callable[[Opened], Comparison],
    mean_ms: Callable[[Mapping[Precision, Opened]], Mapping[Precision, float]],
    progress: StageProgress,
) -> PrecisionChoice:
    """Choose the spec's precision, or for `auto` the most precise one within the tolerance and near the fastest.

    Args:
        spec: Spec of the model.
        device: Device that the engines run on.
        facts: Properties of the source model.
        compiled: Returns the model compiled for a precision.
        compare: Compares engines with the source model.
        mean_ms: Measures the mean latencies of engines, by precision, in milliseconds.
        progress: Called with the name of the running stage and the completed share of it.

    Raises:
        InvalidArgument: The engine does not support the spec's precision on the device.
        Unsupported: This machine does not support it.
    """
    offered, wanted = stored_as(spec.engine, device), spec.precision
    if wanted != "auto" and wanted not in offered:
        raise InvalidArgument(
            f"field 'precision': engine {spec.engine} does not support {wanted} on a {device}; "
            f"{did_you_mean(wanted, [*offered, 'auto'])}"
        )
    passed: dict[Precision, Opened] = {}
    errors: dict[Precision, float] = {}
    misses: list[str] = []
    trials: list[Trial] = []
    for precision in offered if wanted == "auto" else (wanted,):
        try:
            one = Ladder(lengths=(facts.max_length,), static_upto=0)
            opened = open_form(compiled(precision), one, default_workers(spec))
        except Unsupported as error:
            if wanted != "auto":
                raise
            misses.append(f"{precision}: {error}")
            trials.append(_trial(precision, None, None, "not offered here"))
            continue
        progress(f"verify {precision}", 0.0)
        comparison = compare(opened)
        errors[precision] = float(comparison.error.max())
        if clauses := comparison.shortfalls(precision, spec.tolerance):
            misses += [f"{precision}: {clause}" for clause in clauses]
            trials.append(_trial(precision, None, errors[precision], "misses tolerance"))
        else:
            passed[precision] = opened
    if not passed:
        return PrecisionChoice(chosen=None, trials=tuple(trials), misses=tuple(misses))
    means: dict[Precision, float | None] = dict.fromkeys(passed)
    chosen = next(iter(passed))
    if len(passed) > 1:
        timed = mean_ms(passed)
        # Candidates are ordered from the most precise to the least.
        fastest = min(timed.values())
        means, chosen = dict(timed), next(name for name in timed if timed[name] * (1 - MIN_GAIN) <= fastest)
    trials += [_trial(name, means[name], errors[name], "chosen" if name == chosen else "slower") for name in passed]
    return PrecisionChoice(chosen=chosen, trials=tuple(trials), misses=())


def _trial(precision: Precision, mean_ms: float | None, error: float | None, verdict: str) -> Trial:
    return Trial.model_validate(
        {
            "precision": precision,
            "form": "dynamic",
            "choice": "precision",
            "mean_ms": mean_ms,
            "max_abs_error": None if error == float("inf") else error,
            "verdict": verdict,
        }
    )
