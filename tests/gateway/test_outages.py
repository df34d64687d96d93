"""What is known of outages, with made-up times."""

from __future__ import annotations

import pytest

from tidal_client.errors import ConnectionFailed, InvalidArgument, RequestError, ServerError, Unavailable
from tidal_gateway.upstream.failures import Failure, failure_of
from tidal_gateway.upstream.outages import DIED_PAUSE_S, MAX_CHECK_S, MAX_PAUSE_S, MIN_CHECK_S, Outages
from tidal_gateway.upstream.status import ServeReport

DIED = Failure()
SERVER = Failure(whole_server=True)


def report(*not_ready: str, server: int = 0, **restarts: int) -> ServeReport:
    return ServeReport("serving", server, restarts, frozenset(not_ready))


class TestOutages:
    def test_calls_that_one_death_cut_off_have_one_outage(self) -> None:
        found = Outages()
        first = found.failed("m", DIED, sent=1.0, now=5.0)
        assert found.failed("m", DIED, sent=4.9, now=5.2) is first
        found.read(report(m=1), 9.0)
        assert found.of("m") is None
        assert found.failed("m", DIED, sent=4.9, now=9.5) is first, "it was sent before the restart"
        assert found.failed("m", DIED, sent=9.1, now=10.0) is not first, "the new process died too"

    def test_models_and_the_server_have_their_own(self) -> None:
        found = Outages()
        own = found.failed("m", DIED, 1.0, 2.0)
        assert (found.admits("m", 2.0), found.admits("n", 2.0)) == (False, True)
        assert found.failed("n", DIED, 1.0, 2.0) is not own
        server = found.failed("k", SERVER, 1.0, 3.0)
        assert not any(found.admits(name, 1e9) for name in "mnk")
        assert server.number != own.number

    def test_a_model_is_tried_once_after_pauses_that_double(self) -> None:
        found, now, pauses = Outages(), 0.0, []
        found.failed("m", DIED, -1.0, now)
        for _ in range(6):
            pause = 0.0
            while not found.admits("m", now + pause):
                pause += 0.5
            now += pause
            pauses.append(pause)
            tried = found.sent("m")
            assert not found.admits("m", now)
            assert found.failed("m", DIED, now, now) is tried
        assert pauses == [DIED_PAUSE_S * 2**step for step in range(4)] + [MAX_PAUSE_S] * 2
        found.answered(found.sent("m"), now)
        assert found.admits("m", now)

    def test_a_call_from_before_the_outage_that_fails_late_is_no_trial(self) -> None:
        found = Outages()
        first = found.failed("m", DIED, sent=1.0, now=5.0)
        late = first.tried + 1.0
        assert found.failed("m", DIED, sent=4.9, now=late) is first
        assert (first.pause_s, found.admits("m", late)) == (DIED_PAUSE_S, True)

    def test_a_restart_ends_it_however_it_was_seen(self) -> None:
        by_count, by_list, by_absence = Outages(), Outages(), Outages()
        for each in (by_count, by_list, by_absence):
            each.failed("m", DIED, 0.0, 1.0)
        by_count.read(report(m=1), 2.0)
        by_list.read(report("m", m=1), 2.0)
        assert not by_list.admits("m", 1e9), "the supervisor says that it restarts"
        by_list.read(report(m=1), 3.0)
        by_absence.seen({"m"}, 0.5, 1.5)
        by_absence.seen({"n"}, 1.6, 1.7)
        assert not by_absence.admits("m", 1.8)
        by_absence.seen({"m", "n"}, 1.9, 2.0)
        assert all(each.admits("m", 3.0) for each in (by_count, by_list, by_absence))

    def test_a_check_ends_an_outage_of_the_server_only_if_it_began_after_it(self) -> None:
        found = Outages()
        found.failed("m", SERVER, 0.0, 1.0)
        found.seen({"m"}, 0.9, 1.1)
        assert not found.admits("m", 1.2)
        found.seen({"m"}, 1.2, 1.3)
        assert found.admits("m", 1.4)

    def test_the_death_of_a_model_that_the_called_one_calls_ends_with_the_restart_of_that(self) -> None:
        found = Outages()
        found.read(report(inner=3), 0.0)
        found.failed("m", Failure(model="inner"), 0.5, 1.0)
        found.read(report(inner=3), 2.0)
        assert not found.admits("m", 2.0)
        found.read(report(inner=4), 2.5)
        assert found.admits("m", 2.5)

    def test_checks_are_less_frequent_the_longer_it_lasts_and_in_a_row(self) -> None:
        found = Outages()
        assert found.check_after_s(0.0, 1.0) == 1.0
        found.failed("m", SERVER, 0.0, 1.0)
        assert found.check_after_s(1.0, 1.0) == MIN_CHECK_S
        assert found.check_after_s(6.0, 1.0) == pytest.approx(0.5)
        assert found.check_after_s(600.0, 1.0) == MAX_CHECK_S
        pauses = []
        for step in range(6):
            now = 10.0 + step
            found.seen({"m"}, now, now)
            found.failed("m", SERVER, now + 0.1, now + 0.2)
            pauses.append(found.check_after_s(now + 0.2, 1.0))
        assert pauses == sorted(pauses)
        assert pauses[-1] == MAX_CHECK_S
        found.seen({"m"}, 100.0, 100.0)
        found.failed("m", SERVER, 200.0, 201.0)
        assert found.check_after_s(201.0, 1.0) == MIN_CHECK_S


class TestFailures:
    @pytest.mark.parametrize(
        ("error", "expected"),
        [
            (ConnectionFailed("no connection to grpc://a:1: Socket closed"), Failure(whole_server=True)),
            (
                ConnectionFailed("no connection to grpc://a:1: failed to connect to all addresses"),
                Failure(whole_server=True, begun=False),
            ),
            (Unavailable("Server not ready"), Failure(whole_server=True, died=False, begun=False)),
            (InvalidArgument("Server not ready"), Failure(whole_server=True, died=False, begun=False)),
            (Unavailable("[request id: a] Stub process 'm_0_1' is not healthy."), Failure()),
            (Unavailable("Stub process is not healthy."), Failure()),
            (
                Unavailable("in ensemble 'm', Stub process 'step_0_0' is not healthy."),
                Failure(model="step"),
            ),
            (
                Unavailable("Request for unknown model: 'm' has no available versions"),
                Failure(died=False, begun=False),
            ),
            (Unavailable("the process of model 'x' has died"), Failure(model="x")),
            (Unavailable("model 'x' is not ready"), Failure(died=False, model="x")),
            (Unavailable("the model is being unloaded; send the request again"), Failure(died=False)),
            (Unavailable("the deadline of 5 ms passed"), None),
            (InvalidArgument("Request for unknown model: 'm' version 9 is not found"), None),
            (InvalidArgument("model 'x' is not ready"), None),
            (ServerError("text \"Stub process 'm_0_0' is not healthy.\" is refused"), None),
            (InvalidArgument("[request id: x] Stub process 'm_0_0' is not healthy.] no such task"), None),
        ],
    )
    def test_of_messages(self, error: RequestError, expected: Failure | None) -> None:
        assert failure_of(error, "m") == expected
