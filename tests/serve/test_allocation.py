"""The file that holds a partitioned model's instance counts."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidal.errors import InvalidArgument
from tidal.repository.allocation import ALLOCATION_FILE, make_allocation, read_allocation, write_allocation

lengths = st.integers(1, 4096)
counts = st.dictionaries(lengths, st.integers(0, 1024), min_size=1, max_size=6)


def with_last(instances: dict[int, int]) -> dict[int, int]:
    return {**instances, max(instances): max(1, instances[max(instances)])}


@settings(max_examples=25)
@given(counts, st.data())
def test_round_trip(instances: dict[int, int], data: st.DataObject) -> None:
    loaded = data.draw(st.none() | st.fixed_dictionaries({n: st.integers(0, 1024) for n in instances}))
    allocation = make_allocation(with_last(instances), loaded)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_allocation(folder, allocation)
        assert read_allocation(folder) == allocation
        assert [path.name for path in folder.iterdir()] == [ALLOCATION_FILE]


@given(counts, st.data())
def test_the_front_uses_the_minimum_of_wanted_and_loaded(instances: dict[int, int], data: st.DataObject) -> None:
    wanted = with_last(instances)
    assert make_allocation(wanted).serving() == wanted
    loaded = data.draw(st.fixed_dictionaries({n: st.integers(0, 1024) for n in wanted}))
    serving = make_allocation(wanted, loaded).serving()
    assert list(serving) == sorted(wanted)
    longest = max(wanted)
    assert all(serving[n] == min(wanted[n], loaded[n]) for n in wanted if n != longest)
    assert serving[longest] == max(1, min(wanted[longest], loaded[longest]))


def test_a_model_without_the_file_has_none(tmp_path: Path) -> None:
    assert read_allocation(tmp_path) is None


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        ("{", "JSON"),
        ("{}", "instances: field required"),
        ('{"instances": {}}', "instances: dictionary should have at least 1 item"),
        ('{"instances": {"64": true}}', "instances.64: input should be a valid integer"),
        ('{"instances": {"64": 1.5}}', "instances.64: input should be a valid integer"),
        ('{"instances": {"64": "1"}}', "instances.64: input should be a valid integer"),
        ('{"instances": {"64": -1}}', "instances.64: input should be greater than or equal to 0"),
        ('{"instances": {"64": 1025}}', "instances.64: input should be less than or equal to 1024"),
        ('{"instances": {"long": 1}}', "instances.long: input should be a valid integer"),
        ('{"instances": {"0": 1}}', "instances.0: input should be greater than or equal to 1"),
        ('{"instances": {"64": 2, "512": 0}}', "the longest runtime, 512, needs at least 1 instance, got 0"),
        ('{"instances": {"64": 1}, "loaded": {"32": 1}}', "loaded: names runtimes 32, instances names 64"),
        ('{"instances": {"64": 1}, "count": 1}', "count: extra inputs are not permitted"),
    ],
)
def test_a_bad_file_is_refused_in_one_sentence_that_names_the_field(text: str, reported: str, tmp_path: Path) -> None:
    (tmp_path / ALLOCATION_FILE).write_text(text)
    with pytest.raises(InvalidArgument) as refused:
        read_allocation(tmp_path)
    assert reported in str(refused.value)
    assert str(tmp_path / ALLOCATION_FILE) in str(refused.value)
    assert "\n" not in str(refused.value)


def test_has_to_name_exactly_the_runtimes_of_its_model() -> None:
    allocation = make_allocation({64: 1, 512: 1})
    allocation.check([512, 64])
    with pytest.raises(InvalidArgument, match="instances names 64, the model's runtimes are 128, 512"):
        allocation.check([128, 512])
    with pytest.raises(InvalidArgument, match="instances lacks 128, the model's runtimes are 64, 128, 512"):
        allocation.check([64, 128, 512])
