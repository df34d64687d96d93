from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidal.errors import InvalidArgument
from tidal.tabi.manifest import Candidate, Expected, Latency, Target
from tidal.tabi.selection import select
from tidal_builders.tabi.pareto import SCORE_STEP, Configuration, thin_out


def _found(score: float, mean: float, returned: float, weighting: str = "accuracy") -> Configuration:
    latency = Latency(mean=mean, p25=1, p50=1, p75=1, p99=1)
    expected = Expected(score=score, latency=latency, returned=(returned, 1 - returned), pruned=0.0)
    return Configuration((0, 1), None, 0.9, 10.0, weighting, ((1.0,), (0.5, 0.5)), expected, score)  # type: ignore[arg-type]


@given(
    st.lists(
        st.builds(
            _found, st.floats(0.9, 0.93), st.floats(1, 5), st.floats(0, 1), st.sampled_from(["accuracy", "tuned"])
        ),
        min_size=1,
        max_size=40,
    )
)
@settings(deadline=None)
def test_thinning_out_worsens_the_choice_for_no_target(every: list[Configuration]) -> None:
    kept = thin_out(every)
    assert all(each in every for each in kept)
    for weighting in {each.weighting for each in every}:
        all_of, left = ([each for each in some if each.weighting == weighting] for some in (every, kept))
        candidates, few = (
            [Candidate(name="", **_fields(each), selection=each.selection, reported=each.selection) for each in some]
            for some in (all_of, left)
        )
        best = max(each.selection.score for each in all_of)
        assert max(each.selection.score for each in left) == best
        for step in range(900, 931):
            if step * SCORE_STEP <= best:
                target = Target(accuracy=step * SCORE_STEP)
                one, other = (some[select(some, target)] for some in (candidates, few))
                assert one.selection.latency.mean == pytest.approx(other.selection.latency.mean)
        for target in (*(Target(latency_ms=ms) for ms in (1.5, 3, 5)), *(Target(escalation_rate=r) for r in (0.2, 1))):
            try:
                one = candidates[select(candidates, target)]
            except InvalidArgument:
                continue
            other = few[select(few, target)]
            assert other.selection.score >= one.selection.score - SCORE_STEP - 1e-9


def _fields(found: Configuration) -> dict[str, object]:
    names = ("levels", "cutoff", "slope", "pruning", "weights", "weighting")
    return {name: getattr(found, name) for name in names}


def test_the_cheapest_within_a_step_of_score_and_the_best_of_all_are_kept() -> None:
    best, cheap = _found(0.9208, 5.0, 0.2), _found(0.9202, 3.0, 0.6)  # in the same step
    costly, cheaper = _found(0.9108, 2.5, 0.7), _found(0.9102, 2.0, 0.8)
    worse = _found(0.9007, 2.1, 0.75)
    assert thin_out([costly, worse, cheap, cheaper, best]) == [best, cheap, cheaper]
    # Among equally good ones the cheapest is the best.
    assert thin_out([best, _found(0.9208, 4.0, 0.3)]) == [_found(0.9208, 4.0, 0.3)]
