"""Which requests the shared object accepts into a batch, called as by Triton, with sanitizers."""

from __future__ import annotations

import json
import re
import shutil
from typing import Any

import pytest

from tests.batcher.driver import Driver, config, make_driver

pytestmark = [pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++"), pytest.mark.slow]


@pytest.fixture(scope="module")
def driver(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Driver:
    """Compiled once for the same sources: compiling with sanitizers takes ten seconds of a core."""
    cache = getattr(pytestconfig, "cache", None)
    return make_driver(cache.mkdir("batcher") if cache else tmp_path_factory.mktemp("driver"))


def ids(length: int, rows: int = 1) -> str:
    return f"tensor:input_ids:{rows}x{length}"


def ask(*requests: str) -> list[str]:
    """A batch, and requests of the given descriptions in their order."""
    return ["begin", *(f"ask\t{number}\t{request}" for number, request in enumerate(requests)), "end"]


def taken(driver: Driver, parameters: dict[str, object], *requests: str, **more: Any) -> str:
    answers = driver.run(script=[f"model\t{config(parameters, **more)}", *ask(*requests)])
    assert answers[0].startswith("ok"), answers[0]
    return "".join({"yes": "y", "no": "n"}.get(answer, answer) for answer in answers[2:-1])


@pytest.mark.parametrize(
    ("parameters", "requests", "expected"),
    [
        # the longest times all rows, also where a later one is the longest
        ({"TOKENS": 64}, [ids(16), ids(16), ids(16), ids(16), ids(1)], "yyyyn"),
        ({"TOKENS": 64}, [ids(8), ids(8), ids(32), ids(16)], "yyny"),
        ({"TOKENS": 64}, [ids(32), ids(1, rows=2), ids(1)], "yny"),
        ({"TOKENS": 64}, [ids(500), ids(1)], "yn"),
        ({"LENGTH_BIN": 16}, [ids(1), ids(16), ids(17), ids(9)], "yyny"),
        ({"LENGTH_BIN": 1}, [ids(7), ids(7), ids(8), ids(7)], "yyny"),
        ({"KEY": "task"}, ["text:task:a", "text:task:a", "text:task:b", ids(1), "text:task:a"], "yynny"),
        ({"KEY": "task"}, [ids(1), ids(1), "text:task:a", "text:task:"], "yynn"),
        ({"KEY": "task"}, ["int:task:1", "text:task:1", "double:task:1", "bool:task:true", "text:other:1"], "yyynn"),
        (
            {"KEY": "task, user"},
            ["text:task:a\ttext:user:b", "text:user:b\ttext:task:a", "text:task:ab\ttext:user:", "text:task:a"],
            "yynn",
        ),
        (
            {"DEADLINE_SPREAD_MS": 10_000},
            ["int:latency_ms:50000", "text:latency_ms:59000", "double:latency_ms:41000", "int:latency_ms:52000"],
            "yyyn",  # the last is too far from the earliest
        ),
        ({"DEADLINE_SPREAD_MS": 1000}, ["int:latency_ms:5", ids(1), "text:latency_ms:soon"], "ynn"),
        ({"DEADLINE_SPREAD_MS": 1000}, [ids(1), "text:latency_ms:nan", "bool:latency_ms:true", ids(1)], "yyyy"),
        (
            {"UTILITY_SPREAD": 0.5},
            [ids(1), "double:utility:0.5", "text:utility:1.5", "int:utility:0", "double:utility:1.6"],
            "yyynn",  # from the first one's, which is 1 where none is sent
        ),
        (
            {"TOKENS": 64, "KEY": "task", "UTILITY_SPREAD": 0},
            [
                f"{ids(n)}\ttext:task:{task}"
                for n, task in ((8, "a"), (64, "a"), (8, "b"), (8, "a\tint:utility:2"), (8, "a"))
            ],
            "ynnny",
        ),
        ({}, [ids(1), ids(10**6), "text:task:a"], "yyy"),
    ],
)
def test_a_strategy(driver: Driver, parameters: dict[str, object], requests: list[str], expected: str) -> None:
    assert taken(driver, parameters, *requests) == expected


def test_the_length_of_a_text_is_its_bytes(driver: Driver) -> None:
    inputs = [("text_input", "TYPE_STRING", (1,)), ("image", "TYPE_FP32", (3, -1, -1))]
    texts = ["bytes:text_input:1x1+104", "bytes:text_input:2x1+208", "bytes:text_input:1x1+105"]
    assert taken(driver, {"TOKENS": 300, "LENGTH_INPUT": "text_input"}, *texts, inputs=inputs) == "yyn"
    # by itself it goes by the first input whose size varies
    sizes = ["tensor:image:1x3x10x500", "tensor:image:1x3x10x1", "tensor:image:1x3x11x500"]
    assert taken(driver, {"LENGTH_BIN": 10}, *sizes, inputs=inputs) == "yyn"


def test_a_refused_request_begins_the_next_batch(driver: Driver) -> None:
    lines = [f"model\t{config({'TOKENS': 20})}", *ask(ids(10), ids(15)), "begin", "end", "begin", "ask\t1", "end"]
    assert driver.run(script=lines)[2:] == ["yes", "no", "ok", "ok", "ok", "ok", "yes", "ok"]


def test_a_batch_closes_when_its_oldest_request_has_waited(driver: Driver) -> None:
    """Each time that Triton looks, it begins a new state and asks about all that wait."""
    look = ["end", "begin", "ask\told", "ask\tsecond"]
    lines = [f"model\t{config({'WAIT_MS': 100})}", "begin", "end", "begin", "ask\told", "ask\tsecond", *look]
    lines += ["sleep\t150", *look, "ask\tnew"]
    answers = driver.run(script=lines)
    assert answers[-3:] == ["yes", "yes", "no"]  # those that came in time stay in it
    # It was sent: another request begins a batch, though it lies where the oldest lay.
    lines += ["end", "begin", "end", "begin", "ask\told", "ask\tnew"]
    assert driver.run(script=lines)[-2:] == ["yes", "yes"]


def test_a_batch_without_an_end_call_is_dropped(driver: Driver) -> None:
    """Triton ends no batch that a request joined while it waited for an instance."""
    lines = [f"model\t{config({'WAIT_MS': 100})}", "begin", "ask\told", "sleep\t150", "begin", "ask\told", "ask\tnew"]
    assert driver.run(script=lines)[-2:] == ["yes", "yes"]


def test_deadlines_count_from_the_first_call_about_a_request(driver: Driver) -> None:
    deadline = "int:latency_ms:50000"
    lines = [f"model\t{config({'DEADLINE_SPREAD_MS': 100})}", "begin", f"ask\told\t{deadline}", "sleep\t150", "end"]
    lines += ["begin", "ask\told", f"ask\tnew\t{deadline}", "ask\tsooner\tint:latency_ms:49850"]
    assert driver.run(script=lines)[-3:] == ["yes", "no", "yes"]


@pytest.mark.parametrize(
    ("parameters", "more", "message"),
    [
        ({"TOKENS": 0}, {}, "'TIDAL_BATCH_TOKENS' in config.pbtxt is '0'; expected a whole number from 1 to 10000"),
        ({"TOKENS": "1e3"}, {}, "'TIDAL_BATCH_TOKENS' in config.pbtxt is '1e3'"),
        ({"TOKENS": "9" * 99}, {}, f"is '{'9' * 80}...'; expected a whole number"),
        ({"LENGTH_BIN": "ä\n"}, {}, "'TIDAL_BATCH_LENGTH_BIN' in config.pbtxt is '???'"),
        ({"KEY": ""}, {}, "1 to 8 names of request parameters with commas between"),
        ({"KEY": "task,,user"}, {}, "1 to 8 names"),
        ({"KEY": ",".join("abcdefghi")}, {}, "1 to 8 names"),
        ({"DEADLINE_SPREAD_MS": "nan"}, {}, "; expected a number from 0 to 3600000 (milliseconds between"),
        ({"UTILITY_SPREAD": "-0.1"}, {}, "; expected a number from 0 to 1000000"),
        ({"WAIT_MS": "5 ms"}, {}, "; expected a number from 0 to 3600000"),
        (
            {"TOKEN": 5},
            {},
            "unknown parameter 'TIDAL_BATCH_TOKEN' in config.pbtxt: the batcher takes TIDAL_BATCH_TOKENS,",
        ),
        ({"LENGTH_INPUT": "input_ids"}, {}, "an input beside TIDAL_BATCH_TOKENS or TIDAL_BATCH_LENGTH_BIN"),
        ({"TOKENS": 5, "LENGTH_INPUT": "ids"}, {}, "is 'ids'; expected one of the model's inputs: input_ids"),
        ({"TOKENS": 5}, {"inputs": [("t", "TYPE_STRING", (-1,))]}, "TIDAL_BATCH_TOKENS in config.pbtxt needs an input"),
        (
            {"LENGTH_BIN": 5},
            {"inputs": []},
            "TIDAL_BATCH_LENGTH_BIN in config.pbtxt needs an input whose length varies",
        ),
        ({"KEY": "task"}, {"dynamic_batching": None}, "is called only with dynamic_batching { } in config.pbtxt"),
    ],
)
def test_a_bad_config_is_refused(driver: Driver, parameters: Any, more: Any, message: str) -> None:
    code_of_invalid_arguments = 3
    said = driver.run(script=[f"model\t{config(parameters, **more)}", "begin", "ask\t1", "end", "unload"])
    assert said[0].startswith(f"error {code_of_invalid_arguments} ")
    assert message in said[0]
    assert said[1:] == ["ok", "yes", "ok", "ok"]  # Triton goes on calling what it has


@pytest.mark.parametrize("text", [" ", "{", '{"parameters": ', "[1, 2", "x" * 5000, '{"name": "' + "y" * 5000, "{} {}"])
def test_a_config_that_is_not_json_is_refused_in_one_short_sentence(driver: Driver, text: str) -> None:
    (said,) = driver.run(script=[f"model\t{text}"])
    assert re.fullmatch(r"error 1 the batcher failed: the model's config is not valid JSON \(byte \d+\)", said)


@pytest.mark.parametrize("tokens", ["64", 64, "64.0", 64.0, True, None, [64], {"a": 64}, 2**63, 2**64])
def test_whole_numbers_may_be_strings_of_digits(driver: Driver, tokens: Any) -> None:
    """Triton writes strings; numbers are accepted as protobuf's JSON writes them."""
    made = {**json.loads(config({})), "parameters": {"TIDAL_BATCH_TOKENS": {"string_value": tokens}}}
    (said,) = driver.run(script=[f"model\t{json.dumps(made)}"])
    if (tokens == 64 and not isinstance(tokens, float)) or tokens == "64":
        assert said.startswith("ok")
    else:
        assert "expected a whole number from 1 to" in said


@pytest.mark.parametrize(
    ("parameters", "more", "expected"),
    [
        ({"TOKENS": 64}, {"preferred": range(1, 9)}, "ok info: batches of 'm': at most 64 of input_ids"),
        ({"TOKENS": 64}, {"preferred": [8]}, "; more requests may join a batch that waits"),
        ({"TOKENS": 64}, {"preferred": range(1, 9), "delay_us": 1}, "; more requests may join"),
        (
            {"LENGTH_BIN": 8, "KEY": "task", "DEADLINE_SPREAD_MS": 2.5, "UTILITY_SPREAD": 0.8, "WAIT_MS": 5},
            {},
            "lengths of input_ids in one bin of 8, one task, deadlines within 2.5 ms, utilities within 0.8, "
            "open for 5 ms; more",
        ),
        ({}, {}, "ok warning: batches of 'm': as without the batcher, because none of its parameters is set"),
    ],
)
def test_the_log_lists_the_limits_of_batches(driver: Driver, parameters: Any, more: Any, expected: str) -> None:
    assert expected in driver.run(script=[f"model\t{config(parameters, **more)}"])[0]


@pytest.mark.parametrize("seed", [1, 2])
def test_random_calls_cause_no_memory_error(driver: Driver, seed: int) -> None:
    """Random configs, requests, orders of calls and failures of Triton's API; a sanitizer ends the host otherwise."""
    (said,) = driver.run(str(seed), "1500")
    assert "refused" in said


def test_the_library_exports_only_its_five_functions(driver: Driver) -> None:
    import subprocess

    listed = subprocess.run(["nm", "-D", "--defined-only", driver.library], capture_output=True, text=True, check=True)
    names = {line.split()[-1] for line in listed.stdout.splitlines() if line.split()[-2] in "TR"}
    functions = ("BatchIncludeRequest", "BatchInitialize", "BatchFinalize", "BatcherInitialize", "BatcherFinalize")
    assert {name for name in names if not name.startswith("_")} == {
        "tidal_batcher_sources",
        *(f"TRITONBACKEND_Model{function}" for function in functions),
    }
