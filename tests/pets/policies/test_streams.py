"""Algorithm 2 of the PetS paper, the number of streams, and the search for thresholds."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.pets.policies.costs import make_profile
from tidal.errors import InvalidArgument
from tidal.pets.policies.streams import TaskOperator, assign_streams, operational_intensity, stream_count
from tidal.pets.policies.thresholds import ThresholdCase, best_threshold
from tidal.pets.profile import Grid, OperatorProfile, PetsProfile, StreamRule

# Per token, a dense kind takes 1,000 operations at 2 GB/s, a sparse one 100 at 4 GB/s; both take 1 µs.
_TIMES = make_profile(
    lambda length, n: 10.0,
    {"dense": lambda length, n: 1e-3 * length * n, "sparse": lambda length, n: 1e-3 * length * n},
)
PROFILE = PetsProfile(
    **{
        **dict(_TIMES),
        "operators": {
            kind: OperatorProfile(
                flops_per_token=flops,
                gigabytes_per_s=Grid(lengths=(16,), batches=(1, 16), values=((bandwidth, bandwidth),)),
            )
            for kind, flops, bandwidth in (("dense", 1000, 2), ("sparse", 100, 4))
        },
    }
)
OPERATORS = st.lists(
    st.builds(TaskOperator, st.sampled_from(("dense", "sparse")), st.integers(1, 16), st.integers(1, 16)), max_size=100
)


def test_intensity_is_operations_per_byte() -> None:
    assert operational_intensity(TaskOperator("dense", 2, 8), PROFILE) == pytest.approx(1000 / (1e-6 * 2e9))
    assert operational_intensity(TaskOperator("sparse", 1, 3), PROFILE) == pytest.approx(100 / (1e-6 * 4e9))


def test_operators_of_similar_intensity_share_a_stream() -> None:
    kinds = ("dense", "sparse", "sparse", "dense", "sparse", "sparse")
    assert assign_streams([TaskOperator(kind, 1, 8) for kind in kinds], PROFILE, 3) == [2, 0, 0, 2, 1, 1]


@given(operators=OPERATORS, streams=st.integers(1, 8))
def test_streams_are_valid_balanced_and_sorted_by_intensity(operators: list[TaskOperator], streams: int) -> None:
    chosen = assign_streams(operators, PROFILE, streams)
    assert all(0 <= stream < streams for stream in chosen)
    counts = [chosen.count(stream) for stream in range(streams)]
    assert max(counts) - min(counts) <= 1
    intensities = [operational_intensity(operator, PROFILE) for operator in operators]
    assert [each for _, each in sorted(zip(chosen, intensities, strict=True))] == sorted(intensities)


def test_the_index_printed_in_the_paper_overruns() -> None:
    """⌊idx/|S|⌋ gives stream 2 of 2 for the fifth of five operators, so it is not used."""
    assert [index // 2 for index in range(5)][-1] == 2
    assert max(assign_streams([TaskOperator("dense", 1, 8)] * 5, PROFILE, 2)) == 1


def test_a_kind_without_operators_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="no operators of the kind 'dens'; did you mean 'dense'"):
        assign_streams([TaskOperator("dens", 1, 8)], PROFILE, 2)


def test_short_operators_get_few_streams_and_long_ones_many() -> None:
    rule = StreamRule(threshold_tokens=100, few=2, many=6)
    short, long = TaskOperator("dense", 3, 33), TaskOperator("dense", 4, 25)
    assert stream_count([short] * 8, rule) == 2
    assert stream_count([long] * 8, rule) == 6
    assert stream_count([long, short, short, long, long], rule) == 2
    assert stream_count([long] * 3, rule) == 3
    assert stream_count([short], rule) == 1
    assert stream_count([], rule) == 1


CASES = st.lists(st.builds(ThresholdCase, st.integers(1, 6), st.integers(1, 20), st.integers(1, 20)), max_size=8)


@given(cases=CASES)
def test_the_threshold_minimises_the_total_cost(cases: list[ThresholdCase]) -> None:
    def total(threshold: float) -> float:
        return sum(case.below if case.value < threshold else case.above for case in cases)

    assert total(best_threshold(cases)) == min(total(number / 2) for number in range(15))


def test_the_threshold_lies_between_measured_values() -> None:
    near, far = ThresholdCase(2, 1.0, 1.5), ThresholdCase(4, 1.2, 1.1)
    assert best_threshold([far, near]) == 3
    assert best_threshold([far]) == 0
    assert best_threshold([near]) == sys.float_info.max
