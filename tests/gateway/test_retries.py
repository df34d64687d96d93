"""Requests that are sent again, or not, where a process dies or refuses; the gateway's code over scripted servers."""

from __future__ import annotations

import asyncio
import time

import grpc
import pytest
from tritonclient.grpc import service_pb2 as messages

from tests.gateway.scene import BUSY, DIED, LOST, STOPS, Scene, eventually, runs
from tidal_client.errors import ConnectionFailed, InvalidArgument, RequestError, Unavailable
from tidal_gateway.errors import Refusal
from tidal_gateway.upstream import outages, server
from tidal_gateway.upstream.calls import Outgoing
from tidal_gateway.upstream.outages import Outage
from tidal_gateway.upstream.retries import MAX_ATTEMPTS, Retries


@pytest.fixture
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models whose restart nothing reports are tried soon."""
    monkeypatch.setattr(outages, "DIED_PAUSE_S", 0.1)


class TestFirstRetry:
    @runs
    async def test_goes_to_another_server(self) -> None:
        async with Scene(2) as scene:
            scene.servicers[0].script = [DIED]
            assert [await scene.infer() for _ in range(6)].count("s1") == 6
            assert scene.pool.retries == {"died": 1, "budget": 0, "refused": 0}

    @runs
    async def test_is_allowed_to_every_request_that_a_death_cut_off(self) -> None:
        """No other retry is allowed here."""
        async with Scene(2, retry_ratio=0.0) as scene:
            never = asyncio.Event()
            scene.servicers[0].script = [never] * 15
            waiting = [asyncio.create_task(scene.infer()) for _ in range(30)]
            await eventually(lambda: sum(scene.sent()) == 30)
            await scene.stop_server(0)
            assert set(await asyncio.gather(*waiting)) == {"s1"}
            assert scene.pool.retries == {"died": 15, "budget": 0, "refused": 0}

    @runs
    async def test_is_allowed_after_each_death_that_a_request_meets(self) -> None:
        async with Scene(4, retry_ratio=0.0) as scene:
            for each in scene.servicers[:3]:
                each.script = [LOST]
            assert await scene.infer() == "s3"
            assert scene.pool.retries == {"died": 3, "budget": 0, "refused": 0}

    @runs
    async def test_is_made_at_once_where_triton_reports_the_death_to_another_request(self) -> None:
        """No supervisor reports it, and Triton never answers requests that a dead process had."""
        async with Scene(2, retry_ratio=0.0) as scene:
            never, answer = asyncio.Event(), asyncio.Event()
            scene.servicers[0].script = [never, never, DIED]
            scene.servicers[1].script = [answer] * 6
            waiting = []
            for number in range(6):
                waiting.append(asyncio.create_task(scene.infer(1000.0)))
                await eventually(lambda sent=number + 1: sum(scene.sent()) >= sent)
            await eventually(lambda: scene.sent() == [3, 6])
            answer.set()
            assert await asyncio.gather(*waiting) == ["s1"] * 6

    @runs
    async def test_waits_for_the_restart_of_the_only_server(self) -> None:
        async with Scene(1, retry_ratio=0.0) as scene:
            scene.servicers[0].script = [asyncio.Event()]
            waiting = asyncio.create_task(scene.infer())
            await eventually(lambda: scene.sent() == [1])
            await scene.stop_server(0)
            await eventually(lambda: not scene.pool.servers[0].up)
            await scene.start_server(0)
            assert await waiting == "s0"

    @runs
    async def test_is_not_allowed_after_the_deadline(self) -> None:
        async with Scene(1) as scene:
            scene.servicers[0].script, scene.servicers[0].ready = [LOST], False
            with pytest.raises(ConnectionFailed):
                await scene.infer(limit_s=0.0)
            with pytest.raises(Unavailable, match="did not become available"):
                await scene.infer(limit_s=0.2)
            assert scene.sent() == [1]

    @runs
    async def test_has_the_rest_of_the_deadline(self) -> None:
        async with Scene(1) as scene:
            scene.servicers[0].script = [LOST]
            await scene.infer(limit_s=5.0, latency_ms=5000.0)
            first, second = (each.parameters["latency_ms"].double_param for each in scene.servicers[0].received)
            assert first == 5000
            assert 0 < second < 5000

    @runs
    async def test_a_request_that_ends_its_process_each_time_is_not_sent_for_ever(self) -> None:
        async with Scene(3) as scene:
            for each in scene.servicers:
                each.script = [LOST] * 20
            with pytest.raises(RequestError):
                await scene.infer()
            assert sum(scene.sent()) == MAX_ATTEMPTS


@pytest.mark.usefixtures("short_pauses")
class TestOtherRetries:
    @runs
    async def test_of_the_same_death_need_the_budget(self) -> None:
        """Nothing restarts the process, so that the second attempt meets the same death."""
        async with Scene(1) as scene:
            scene.servicers[0].script = [DIED] * 20
            with pytest.raises(RequestError, match="not healthy"):
                await scene.infer()
            assert scene.sent() == [2]
            assert scene.pool.retries == {"died": 1, "budget": 0, "refused": 1}

    @runs
    async def test_of_the_same_death_are_allowed_by_a_higher_ratio(self) -> None:
        async with Scene(1, retry_ratio=1.0) as scene:
            scene.servicers[0].script = [DIED, DIED]
            assert await scene.infer() == "s0"
            assert scene.pool.retries == {"died": 1, "budget": 1, "refused": 0}

    @runs
    async def test_are_a_share_of_the_requests(self) -> None:
        async with Scene(1) as scene:
            for _ in range(12):
                await scene.infer()
            scene.servicers[0].script = [DIED, DIED]
            assert await scene.infer() == "s0"
            assert scene.pool.retries == {"died": 1, "budget": 1, "refused": 0}

    def test_of_one_model_do_not_use_the_share_of_another_one(self) -> None:
        retries = Retries(0.1)
        death = Outage("m", 0.0)

        def again(request: Outgoing) -> bool:
            return retries.allows(request, death, begun=True)

        def request(model: str) -> Outgoing:
            retries.began(model)
            return Outgoing(messages.ModelInferRequest(model_name=model), time.monotonic() + 10)

        requests = {model: [request(model) for _ in range(10)] for model in ("m", "n")}
        assert all(again(each) for own in requests.values() for each in own)
        assert [again(each) for each in requests["m"]].count(True) == 1
        assert [again(each) for each in requests["n"]].count(True) == 1
        for _ in range(5):  # a retry is no request
            again(requests["m"][0])
        assert retries.counts["budget"] == 2

    @runs
    async def test_a_full_queue_is_not_sent_again(self) -> None:
        async with Scene(2) as scene:
            for each in scene.servicers:
                each.script = [BUSY]
            with pytest.raises(Refusal, match="max_queue_size"):
                await scene.infer()
            assert sum(scene.sent()) == 1

    @runs
    async def test_a_model_without_a_report_of_its_restart_is_tried_with_one_request(self) -> None:
        async with Scene(1) as scene:
            answer = asyncio.Event()
            scene.servicers[0].script = [DIED, answer]
            waiting = [asyncio.create_task(scene.infer()) for _ in range(1)]
            await eventually(lambda: scene.sent() == [2])
            waiting += [asyncio.create_task(scene.infer()) for _ in range(8)]
            checks = scene.servicers[0].checks
            await eventually(lambda: scene.servicers[0].checks > checks + 2)
            assert scene.sent() == [2]
            answer.set()
            assert await asyncio.gather(*waiting) == ["s0"] * 9

    @runs
    async def test_a_trial_that_its_client_gave_up_is_no_last_trial(self) -> None:
        async with Scene(1) as scene:
            scene.servicers[0].script = [DIED, asyncio.Event()]
            trial = asyncio.create_task(scene.infer())
            await eventually(lambda: scene.sent() == [2])
            trial.cancel()
            assert await scene.infer() == "s0"


class TestRefusals:
    @pytest.mark.parametrize("status", [grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.UNAVAILABLE])
    def test_a_message_that_quotes_the_client_is_no_death(self, status: grpc.StatusCode) -> None:
        @runs
        async def scenario() -> None:
            async with Scene(1) as scene:
                for text in (
                    "unknown task 'Stub process 'm_0_0' is not healthy.'",
                    "Stub process 'm_0_0' is not healthy.' is no task",
                    "text 'the model is not ready' is refused",
                ):
                    scene.servicers[0].script = [(status, text)]
                    with pytest.raises((InvalidArgument, Unavailable)):
                        await scene.infer()
                    assert await scene.infer(limit_s=1.0) == "s0"
                assert scene.sent() == [6]

        scenario()

    @pytest.mark.parametrize(
        "message",
        [
            "the model is being unloaded; send the request again",
            "the model was unloaded before it answered; send the request again",
            "the process of model 'inner' has died",
            "Server is stopping, scheduler for model has stopped accepting new inference requests",
        ],
    )
    def test_what_ends_without_an_answer_is_sent_again(self, message: str) -> None:
        @runs
        async def scenario() -> None:
            async with Scene(2) as scene:
                scene.servicers[0].script = [(grpc.StatusCode.UNAVAILABLE, message)]
                assert await scene.infer() == "s1"

        scenario()

    @runs
    async def test_a_server_that_stops_is_out_for_all_models_and_tried_again(self) -> None:
        async with Scene(2, models=("m", "n")) as scene:
            scene.servicers[0].script = [STOPS]
            scene.servicers[0].ready = False
            assert await scene.infer() == "s1"
            assert not scene.pool.servers[0].up
            assert {await scene.infer(model=name) for name in "mnmn"} == {"s1"}
            scene.servicers[0].ready = True
            await eventually(lambda: scene.pool.servers[0].up)
            assert {await scene.infer() for _ in range(4)} == {"s0", "s1"}

    @runs
    async def test_a_check_from_before_the_connection_broke_does_not_end_its_outage(self) -> None:
        async with Scene(1) as scene:
            found = scene.pool.servers[0]
            began = time.monotonic()
            scene.servicers[0].script, scene.servicers[0].ready = [LOST], False
            with pytest.raises(RequestError):
                await scene.infer(limit_s=0.2)
            found.outages.seen(found.models, began, time.monotonic())
            assert not found.serves("m")

    @runs
    async def test_a_model_that_is_out_on_a_server_leaves_its_other_models_in(self) -> None:
        async with Scene(2, models=("m", "n")) as scene:
            scene.servicers[0].script = [DIED]
            assert {await scene.infer() for _ in range(4)} == {"s1"}
            assert scene.pool.servers[0].up
            assert {await scene.infer(model="n") for _ in range(4)} == {"s0", "s1"}
            scene.servicers[0].models.discard("n")
            await eventually(lambda: "n" not in scene.pool.servers[0].models)
            assert {await scene.infer(model="n") for _ in range(4)} == {"s1"}

    @runs
    async def test_a_server_that_comes_back_is_used_again(self) -> None:
        async with Scene(2) as scene:
            await scene.stop_server(0)
            assert {await scene.infer() for _ in range(6)} == {"s1"}
            await scene.start_server(0)
            await eventually(lambda: scene.pool.servers[0].up)
            assert {await scene.infer() for _ in range(6)} == {"s0", "s1"}


@pytest.mark.usefixtures("quick_checks")
class TestSupervisor:
    @runs
    async def test_a_reported_restart_ends_what_waits_in_the_dead_process(self) -> None:
        """Triton reports nothing of it: the call would wait for its timeout."""
        async with Scene(1, supervised=True) as scene:
            scene.servicers[0].script = [asyncio.Event()]
            waiting = asyncio.create_task(scene.infer(60.0))
            await eventually(lambda: scene.sent() == [1])
            scene.supervisors[0].document |= {"restarts": {"m": 1}, "restarting": ["m"]}
            await eventually(lambda: not scene.pool.servers[0].serves("m"))
            await eventually(lambda: not scene.pool.servers[0].calls)
            assert not waiting.done()
            assert scene.sent() == [1]
            scene.supervisors[0].document |= {"restarting": []}
            assert await waiting == "s0"
            assert scene.pool.retries == {"died": 1, "budget": 0, "refused": 0}

    @runs
    async def test_counts_of_before_the_first_report_end_nothing(self) -> None:
        scene = Scene(1, supervised=True)
        document, scene.supervisors[0].document = scene.supervisors[0].document, {}
        async with scene:
            answer = asyncio.Event()
            scene.servicers[0].script = [answer]
            waiting = asyncio.create_task(scene.infer())
            await eventually(lambda: scene.sent() == [1])
            scene.supervisors[0].document = {**document, "server_restarts": 3}
            reads = scene.supervisors[0].reads
            await eventually(lambda: scene.supervisors[0].reads > reads + 2)
            answer.set()
            assert await waiting == "s0"
            assert scene.sent() == [1]

    @runs
    async def test_a_server_that_ends_gets_nothing_more_and_keeps_what_it_has(self) -> None:
        async with Scene(2, supervised=True) as scene:
            answer = asyncio.Event()
            scene.servicers[0].script = [answer]
            waiting = asyncio.create_task(scene.infer())
            await eventually(lambda: scene.sent() == [1, 0])
            scene.supervisors[0].document |= {"state": "ending"}
            await eventually(lambda: not scene.pool.servers[0].up)
            assert {await scene.infer() for _ in range(4)} == {"s1"}
            answer.set()
            assert await waiting == "s0"

    @runs
    async def test_a_silent_supervisor_does_not_keep_a_model_out(self) -> None:
        async with Scene(1, supervised=True) as scene:
            scene.supervisors[0].document |= {"not_ready": {"m": "restarting"}}
            await eventually(lambda: not scene.pool.servers[0].serves("m"))
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(server, "_SILENT_S", 0.1)
                scene.supervisors[0].document = {}
                assert await scene.infer() == "s0"


class TestBalance:
    @runs
    async def test_each_server_gets_its_share(self) -> None:
        async with Scene(3) as scene:
            answer = asyncio.Event()
            for each in scene.servicers:
                each.script = [answer] * 10
            waiting = [asyncio.create_task(scene.infer()) for _ in range(30)]
            await eventually(lambda: scene.sent() == [10, 10, 10])
            answer.set()
            await asyncio.gather(*waiting)

    @runs
    async def test_a_full_queue_is_refused_with_a_time(self) -> None:
        async with Scene(1, max_outstanding=4) as scene:
            answer = asyncio.Event()
            scene.servicers[0].script = [answer] * 4
            waiting = [asyncio.create_task(scene.infer()) for _ in range(4)]
            await eventually(lambda: scene.sent() == [4])
            with pytest.raises(Refusal) as refused:
                await scene.infer()
            assert (refused.value.status, refused.value.retry_after_s) == (429, 1)
            answer.set()
            assert await asyncio.gather(*waiting) == ["s0"] * 4
            assert await scene.infer() == "s0"
