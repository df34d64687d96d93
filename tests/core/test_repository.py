from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tidal.repository.entries import KEPT_VERSIONS, ModelEntry, model_entries, write_atomically


def publish(entry: ModelEntry, content: str) -> int:
    staging = entry.new_staging()
    (staging / "engines").mkdir()
    (staging / "engines" / "model").write_text(content)
    return entry.publish(staging)


def test_versions_count_up_and_the_newest_few_stay(tmp_path: Path) -> None:
    entry = ModelEntry(tmp_path / "intents")
    assert entry.versions() == []
    assert entry.latest() is None
    for n in range(1, KEPT_VERSIONS + 3):
        assert publish(entry, str(n)) == n
    assert entry.versions() == [3, 4, 5]
    latest = entry.latest()
    assert latest is not None
    assert (latest / "engines" / "model").read_text() == "5"
    assert sorted(p.name for p in entry.folder.iterdir()) == ["3", "4", "5"]


def test_staging_folders_are_not_versions(tmp_path: Path) -> None:
    entry = ModelEntry(tmp_path / "intents")
    staging = entry.new_staging()
    (staging / "manifest.json").write_text("{")
    (entry.folder / "01").mkdir()
    (entry.folder / "notes").mkdir()
    assert entry.versions() == []
    entry.clear_staging()
    assert not staging.exists()


def test_numbers_sort_as_numbers(tmp_path: Path) -> None:
    entry = ModelEntry(tmp_path / "m")
    for n in (9, 10, 2):
        (entry.folder / str(n)).mkdir(parents=True)
    assert entry.versions() == [2, 9, 10]


def test_models_are_folders_with_a_config_or_a_version(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "config.pbtxt").write_text('backend: "arlo"')
    (tmp_path / "b" / "1").mkdir(parents=True)
    (tmp_path / "c").mkdir()
    (tmp_path / "README").write_text("")
    assert [e.name for e in model_entries(tmp_path)] == ["a", "b"]


def test_several_threads_write_one_file(tmp_path: Path) -> None:
    path = tmp_path / "servers.json"
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: write_atomically(path, str(number)), range(200)))
    assert int(path.read_text()) < 200
    assert list(tmp_path.iterdir()) == [path]


def test_atomic_write_replaces_and_leaves_nothing_beside(tmp_path: Path) -> None:
    path = tmp_path / "config.pbtxt"
    write_atomically(path, "one")
    write_atomically(path, "two")
    assert path.read_text() == "two"
    assert list(tmp_path.iterdir()) == [path]
