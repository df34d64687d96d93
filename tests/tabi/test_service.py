"""The service of a cascade without a server: calls of levels, and which requests are accepted."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from testing.requests import column
from testing.waiting import until
from tests.tabi.serving import (
    MAX_LENGTH,
    OUTPUTS,
    VERSION,
    FakeLevels,
    Request,
    cascades,
    holding,
    running,
    word_id,
    write_cascade,
)
from tidal.errors import Cancelled, InvalidArgument, Unavailable
from tidal.tabi.equations import draw, request_key


def ids(text: str, first_id: int = 0) -> list[int]:
    return [word_id(word, first_id) for word in text.split()]


@pytest.mark.usefixtures("placement")
class TestRoutes:
    def test_confident_queries_return_early_and_others_escalate(self, tmp_path: Path) -> None:
        write_cascade(tmp_path, cascades())
        levels = FakeLevels()
        with running(tmp_path, levels) as run:
            sure, unsure = Request("sure a"), Request("unsure b")
            run.submit(sure, unsure)
            assert (sure.one("label"), sure.one("level"), sure.one("degraded")) == (b"no", 1, False)
            assert sure.one("confidence") == pytest.approx(1 / (1 + np.exp(-5)))
            assert (unsure.one("label"), unsure.one("level"), unsure.one("degraded")) == (b"yes", 2, False)
            # Eq. 6 with even weights: (0.525 + 0.047) / 2.
            first, second = 1 / (1 + np.exp(-0.1)), 1 / (1 + np.exp(3))
            assert unsure.one("probabilities")[0] == pytest.approx((first + second) / 2, abs=1e-6)
            assert unsure.one("confidence") == pytest.approx(1 - second)
            assert run.counts("answered_queries_total", 1, level="2")
            assert run.counts("early_returned_queries_total", 1)
            assert run.counts("level_queries_total", 2, level="1")
            assert run.counts("confidence_count", 1, level="2")
        assert [(call.model, call.version) for call in levels.of("c_l1")] == [("c_l1", 2)]
        assert levels.of("c_l1")[0].ids == [ids("unsure b")]

    def test_rows_of_a_request_have_their_own_routes_and_are_rerouted_together(self, tmp_path: Path) -> None:
        write_cascade(tmp_path, cascades())
        levels = FakeLevels()
        with running(tmp_path, levels) as run:
            request = Request("sure a", "unsure b c", "sure", "unsure d")
            run.submit(request)
            assert request.wait()["level"].ravel().tolist() == [1, 2, 1, 2]
            assert request.wait()["label"].ravel().tolist() == [b"no", b"yes", b"no", b"yes"]
        assert [call.model for call in levels.calls] == ["c_l0", "c_l1"]
        assert levels.calls[1].ids == [ids("unsure b c"), ids("unsure d")]
        padded = levels.calls[1].inputs
        assert padded["input_ids"].shape == padded["token_type_ids"].shape == (2, 5)
        assert padded["attention_mask"].tolist() == [[1, 1, 1, 1, 1], [1, 1, 1, 1, 0]]

    def test_words_without_attention_are_pruned(self, tmp_path: Path) -> None:
        write_cascade(tmp_path, cascades(pruning=0.5))
        levels = FakeLevels()
        with running(tmp_path, levels) as run:
            request, sure = Request("unsure drop a drop b"), Request("sure drop")
            run.submit(request, sure)
            assert (request.one("pruned_text"), sure.one("pruned_text")) == (b"unsure a b", b"sure drop")
            # Of the whole text, whatever was pruned later.
            assert request.one("input_tokens") == len(ids("unsure drop a drop b")) + 2
            assert sure.one("input_tokens") == len(ids("sure drop")) + 2
            assert run.counts("seen_words_total", 5)
            assert run.counts("pruned_words_total", 2)
        assert levels.of("c_l0")[0].outputs == ["logits", "attention_received"]
        assert levels.of("c_l1")[0].outputs == ["logits"]
        assert levels.of("c_l1")[0].ids == [ids("unsure a b")]

    def test_a_level_with_another_tokenizer_encodes_the_pruned_text(self, tmp_path: Path) -> None:
        write_cascade(tmp_path, cascades(pruning=0.5), tokenizers=(0, 100))
        levels = FakeLevels((0, 100))
        with running(tmp_path, levels) as run:
            request = Request("unsure drop a")
            run.submit(request)
            assert request.one("pruned_text") == b"unsure a"
        assert levels.of("c_l1")[0].ids == [ids("unsure a", 100)]
        assert levels.of("c_l1")[0].inputs["input_ids"][0, 0] == 102  # its own [CLS]

    def test_a_chain_of_three_prunes_twice_and_requests_only_logits_of_the_last(self, tmp_path: Path) -> None:
        write_cascade(tmp_path, cascades(pruning=0.5, three=True), chosen=3, tokenizers=(0, 100, 100))
        levels = FakeLevels((0, 100, 100))
        levels.instead["c_l1"] = lambda inputs: np.tile(np.array([0.1, 0.0], np.float32), (len(inputs), 1))
        with running(tmp_path, levels) as run:
            request = Request("unsure drop a b")
            run.submit(request)
            assert (request.one("level"), request.one("pruned_text")) == (3, b"unsure a b")
        assert [call.outputs for call in levels.calls] == [
            ["logits", "attention_received"],
            ["logits", "attention_received"],
            ["logits"],
        ]

    def test_pairs_keep_their_boundary(self, tmp_path: Path) -> None:
        write_cascade(tmp_path, cascades(pruning=0.5), pairs=True)
        levels = FakeLevels()
        outputs = OUTPUTS | {"pruned_pair"}
        with running(tmp_path, levels, outputs=outputs) as run:
            request = Request("unsure drop", pairs=["a drop b"], wanted=outputs)
            run.submit(request)
            assert (request.one("pruned_text"), request.one("pruned_pair")) == (b"unsure", b"a b")
        assert levels.of("c_l1")[0].inputs["token_type_ids"].tolist() == [[0, 0, 0, 1, 1, 1]]

    def test_a_level_may_have_its_classes_in_another_order(self, tmp_path: Path) -> None:
        made = write_cascade(tmp_path, cascades())
        reordered = made.levels[1].model_copy(update={"order": (1, 0)})
        write_cascade(tmp_path, cascades(), levels=(made.levels[0], reordered))
        with running(tmp_path, FakeLevels()) as run:
            request = Request("unsure")
            run.submit(request)
            assert request.one("label") == b"no"

    def test_a_regression_gives_the_mean_of_the_values(self, tmp_path: Path) -> None:
        from tidal.tabi.manifest import Calibration, RegressionCalibration

        made = write_cascade(tmp_path, cascades())
        uncertain = Calibration(
            regression=RegressionCalibration(
                tolerance=0.1, values=(0.0,), deviations=(1.0,), expected=(0.0, 1.0), observed=(0.0, 1.0)
            )
        )
        levels = tuple(level.model_copy(update={"calibration": uncertain}) for level in made.levels)
        write_cascade(tmp_path, cascades(), levels=levels, task="regression", labels=(), metric="pearson")
        values = FakeLevels()
        values.instead = {"c_l0": lambda i: np.full((len(i), 1), 2.0), "c_l1": lambda i: np.full((len(i), 1), 3.0)}
        outputs = frozenset({"value", "level"})
        with running(tmp_path, values, outputs=outputs) as run:
            request = Request("a", wanted=outputs)
            run.submit(request)
            assert (request.one("value"), request.one("level")) == (2.5, 2)

    def test_the_same_id_has_the_same_route(self, tmp_path: Path) -> None:
        write_cascade(tmp_path, cascades())
        with running(tmp_path, FakeLevels()) as run:
            requests = [Request("perhaps a", request_id=f"r{number % 20}") for number in range(60)]
            run.submit(*requests)
            found = [request.one("level") for request in requests]
            assert found[:20] == found[20:40] == found[40:]
            wanted = [2 if draw(VERSION, request_key(f"r{n}", []), 0, 0) < 0.5 else 1 for n in range(20)]
            assert found[:20] == wanted
            assert set(found) == {1, 2}
            # Without an id the text of a row determines its route.
            twice = [Request("perhaps a", "perhaps a b", "perhaps a") for _ in range(2)]
            run.submit(*twice)
            assert twice[0].wait()["level"].tolist() == twice[1].wait()["level"].tolist()

    def test_a_level_of_shorter_inputs_truncates_the_text(self, tmp_path: Path) -> None:
        write_cascade(tmp_path, cascades(pruning=0.5), lengths=(6, 16))
        levels = FakeLevels()
        with running(tmp_path, levels) as run:
            request = Request("unsure drop a b c drop d")
            run.submit(request)
            # The first level never saw the second "drop", which it truncated: that word and the next are kept.
            assert request.one("pruned_text") == b"unsure a b c drop d"
        assert levels.of("c_l0")[0].ids == [ids("unsure drop a b")]
        assert levels.of("c_l1")[0].ids == [ids("unsure a b c drop d")]


@pytest.mark.usefixtures("placement")
class TestRequests:
    @pytest.mark.parametrize(
        ("pairs", "inputs", "message"),
        [
            (False, {"text_pair": column(["a"])}, "no text_input"),
            (False, {"text_input": column(["a"]), "text_pair": column(["b"])}, "text_pair was sent"),
            (True, {"text_input": column(["a"])}, "no text_pair"),
            (False, {"text_input": np.array([b"a"], object)}, "text_input has shape [1]"),
            (
                True,
                {"text_input": column(["a", "b"]), "text_pair": column(["a"])},
                "text_pair has 1 rows, text_input 2",
            ),
            (False, {"text_input": column(["a", " "])}, "text_input row 1 is empty"),
            (False, {"text_input": column([b"\xff"])}, "text_input row 0 is not valid UTF-8"),
            (True, {"text_input": column(["a"]), "text_pair": column([""])}, "text_pair row 0 is empty"),
            (False, {"text_input": column(["a", "a " * MAX_LENGTH])}, "text_input row 1 has 18 tokens"),
            (False, {"text_input": column(["a" * 2000])}, "text_input row 0 has 2000 bytes"),
        ],
    )
    def test_errors_name_the_invalid_input(
        self, pairs: bool, inputs: dict[str, Any], message: str, tmp_path: Path
    ) -> None:
        write_cascade(tmp_path, cascades(), pairs=pairs)
        levels = FakeLevels()
        with running(tmp_path, levels) as run:
            bad, good = Request("a", inputs=inputs), Request("sure", pairs=["a"] if pairs else None)
            run.submit(bad, good)
            with pytest.raises(InvalidArgument) as caught:
                bad.wait()
            assert message in str(caught.value)
            assert good.one("label") == b"no"
        assert len(levels.calls) == 1

    def test_a_text_too_long_for_every_level_is_truncated_only_if_configured(self, tmp_path: Path) -> None:
        write_cascade(tmp_path, cascades(), lengths=(6, 8))
        with running(tmp_path, FakeLevels()) as run:
            fits, long = Request("sure a a a a a"), Request("sure a a a a a a")
            run.submit(fits, long)
            assert fits.one("level") == 1
            with pytest.raises(InvalidArgument, match="9 tokens; this model reads at most 8"):
                long.wait()
        with running(tmp_path, FakeLevels(), truncate=True) as run:
            long = Request("unsure a a a a a a")
            run.submit(long)
            assert long.one("level") == 2

    def test_options_select_the_candidate_and_the_last_level(self, tmp_path: Path) -> None:
        write_cascade(tmp_path, cascades())
        with running(tmp_path, FakeLevels()) as run:
            fast, exact, beyond = (Request("unsure", accuracy=score) for score in (0.8, 0.96, 1.0))
            first, second = Request("unsure", max_level=1), Request("unsure", max_level=2)
            both = Request("sure", accuracy=0.96, max_level=1)
            run.submit(fast, exact, beyond, first, second, both)
            assert [each.one("level") for each in (fast, exact, beyond)] == [1, 2, 2]
            assert exact.one("probabilities")[1] == pytest.approx(1 / (1 + np.exp(-3)))  # of the second level only
            assert [each.one("level") for each in (first, second, both)] == [1, 2, 1]
            assert not first.one("degraded")

    def test_a_cascade_that_begins_beyond_max_level_refuses(self, tmp_path: Path) -> None:
        write_cascade(tmp_path, cascades(), chosen=2)
        with running(tmp_path, FakeLevels()) as run:
            request = Request("sure", max_level=1)
            run.submit(request)
            with pytest.raises(
                InvalidArgument, match="'max_level' is 1, but the cascade that serves begins at level 2"
            ):
                request.wait()

    def test_a_cancelled_request_calls_no_level(self, tmp_path: Path) -> None:
        write_cascade(tmp_path, cascades())
        levels, held = FakeLevels(), threading.Event()
        levels.before["c_l0"] = holding(held)
        levels.threads = 1
        with running(tmp_path, levels, max_in_flight=2) as run:
            first, withdrawn, late = Request("sure"), Request("sure a"), Request("sure b", latency_ms=80)
            withdrawn.withdrawn = True
            run.submit(first, withdrawn, late)
            assert until(lambda: bool(levels.calls))
            levels.before.clear()
            assert until(lambda: late.error is not None)  # its deadline passes in the queue
            held.set()
            assert first.one("level") == 1
            with pytest.raises(Cancelled):
                withdrawn.wait()
            with pytest.raises(Unavailable):
                late.wait()
        assert len(levels.calls) == 1

    def test_the_config_may_not_declare_an_output_that_the_cascade_lacks(self, tmp_path: Path) -> None:
        write_cascade(tmp_path, cascades())
        refusal = pytest.raises(InvalidArgument, match="declares the output 'value', which this classification cascade")
        with refusal, running(tmp_path, FakeLevels(), outputs=frozenset({"value"})):
            raise AssertionError


@pytest.mark.usefixtures("placement")
def test_requests_during_unload_are_rejected(tmp_path: Path) -> None:
    write_cascade(tmp_path, cascades())
    with running(tmp_path, FakeLevels()) as run:
        pass
    request = Request("sure")
    run.submit(request)
    with pytest.raises(Unavailable, match="is being unloaded"):
        request.wait()
