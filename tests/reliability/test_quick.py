"""The short form of the reliability suite: one server, three tiny models, a few of everything, no bound on time."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from reliability.models import SMALL, build_few
from reliability.run import SCENARIOS, counted
from reliability.scenarios import killed_stubs
from reliability.scenarios.builds import publish_until_killed
from reliability.server_under_test import ServerUnderTest
from tidal import device
from tidal.arlo.manifest import load_arlo_manifest
from tidal.repository.entries import ModelEntry
from tidal.server.change import reload, serving_versions

pytestmark = pytest.mark.server

# What is not here takes long by itself, or is judged by time alone.
COUNTED = ("publishing", "tasks", "malformed", "hostile")
# A stub that is killed while it holds a lock that it shares with tritonserver ends that, too.
_TRIES = 5
_KILLS = 3


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerUnderTest]:
    folder = tmp_path_factory.mktemp("reliability")
    opened = ServerUnderTest(build_few(folder), folder, quick=True)
    try:
        yield opened
    finally:
        opened.stop()


def holds(target: ServerUnderTest, scenario: str) -> None:
    for row in SCENARIOS[scenario](target):
        assert row.holds, row


@pytest.mark.parametrize("name", COUNTED)
def test_guarantees_hold(target: ServerUnderTest, name: str) -> None:
    holds(target, name)


def test_every_request_was_answered_exactly_once(target: ServerUnderTest) -> None:
    """After those: of all that they sent."""
    if not target.counted:
        pytest.skip("no test that sends requests was selected")
    row = counted(target)
    assert row.requests > 0
    assert row.holds, row


def test_cancellations_release_all_resources(target: ServerUnderTest) -> None:
    holds(target, "cancellations")


def test_killed_builders_leave_whole_versions_that_serve(target: ServerUnderTest) -> None:
    """Killed while they publish: at any other time `tests/builders` kill them."""
    folder, draw = target.repository.folder, random.Random(11)
    entry = ModelEntry(folder / SMALL)
    with target.load(uncounted=[model.name for model in target.models]) as load:
        for _ in range(_KILLS):
            assert publish_until_killed(entry, draw.uniform(0, 0.05))
            for version in entry.versions():
                load_arlo_manifest(entry.version_dir(version)).check(entry.version_dir(version), device.cpu())
        reload(target.control, folder, entry.name)
        assert entry.versions()[-1] in serving_versions(target.control, entry.name)
    assert load.failures() == []


def test_malformed_requests_to_a_gateway_end_nothing(target: ServerUnderTest) -> None:
    holds(target, "gateway_fuzz")


def test_a_killed_stub_is_served_again_and_no_other_model_is_affected(target: ServerUnderTest) -> None:
    for _ in range(_TRIES):
        again, _, others, lost = killed_stubs.run(target)
        if lost.holds:
            break
    assert lost.holds, lost
    assert again.measured < killed_stubs.GIVE_UP_S, again
    assert others.holds, others
