"""Assignment of nodes to entrances: every node once, in proportion to the queries, runtimes alike."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidal.arlo.scheduling import assign_nodes, preferred_nodes

NODES = dict.fromkeys("abcdef", (1, 1))


def test_each_entrance_gets_its_share_of_the_nodes() -> None:
    assert assign_nodes(NODES, {"a": 5.0, "b": 5.0}) == {"a": ["a", "c", "e"], "b": ["b", "d", "f"]}
    assert assign_nodes(NODES, {"a": 6.0, "b": 4.0}) == {"a": ["a", "c", "d", "f"], "b": ["b", "e"]}
    assert assign_nodes(NODES, {"a": 1.0}) == {"a": list("abcdef")}
    assert assign_nodes(NODES, {"a": 1.0, "b": 0.0}) == {"a": list("abcdef")}


def test_each_runtime_is_shared() -> None:
    """In the order of the nodes, one entrance would get both of the first runtime."""
    nodes = {"a": (1, 0), "b": (0, 1), "c": (1, 0), "d": (0, 1)}
    assert assign_nodes(nodes, {"x": 1.0, "y": 1.0}) == {"x": ["a", "b"], "y": ["c", "d"]}


def test_an_entrance_that_drains_has_no_node_of_its_own() -> None:
    assert assign_nodes({"b": (1,), "c": (1,)}, {"a": 1.0, "b": 1.0}) == {"a": ["c"], "b": ["b"]}


def test_without_queries_nothing_is_assigned_and_fronts_begin_with_different_nodes() -> None:
    assert assign_nodes(NODES, {}) == {}
    assert preferred_nodes("a", {}, list(NODES)) == list("bcdef")
    assert preferred_nodes("d", {}, list(NODES)) == list("efabc")


def test_nodes_of_others_follow_those_that_these_use_last_first() -> None:
    assigned = {"a": ["a", "c", "e"], "b": ["b", "d", "f"]}
    assert preferred_nodes("a", assigned, list(NODES)) == ["c", "e", "f", "d", "b"]
    assert preferred_nodes("b", assigned, list(NODES)) == ["d", "f", "e", "c", "a"]
    assert preferred_nodes("c", assigned, list(NODES)) == ["e", "f", "d", "a", "b"]


@given(
    st.dictionaries(st.sampled_from("abcdefgh"), st.lists(st.integers(0, 3), min_size=2, max_size=2), min_size=1),
    st.dictionaries(st.sampled_from("abcdefghij"), st.floats(0, 1e6)),
)
def test_every_node_is_assigned_once_and_every_front_knows_all_others(
    nodes: dict[str, list[int]], queries: dict[str, float]
) -> None:
    assigned = assign_nodes(nodes, queries)
    assert assigned.keys() == {name for name, number in queries.items() if number > 0}
    assert sorted(name for row in assigned.values() for name in row) == (sorted(nodes) if assigned else [])
    for node in nodes.keys() | queries.keys():
        preferred = preferred_nodes(node, assigned, sorted(nodes))
        assert sorted(preferred) == sorted(nodes.keys() - {node})
        own = [name for name in assigned.get(node, []) if name != node]
        assert preferred[: len(own)] == own


@given(st.integers(1, 6), st.integers(6, 60))
def test_equal_entrances_get_equal_numbers_of_equal_nodes(entrances: int, nodes: int) -> None:
    names = [f"n{at:02}" for at in range(nodes)]
    assigned = assign_nodes(dict.fromkeys(names, (2, 1, 1)), dict.fromkeys(names[:entrances], 3.0))
    sizes = [len(row) for row in assigned.values()]
    assert max(sizes) - min(sizes) <= 1
