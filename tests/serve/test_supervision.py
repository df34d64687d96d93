"""The supervisor's decisions, poll by poll."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from tidal.server.stubs import Stub, wanted_instances
from tidal.server.supervision import StubObservation, SupervisionState, decide


def stubs(model: str, *pids: int, version: int = 1) -> list[Stub]:
    return [Stub(pid, model, version, f"{model}_0_{i}") for i, pid in enumerate(pids)]


def observed(
    wanted: dict[tuple[str, int], int],
    live: Iterable[Stub],
    loading: Iterable[str] = (),
    failed: Iterable[str] = (),
) -> StubObservation:
    return StubObservation(wanted, frozenset(loading), frozenset(failed), frozenset(live))


TWO = {("m", 1): 2}
WELL = observed(TWO, stubs("m", 10, 11))
SHORT = observed(TWO, stubs("m", 10))


def polls(*observations: tuple[float, StubObservation]) -> list[list[str]]:
    memory, decisions = SupervisionState(), []
    for at, observation in observations:
        due, memory = decide(memory, observation, at)
        decisions.append(due)
    return decisions


def test_restarts_at_the_second_poll() -> None:
    assert polls((0, WELL), (1, SHORT), (2, SHORT)) == [[], [], ["m"]]


def test_one_short_poll_is_not_enough() -> None:
    assert polls((0, SHORT), (1, WELL), (2, SHORT), (3, WELL)) == [[], [], [], []]


def test_not_while_it_is_being_loaded() -> None:
    loading = observed(TWO, stubs("m", 10), loading=["m"])
    completing = observed(TWO, [*stubs("m", 10), Stub(12, "m", 1, "m")])
    assert polls((0, loading), (1, loading), (2, completing), (3, completing)) == [[]] * 4


def test_the_stub_that_completes_the_config_does_not_count() -> None:
    assert polls((0, SHORT), (1, observed(TWO, [*stubs("m", 10), Stub(12, "m", 1, "m")])), (2, SHORT)) == [[], [], []]


def test_a_new_version_does_not_count_the_stubs_of_the_old() -> None:
    moved = observed({("m", 2): 2}, [*stubs("m", 10, 11), *stubs("m", 20, version=2)])
    assert polls((0, moved), (1, moved)) == [[], ["m"]]


def test_an_unloaded_model_is_left_alone() -> None:
    assert polls((0, WELL), (1, observed({}, [])), (2, observed({}, []))) == [[], [], []]


def test_a_failed_load_by_others_is_left_alone() -> None:
    failed = observed({}, [], failed=["m"])
    assert polls((0, failed), (10, failed), (100, failed)) == [[], [], []]


def test_a_failed_restart_is_retried_with_growing_pauses() -> None:
    failed = observed({}, [], failed=["m"])
    at = [0.0, 0.4, 0.8, 1.2, 1.6, 2.0, 2.4, 2.8, 3.2, 3.6, 7.8]
    decisions = polls(*((t, SHORT if t < 0.5 else failed) for t in at))
    assert [t for t, due in zip(at, decisions, strict=True) if due] == [0.4, 1.6, 3.6, 7.8]


def test_stubs_from_before_the_restart_do_not_hide_a_second_crash() -> None:
    """Old stubs linger some seconds after they stopped serving."""
    lingering = [*stubs("m", 10), *stubs("m", 30)]  # 10 is from before the restart; of the new 30 and 31, 31 is dead
    decisions = polls((0, SHORT), (1, SHORT), (5, observed(TWO, lingering)), (6, observed(TWO, lingering)))
    assert decisions == [[], ["m"], [], ["m"]]


def ended(*observations: tuple[float, StubObservation]) -> list[tuple[int, ...]]:
    memory, endings = SupervisionState(), []
    for at, observation in observations:
        _, memory = decide(memory, observation, at)
        endings.append(memory.overdue)
    return endings


def test_a_stub_from_before_the_restart_is_ended_after_a_minute() -> None:
    both = observed(TWO, [*stubs("m", 10), *stubs("m", 30, 31)])  # 10 is one of the two that the restart replaced
    after = observed(TWO, stubs("m", 30, 31))
    assert ended((0, SHORT), (1, SHORT), (60, both), (61, both), (62, after)) == [(), (), (), (10,), ()]


def test_a_stub_without_replacement_is_not_ended() -> None:
    """The restart failed before it unloaded the model: the remaining stub still serves."""
    assert ended((0, SHORT), (1, SHORT), (60, SHORT), (100, SHORT), (300, SHORT)) == [()] * 5
    gone = observed({}, stubs("m", 10))
    assert ended((0, SHORT), (1, SHORT), (60, gone), (100, gone)) == [()] * 4


def test_a_model_that_waits_for_its_next_restart_is_known() -> None:
    memory, waiting = SupervisionState(), []
    for at in (0, 1, 1.2, 1.4, 2.1):  # short, restarted, and short again within a second
        _, memory = decide(memory, SHORT, at)
        waiting.append(set(memory.waiting))
    assert waiting == [set(), set(), set(), {"m"}, set()]


def test_backoff_restarts_once_the_model_was_stable() -> None:
    decisions = polls((0, SHORT), (1, SHORT), (1.2, SHORT), (1.4, SHORT), (500, SHORT), (501, SHORT))
    assert decisions == [[], ["m"], [], [], ["m"], []]


@given(
    st.lists(
        st.tuples(st.integers(0, 4), st.integers(0, 3), st.booleans()),
        max_size=40,
    )
)
def test_never_restarts_a_model_that_has_its_stubs_or_is_loading(history: list[tuple[int, int, bool]]) -> None:
    memory = SupervisionState()
    for step, (live, wanted, loading) in enumerate(history):
        # New processes at each poll, so that none counts as one from before a restart.
        pids = range(100 * step, 100 * step + live)
        observation = observed({("m", 1): wanted}, stubs("m", *pids), loading=["m"] if loading else [])
        due, memory = decide(memory, observation, float(step))
        assert not due or (live < wanted and not loading)


def test_instances_that_a_config_specifies() -> None:
    groups = [{"kind": "KIND_CPU", "count": 3}, {"kind": "KIND_GPU", "count": 2, "gpus": [0, 1]}, {"count": 1}]
    assert wanted_instances({"instance_group": groups}) == 8
    assert wanted_instances({}) == 0
