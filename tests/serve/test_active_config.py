"""The config that a model is loaded with, the plan of a start, and the steps of a change of instances."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testing.serving import publish
from tests.serve.controls import RecordingControl
from tests.serve.partitioned import publish_partitioned, set_instances
from tidal.catalog.graph import ModelGraph
from tidal.errors import InvalidArgument, Unavailable
from tidal.repository.allocation import configured_instances, read_allocation, usable_allocation
from tidal.repository.config import instance_count, read_config, with_instances
from tidal.server.active_config import active_config, load_model, restart_model
from tidal.server.allocate import format_counts, partitioned_model, plan_steps, wanted_now, write_wanted
from tidal.server.change_lock import exclusive_change
from tidal.server.gauges import parse_instances
from tidal.server.launch import select_models
from tidal.server.starting import StartPlan, clear_unfinished_changes, plan_start


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A partitioned `m` of lengths 16 and 64, and `alone`."""
    folder = tmp_path / "models"
    publish_partitioned(folder, "m", [16, 64])
    publish(folder, "alone")
    return folder


def names(selection: Any) -> list[str]:
    return [entry.name for entry in selection.served]


class TestActiveConfig:
    def test_a_standalone_model_is_loaded_from_its_file(self, repository: Path) -> None:
        assert active_config(ModelGraph.read(repository), "alone") is None
        assert active_config(ModelGraph.read(repository), "m") is None
        assert active_config(ModelGraph.read(None), "m_len16") is None

    def test_is_complete_and_has_the_allocated_count(self, repository: Path) -> None:
        set_instances(repository, "m", {16: 3, 64: 1})
        active = active_config(ModelGraph.read(repository), "m_len16")
        assert active is not None
        assert (active.instances, active.as_in_file) == (3, False)
        assert active.config == {
            "name": "m_len16",
            "backend": "python",
            "input": [{"name": "SECONDS", "data_type": "TYPE_FP32", "dims": ["1"]}],
            "output": [{"name": "RAN", "data_type": "TYPE_INT32", "dims": ["2"]}],
            "instance_group": [{"kind": "KIND_CPU", "count": 3}],
            "version_policy": {"specific": {"versions": ["1"]}},
        }

    def test_is_passed_even_where_it_equals_the_file(self, repository: Path) -> None:
        """After a load with another count, a load without a config would change nothing."""
        for prepared in (lambda: None, lambda: set_instances(repository, "m", {16: 1, 64: 1})):
            prepared()
            active = active_config(ModelGraph.read(repository), "m_len16")
            assert active is not None
            assert active.as_in_file
            assert active.config == read_config(repository / "m_len16")

    def test_has_the_target_counts_of_a_change_in_progress(self, repository: Path) -> None:
        set_instances(repository, "m", {16: 2, 64: 1}, loaded={16: 1, 64: 3})
        active = active_config(ModelGraph.read(repository), "m_len16")
        assert active is not None
        assert active.instances == 2

    def test_follows_the_version_policy_of_the_front(self, repository: Path) -> None:
        publish_partitioned(repository, "m", [16, 64], version=2)
        config = repository / "m" / "config.pbtxt"
        config.write_text(config.read_text() + "version_policy { specific { versions: [ 1 ] } }\n")
        active = active_config(ModelGraph.read(repository), "m_len64")
        assert active is not None
        assert active.config["version_policy"] == {"specific": {"versions": ["1"]}}
        assert not active.as_in_file

    def test_has_the_versions_that_the_front_calls(self, repository: Path) -> None:
        publish_partitioned(repository, "m", [16, 64], version=2)
        for called, served in (((), ["2"]), ({1}, ["1"]), ({2, 1}, ["1", "2"]), ({7}, ["2"])):
            active = active_config(ModelGraph.read(repository), "m_len64", called)
            assert active is not None
            assert active.config["version_policy"] == {"specific": {"versions": served}}
            assert active.as_in_file == (served == ["2"])

    def test_keeps_counts_of_an_allocation_for_an_earlier_version(self, repository: Path) -> None:
        set_instances(repository, "m", {16: 2, 64: 3})
        publish_partitioned(repository, "m", [32, 64], version=2)
        active = [active_config(ModelGraph.read(repository), f"m_len{n}") for n in (16, 32, 64)]
        assert [each.instances for each in active if each is not None] == [2, 1, 3]

    def test_a_config_with_an_unknown_setting_is_refused(self, repository: Path) -> None:
        (repository / "m_len16" / "config.pbtxt").write_text('backend: "python" not_known_here: 1')
        with pytest.raises(InvalidArgument, match="not_known_here"):
            active_config(ModelGraph.read(repository), "m_len16")


class TestLoading:
    def test_a_runtime_without_instances_is_unloaded(self, repository: Path) -> None:
        set_instances(repository, "m", {16: 0, 64: 1})
        control = RecordingControl()
        load_model(control, ModelGraph.read(repository), "m_len16")
        restart_model(control, ModelGraph.read(repository), "m_len16")
        assert control.calls == [("m_len16", "unload")] * 3

    def test_a_runtime_that_is_not_deployed_is_loaded_once_an_allocation_says_so(self, repository: Path) -> None:
        with (repository / "m_len16" / "config.pbtxt").open("a") as config:
            config.write('parameters { key: "deployed" value { string_value: "false" } }\n')
        assert configured_instances(repository / "m", [16, 64]) == {16: 0, 64: 1}
        control = RecordingControl()
        load_model(control, ModelGraph.read(repository), "m_len16")
        set_instances(repository, "m", {16: 1, 64: 1})
        load_model(control, ModelGraph.read(repository), "m_len16")
        assert control.calls == [("m_len16", "unload"), ("m_len16", 1)]

    def test_a_load_is_repeated_after_a_concurrent_allocation(self, repository: Path) -> None:
        control = RecordingControl(during=[lambda: set_instances(repository, "m", {16: 2, 64: 1})])
        load_model(control, ModelGraph.read(repository), "m_len16")
        assert control.calls == [("m_len16", 1), ("m_len16", 2)]

    def test_a_load_is_repeated_after_a_concurrent_change_of_the_front(self, repository: Path) -> None:
        publish_partitioned(repository, "m", [16, 64], version=2)
        control = RecordingControl(serving={"m": 1})
        control.during.append(lambda: control.serving.update(m=2))
        load_model(control, ModelGraph.read(repository), "m_len16")
        assert len(control.calls) == 2

    def test_a_restart_without_a_config_leaves_the_model_as_it_is(self, repository: Path) -> None:
        (repository / "m_len16" / "config.pbtxt").unlink()
        control = RecordingControl()
        with pytest.raises(InvalidArgument):
            restart_model(control, ModelGraph.read(repository), "m_len16")
        assert control.calls == []


class TestStarting:
    ALL = ("alone", "m", "m_len16", "m_len64")

    def test_without_an_allocation_the_server_loads_all(self, repository: Path) -> None:
        assert plan_start(ModelGraph.read(repository), self.ALL) == StartPlan(self.ALL)

    def test_an_allocation_equal_to_the_configs_changes_nothing(self, repository: Path) -> None:
        set_instances(repository, "m", {16: 1, 64: 1})
        assert plan_start(ModelGraph.read(repository), self.ALL) == StartPlan(self.ALL)

    def test_runtimes_with_other_counts_are_loaded_later_and_the_front_last(self, repository: Path) -> None:
        set_instances(repository, "m", {16: 1, 64: 2})
        assert plan_start(ModelGraph.read(repository), self.ALL) == StartPlan(
            ("alone", "m_len16"), (("m_len64",), ("m",))
        )

    def test_a_runtime_without_instances_is_not_loaded(self, repository: Path) -> None:
        set_instances(repository, "m", {16: 0, 64: 1})
        assert plan_start(ModelGraph.read(repository), self.ALL) == StartPlan(("alone", "m", "m_len64"))

    def test_an_allocation_for_other_runtimes_is_refused(self, repository: Path) -> None:
        set_instances(repository, "m", {32: 1, 64: 1})
        with pytest.raises(InvalidArgument, match=r"instances names 32.*tidal models allocate m 16=COUNT 64=COUNT"):
            plan_start(ModelGraph.read(repository), self.ALL)

    def test_omits_a_partitioned_model_whose_allocation_is_not_valid(self, repository: Path) -> None:
        set_instances(repository, "m", {32: 1, 64: 1})
        plan = plan_start(ModelGraph.read(repository), self.ALL, strict=False)
        assert plan.models == ("alone",)
        refused = dict(plan.refused)
        assert set(refused) == {"m", "m_len16", "m_len64"}
        assert "tidal models allocate m 16=COUNT 64=COUNT" in refused["m"]
        assert refused["m_len16"] == "it is a runtime of 'm', which cannot be loaded"

    def test_clears_the_loaded_counts_of_an_unfinished_change(self, repository: Path) -> None:
        set_instances(repository, "m", {16: 2, 64: 1}, loaded={16: 1, 64: 1})
        clear_unfinished_changes(repository, self.ALL)
        left = read_allocation(repository / "m")
        assert left is not None
        assert (left.instances, left.loaded) == ({16: 2, 64: 1}, None)

    def test_leaves_a_running_change_alone(self, repository: Path) -> None:
        set_instances(repository, "m", {16: 2, 64: 1}, loaded={16: 1, 64: 1})
        with exclusive_change(repository / "m"):
            clear_unfinished_changes(repository, self.ALL)
        left = read_allocation(repository / "m")
        assert left is not None
        assert left.loaded == {16: 1, 64: 1}

    def test_selects_partitioned_models_with_their_current_runtimes_only(self, repository: Path) -> None:
        publish_partitioned(repository, "m", [32, 64], version=2)
        assert names(select_models(ModelGraph.read(repository), [])) == ["alone", "m", "m_len32", "m_len64"]
        assert names(select_models(ModelGraph.read(repository), ["m"])) == ["m", "m_len32", "m_len64"]
        assert names(select_models(ModelGraph.read(repository), ["alone"])) == ["alone"]
        assert names(select_models(ModelGraph.read(repository), ["m_len16"])) == ["m_len16"]

    def test_selects_no_runtime_of_a_model_that_is_no_longer_partitioned(self, repository: Path) -> None:
        publish_partitioned(repository, "m", [64], version=2, placement="polymorphic")
        assert names(select_models(ModelGraph.read(repository), [])) == ["alone", "m"]
        assert names(select_models(ModelGraph.read(repository), ["m"])) == ["m"]
        assert names(select_models(ModelGraph.read(repository), ["m_len16"])) == ["m_len16"]

    def test_selects_runtimes_whose_front_is_not_published(self, repository: Path) -> None:
        (repository / "m").rename(repository.parent / "elsewhere")
        assert names(select_models(ModelGraph.read(repository), [])) == ["alone", "m_len16", "m_len64"]


class TestUsable:
    def test_under_tidal_serve_is_the_allocation_file(self, repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("TIDAL_ALLOCATION", "file")
        assert usable_allocation(repository / "m", [64, 16]).serving() == {16: 1, 64: 1}
        set_instances(repository, "m", {16: 3, 64: 1}, loaded={16: 2, 64: 2})
        assert usable_allocation(repository / "m", [64, 16]).serving() == {16: 2, 64: 1}
        with pytest.raises(InvalidArgument, match=r"allocation\.json: instances names 16"):
            usable_allocation(repository / "m", [64]).serving()

    def test_under_a_stock_server_is_the_counts_of_the_configs(
        self, repository: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("TIDAL_ALLOCATION", raising=False)
        set_instances(repository, "m", {16: 3, 64: 1})
        assert usable_allocation(repository / "m", [64, 16]).serving() == {16: 1, 64: 1}


class TestPlanning:
    counts = st.dictionaries(st.integers(1, 512), st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1)

    @given(counts)
    def test_reaches_the_target_in_small_batches_shrinking_first(self, both: dict[int, tuple[int, int]]) -> None:
        loaded, wanted = ({n: pair[i] for n, pair in both.items()} for i in (0, 1))
        steps = plan_steps("m", loaded, wanted)
        assert all(1 <= len(batch) <= 2 for batch in steps)
        flat = [step for batch in steps for step in batch]
        assert {n: loaded[n] for n in loaded} | {s.max_length: s.after for s in flat} == wanted
        assert len({s.model for s in flat}) == len(flat)
        assert all(s.before == loaded[s.max_length] != s.after for s in flat)
        grows = [s.after > s.before for s in flat]
        assert grows == sorted(grows)
        # Never more instances at once than before or after.
        total, most = sum(loaded.values()), max(sum(loaded.values()), sum(wanted.values()))
        for step in flat:
            total += step.after - step.before
            assert total <= most

    def test_steps_and_counts_as_text(self) -> None:
        (batch,) = plan_steps("m", {16: 2, 64: 1}, {16: 1, 64: 1})
        assert list(map(str, batch)) == ["m_len16: 2 -> 1 instances"]
        assert format_counts({64: 2, 16: 1}) == "16=1 64=2"

    def test_an_allocation_for_other_runtimes_applies_to_the_common_ones(self, repository: Path) -> None:
        model = partitioned_model(repository, "m")
        assert wanted_now(repository, model) == {16: 1, 64: 1}
        set_instances(repository, "m", {32: 4, 64: 2})
        assert wanted_now(repository, model) == {16: 1, 64: 2}
        write_wanted(repository, model, {16: 2, 64: 2})
        assert wanted_now(repository, model) == {16: 2, 64: 2}
        with pytest.raises(InvalidArgument, match="instances lacks 16"):
            write_wanted(repository, model, {64: 2})

    def test_one_change_at_a_time(self, repository: Path) -> None:
        with exclusive_change(repository / "m"), pytest.raises(Unavailable, match="being changed already"):
            write_wanted(repository, partitioned_model(repository, "m"), {16: 1, 64: 1})
        write_wanted(repository, partitioned_model(repository, "m"), {16: 1, 64: 1})


class TestInstanceGroups:
    @given(st.integers(1, 20), st.lists(st.integers(0, 7), min_size=1, unique=True))
    def test_are_spread_over_the_gpus(self, count: int, gpus: list[int]) -> None:
        config = {"instance_group": [{"kind": "KIND_GPU", "count": 1, "gpus": gpus, "name": "g"}]}
        spread = with_instances(config, count)
        assert instance_count(spread) == count
        shares = [group["count"] for group in spread["instance_group"]]
        assert max(shares) - min(shares) <= 1
        assert len({tuple(group["gpus"]) for group in spread["instance_group"]}) == len(shares) == min(count, len(gpus))

    def test_keep_their_other_settings(self) -> None:
        group = {"kind": "KIND_CPU", "count": 1, "host_policy": "p"}
        assert with_instances({"instance_group": [group]}, 3)["instance_group"] == [{**group, "count": 3}]
        assert with_instances({}, 2)["instance_group"] == [{"kind": "KIND_CPU", "count": 2}]


def test_reads_the_gauge_of_a_front() -> None:
    text = (
        "# HELP tidal_arlo_instances Instances\n"
        'tidal_arlo_instances{model="m",runtime="16",version="1"} 2\n'
        'tidal_arlo_instances{model="m",runtime="64",version="1"} 1.000000\n'
        'tidal_arlo_instances{model="m",runtime="16",version="2"} 0\n'
        'tidal_arlo_instances{model="other",runtime="16",version="1"} 5\n'
        'tidal_arlo_waiting_queries{model="m",version="1"} 7\n'
    )
    assert parse_instances(text, "m") == {1: {16: 2, 64: 1}, 2: {16: 0}}
    assert parse_instances("", "m") == {}
