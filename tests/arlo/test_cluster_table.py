"""The file of other nodes: what is accepted, how it is written, and what a front does with a broken one."""

from __future__ import annotations

from pathlib import Path

import pytest

from testing.requests import make_context
from tests.arlo.manifests import LENGTHS, OUTPUTS
from tidal.arlo.cluster import RemoteNodes
from tidal.arlo.remote_server import RemoteServer
from tidal.errors import InvalidArgument
from tidal.repository.cluster_table import (
    CLUSTER_FILE,
    ClusterTable,
    NodeTls,
    RemoteNode,
    read_cluster_table,
    write_cluster_table,
)

NODE = RemoteNode(grpc="127.0.0.1:1", instances={16: 1, 64: 2})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "invalid json"),
        ('{"nodes": {"b": {"grpc": "h:1"}}}', "nodes.b.instances: field required"),
        ('{"nodes": {"b": {"grpc": "h", "instances": {"16": 1}}}}', "'h' is not an address; expected host:port"),
        ('{"nodes": {"b": {"grpc": "h:70000", "instances": {"16": 1}}}}', "'h:70000' is not an address"),
        ('{"nodes": {"b": {"grpc": "h:65536", "instances": {"16": 1}}}}', "'h:65536' is not an address"),
        ('{"nodes": {"b": {"grpc": "h:0", "instances": {"16": 1}}}}', "'h:0' is not an address"),
        ('{"nodes": {"b": {"grpc": "[10.0.0.2]:1", "instances": {"16": 1}}}}', "'[10.0.0.2]:1' is not an address"),
        ('{"nodes": {"b": {"grpc": "[1::2::3]:1", "instances": {"16": 1}}}}', "'[1::2::3]:1' is not an address"),
        ('{"nodes": {"b": {"grpc": "b..c:1", "instances": {"16": 1}}}}', "'b..c:1' is not an address"),
        ('{"nodes": {"b": {"grpc": "h:1", "instances": {"16": -1}}}}', "greater than or equal to 0"),
        ('{"nodes": {"b": {"grpc": "h:1", "instances": {"16": 5000}}}}', "less than or equal to 1024"),
        ('{"nodes": {"b": {"grpc": "h:1", "instances": {}}}}', "at least 1 item"),
        ('{"nodes": {"a b": {"grpc": "h:1", "instances": {"16": 1}}}}', "'a b' is not a node name; expected 1 to 63"),
        ('{"nodes": {"b": {"grpc": "h:1", "http": "h", "instances": {"16": 1}}}}', "'h' is not an address"),
        (
            '{"nodes": {"b": {"grpc": "h:1", "http": "h:2", "tls": {"ca": "c"}, "instances": {"16": 1}}}}',
            "http is for connections without tls; leave out http or tls",
        ),
        ('{"nodes": {"b": {"grpc": "h:1", "rank": -1, "instances": {"16": 1}}}}', "rank: input should be greater than"),
        (
            '{"nodes": {"b": {"grpc": "h:1", "assigned": 1, "instances": {"16": 1}}}}',
            "assigned: input should be a valid",
        ),
        ('{"nodes": {}, "entrances": {"a b": "h:1"}}', "'a b' is not a node name; expected 1 to 63"),
        ('{"nodes": {}, "entrances": {"a": "h"}}', "'h' is not an address; expected host:port"),
        ('{"nodes": {}, "share": 0}', "share: input should be greater than 0"),
        ('{"nodes": {}, "node": 1}', "node: extra inputs are not permitted"),
    ],
)
def test_a_broken_file_is_named_with_its_field(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / CLUSTER_FILE).write_text(text)
    with pytest.raises(InvalidArgument) as raised:
        read_cluster_table(tmp_path)
    assert str(tmp_path / CLUSTER_FILE) in str(raised.value)
    assert message in str(raised.value).lower()


def test_what_is_written_is_read(tmp_path: Path) -> None:
    assert read_cluster_table(tmp_path) == ClusterTable(nodes={})
    table = ClusterTable(nodes={"b": NODE, "c": NODE.model_copy(update={"tls": NodeTls(ca="/ca.pem")})})
    write_cluster_table(tmp_path, table)
    assert read_cluster_table(tmp_path) == table
    entrances = ClusterTable(nodes={}, entrances={"a": "127.0.0.1:1"})
    write_cluster_table(tmp_path, entrances)
    assert read_cluster_table(tmp_path) == entrances
    write_cluster_table(tmp_path, ClusterTable(nodes={}))
    assert not (tmp_path / CLUSTER_FILE).exists()


class TestNodesOfAFront:
    def nodes(self, folder: Path) -> RemoteNodes:
        return RemoteNodes(make_context(folder, outputs=OUTPUTS), LENGTHS)

    def test_they_follow_the_file(self, tmp_path: Path) -> None:
        nodes = self.nodes(tmp_path)
        assert nodes.instances == {}
        write_cluster_table(tmp_path, ClusterTable(nodes={"b": NODE}))
        assert nodes.refresh()
        assert nodes.instances == {"b": [1, 0, 2]}
        assert not nodes.refresh()
        server = nodes.servers["b"]
        write_cluster_table(tmp_path, ClusterTable(nodes={"b": NODE.model_copy(update={"instances": {32: 3}})}))
        assert nodes.refresh()
        assert nodes.instances == {"b": [0, 3, 0]}
        assert nodes.servers["b"] is server
        write_cluster_table(tmp_path, ClusterTable(nodes={"b": NODE.model_copy(update={"grpc": "127.0.0.1:2"})}))
        assert nodes.refresh()
        moved = nodes.servers["b"]
        assert moved is not server
        also = {"grpc": "127.0.0.1:2", "http": "127.0.0.1:3"}
        write_cluster_table(tmp_path, ClusterTable(nodes={"b": NODE.model_copy(update=also)}))
        nodes.refresh()
        assert nodes.servers["b"] not in (server, moved)
        nodes.close()

    def test_they_are_in_the_order_of_their_ranks(self, tmp_path: Path) -> None:
        nodes = self.nodes(tmp_path)
        for ranks in ({"b": 0, "c": 1}, {"b": 1, "c": 0}):
            table = {name: NODE.model_copy(update={"rank": rank}) for name, rank in ranks.items()}
            write_cluster_table(tmp_path, ClusterTable(nodes=table))
            assert nodes.refresh()
            assert list(nodes.instances) == sorted(ranks, key=lambda name: ranks[name])
        write_cluster_table(tmp_path, ClusterTable(nodes=table, share=0.5))
        assert nodes.refresh()
        assert (nodes.share, nodes.refresh()) == (0.5, False)
        table["b"] = table["b"].model_copy(update={"assigned": True})
        write_cluster_table(tmp_path, ClusterTable(nodes=table, share=0.5))
        assert (nodes.assigned, nodes.refresh()) == (frozenset(), True)
        assert (nodes.assigned, nodes.refresh()) == ({"b"}, False)
        nodes.close()

    def test_connections_to_nodes_that_left_or_moved_are_closed_and_no_others(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        closed: list[RemoteServer] = []
        close = RemoteServer.close
        monkeypatch.setattr(RemoteServer, "close", lambda server: (closed.append(server), close(server)))
        write_cluster_table(tmp_path, ClusterTable(nodes=dict.fromkeys(("stays", "moves", "leaves"), NODE)))
        nodes = self.nodes(tmp_path)
        before = dict(nodes.servers)
        moved = NODE.model_copy(update={"grpc": "127.0.0.1:2"})
        write_cluster_table(tmp_path, ClusterTable(nodes={"stays": NODE, "moves": moved}))
        assert nodes.refresh()
        assert closed == [before["moves"], before["leaves"]]
        nodes.close()
        assert closed[2:] == list(nodes.servers.values())

    def test_nodes_that_do_not_answer_are_left_out(self, tmp_path: Path) -> None:
        write_cluster_table(tmp_path, ClusterTable(nodes={"b": NODE}))
        nodes = self.nodes(tmp_path)
        nodes.servers["b"]._reachable = False
        assert nodes.refresh()
        assert nodes.instances == {}
        nodes.servers["b"]._reachable = True
        assert nodes.refresh()
        assert nodes.instances == {"b": [1, 0, 2]}
        nodes.close()

    def test_a_broken_file_changes_nothing_and_is_logged_once(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        write_cluster_table(tmp_path, ClusterTable(nodes={"b": NODE}))
        nodes = self.nodes(tmp_path)
        unknown = ClusterTable(nodes={"b": RemoteNode(grpc="127.0.0.1:1", instances={17: 1})})
        for broken in ("{", unknown.model_dump_json()):
            caplog.clear()
            (tmp_path / CLUSTER_FILE).write_text(broken)
            assert [nodes.refresh() for _ in range(3)] == [False] * 3
            assert caplog.text.count("the other nodes stay b") == 1
        assert "nodes.b.instances names 17; the model's runtimes are 16, 32, 64" in caplog.text
        assert nodes.instances == {"b": [1, 0, 2]}
        nodes.close()

    def test_a_front_starts_alone_with_a_broken_file(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        (tmp_path / CLUSTER_FILE).write_text("{")
        assert self.nodes(tmp_path).instances == {}
        assert "the other nodes stay none" in caplog.text

    def test_a_missing_file_of_tls_is_named(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        node = NODE.model_copy(update={"tls": NodeTls(ca=str(tmp_path / "ca.pem"))})
        write_cluster_table(tmp_path, ClusterTable(nodes={"b": node}))
        assert self.nodes(tmp_path).instances == {}
        assert f"nodes.b.tls: {tmp_path / 'ca.pem'} cannot be read: No such file" in caplog.text
