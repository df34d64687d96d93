"""The file that describes a cluster: what it gives to `tidal cluster start` and `join`, and what is refused."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from testing.serving import tidal_in_process
from tests.docs.blocks import blocks_of
from tests.docs.pages import ROOT
from tidal.cluster.membership import NodeOptions
from tidal.commands import cluster_members
from tidal.commands.cluster_file import own_name
from tidal.controller.scaling import ScalingSettings
from tidal.errors import Unavailable

_PAGE = ROOT / "docs/how-to/serve-from-several-machines.md"
HEAD = {"host": "10.0.0.1", "port": 7000, "period": 60, "metrics_port": 8005}


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    """Arguments with which `start` and `join` would have begun."""
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def instead(*args: Any, **options: Any) -> None:
        calls.append((args, options))
        raise Unavailable("not started")

    monkeypatch.setattr(cluster_members, "start", instead)
    monkeypatch.setattr(cluster_members, "join", instead)
    monkeypatch.setattr(cluster_members, "_check_server", lambda server: None)
    return calls


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., Any]:
    """Runs `tidal cluster COMMAND --config FILE OPTION…`, where the file has the given content or text."""

    def command(content: object, name: str, *words: str) -> Any:
        file = tmp_path / "cluster.yaml"
        file.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
        return tidal_in_process("cluster", name, "--config", str(file), *words, environment=dict(os.environ))

    return command


def test_the_head_is_started_as_described(run: Callable[..., Any], called: list[Any]) -> None:
    run({"head": HEAD, "nodes": {"a": None}}, "start")
    ((host, port, settings), options) = called[0]
    assert (host, port, settings.period_s, options["metrics_port"]) == ("10.0.0.1", 7000, 60.0, 8005)
    assert (options["secret"], options["token"]) == (True, None)


def test_the_secret_of_the_head_is_a_file_beside_the_description(
    run: Callable[..., Any], called: list[Any], tmp_path: Path
) -> None:
    (tmp_path / "secret").write_text("x")
    run({"head": {**HEAD, "token_file": "secret"}}, "start")
    assert called[0][1]["token"] == tmp_path / "secret"


def test_scaling_is_described(run: Callable[..., Any], called: list[Any]) -> None:
    run({"head": HEAD}, "start")
    run({"head": HEAD | {"autoscale": True, "max_nodes": 4, "min_instances": 2}}, "start")
    assert [args[2].scaling for args, _ in called] == [None, ScalingSettings(min_instances=2, max_nodes=4)]


def test_an_option_replaces_what_the_file_says(run: Callable[..., Any], called: list[Any]) -> None:
    run({"head": HEAD}, "start", "--port", "7001")
    assert called[0][0][:2] == ("10.0.0.1", 7001)


@pytest.mark.parametrize("first", ["config", "name"])
def test_a_node_joins_as_described(
    run: Callable[..., Any], called: list[Any], tmp_path: Path, first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "secret").write_text("x")
    node = {"host": "10.0.0.2", "devices": 4, "metrics_port": 8006, "token_file": "secret"}
    content = {"head": HEAD, "nodes": {"a": {"host": "10.0.0.1"}, "b": node}}
    if first == "config":
        run(content, "join", "--name", "b")
    else:
        file = tmp_path / "named.yaml"
        file.write_text(yaml.safe_dump(content))
        words = ("cluster", "join", "--name", "b", "--config", str(file))
        tidal_in_process(*words, environment=dict(os.environ))
    # The path is relative to the file's folder.
    expected = ("10.0.0.1:7000", tmp_path / "secret", NodeOptions("b", "10.0.0.2", devices=4, metrics_port=8006))
    assert called[0][0] == expected


def test_without_a_name_the_section_of_this_machine_is_used(run: Callable[..., Any], called: list[Any]) -> None:
    run({"nodes": {own_name(): {"host": "10.0.0.9"}, "b": {}}}, "join")
    assert called[0][0] == ("127.0.0.1:6379", None, NodeOptions(own_name(), "10.0.0.9"))


@pytest.mark.parametrize(("words", "entrance"), [([], False), (["--entrance"], True)])
def test_a_node_that_is_no_entrance(
    run: Callable[..., Any], called: list[Any], words: list[str], entrance: bool
) -> None:
    run({"head": HEAD, "nodes": {"b": {"host": "10.0.0.2", "entrance": False}}}, "join", "--name", "b", *words)
    assert called[0][0][-1] == NodeOptions("b", "10.0.0.2", entrance=entrance)


def test_the_option_of_a_node_that_is_no_entrance(run: Callable[..., Any], called: list[Any]) -> None:
    run({"nodes": {"b": {"host": "10.0.0.2"}}}, "join", "--name", "b", "--no-entrance")
    assert called[0][0][-1] == NodeOptions("b", "10.0.0.2", entrance=False)


@pytest.mark.parametrize(
    ("content", "words", "message"),
    [
        ({"heads": {}}, ["start"], "unknown section 'heads': did you mean 'head'? accepted: head, nodes"),
        (
            {"head": {"prot": 1}},
            ["start"],
            "unknown field 'head.prot': did you mean 'port'? accepted: autoscale, host, ",
        ),
        ({"head": {"json": True}}, ["start"], "unknown field 'head.json'"),
        ({"head": {"config": "x"}}, ["start"], "unknown field 'head.config'"),
        ({"head": {"block": True}}, ["start"], "unknown field 'head.block'"),
        ({"head": {"token_file": "none"}}, ["start"], "none is not a file; expected the secret of the cluster"),
        # Also what belongs to other machines is checked.
        ({"nodes": {"b": {"hots": "x"}}}, ["start"], "unknown field 'nodes.b.hots': did you mean 'host'?"),
        ({"nodes": ["b"]}, ["start"], "'nodes' must be a mapping, got list"),
        ({"nodes": {"b": 3}}, ["start"], "'nodes.b' must be a mapping, got int"),
        ("[1, 2]", ["start"], "sections must be a mapping, got list"),
        ("{", ["start"], "is not valid YAML"),
        ({"head": {"port": "many"}}, ["start"], "Invalid value for '--port': Input should be a valid integer"),
        ({"nodes": {"b": {"host": "10.0.0.2"}}}, ["join", "--name", "c"], "has no node 'c' (--name)"),
        (
            {"head": {"port": 0}, "nodes": {"b": {}}},
            ["join", "--name", "b"],
            "field 'head.port': nodes of a described cluster need a fixed port, got 0",
        ),
        (
            {"head": HEAD, "nodes": {"b": {"devices": 0}}},
            ["join", "--name", "b"],
            "Invalid value for '--devices': Input should be greater than or equal to 1",
        ),
        ({"head": HEAD, "nodes": {"b": {}}}, ["join", "--name", "b"], "--host is required"),
    ],
)
def test_bad_files(run: Callable[..., Any], called: list[Any], content: object, words: list[str], message: str) -> None:
    outcome = run(content, *words)
    assert (outcome.returncode, called) == (2, [])
    assert message in " ".join(outcome.stderr.split()), outcome.stderr


def test_a_missing_file_is_named(called: list[Any]) -> None:
    outcome = tidal_in_process("cluster", "start", "--config", "none.yaml", environment=dict(os.environ))
    assert (outcome.returncode, called) == (2, [])
    assert "none.yaml' does not exist" in " ".join(outcome.stderr.split())


def test_the_page_describes_a_cluster_that_is_accepted(run: Callable[..., Any], called: list[Any]) -> None:
    (block,) = [block for block in blocks_of(_PAGE) if block.language == "yaml"]
    run(block.text, "start")
    assert called[0][0][:2] == ("10.0.0.1", 6379)
