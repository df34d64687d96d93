"""Manifests of a store are not trusted: what is refused is named, and the repository is as it was."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.version_store.support import add_plain, contents, get, memory_store, send
from tidal.errors import InvalidArgument, NotFound, TidalError, Unsupported
from tidal.version_store.store import SCHEMES, VersionStore, open_store
from tidal.version_store.stored_version import MAX_MANIFEST_BYTES, parse_stored
from tidal_client.extras import install_command

_VALUES = st.none() | st.integers() | st.text(max_size=4)
_KEYS = st.sampled_from(["format", "model", "version", "files", "x"])


@pytest.fixture
def store(tmp_path: Path) -> VersionStore:
    """A store with version 1 of `m`, which was published from `a`."""
    found = memory_store()
    add_plain(tmp_path / "a", "m")
    send(found, tmp_path / "a", "m")
    return found


def manifest(store: VersionStore) -> dict[str, Any]:
    found: dict[str, Any] = store.read("m", 1).model_dump(mode="json")
    return found


def replace(store: VersionStore, content: bytes | dict[str, Any], path: str = "models/m/1.json") -> None:
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    store._files.pipe_file(store._at(path), data)


def refused(store: VersionStore, repository: Path) -> str:
    (repository / "other" / "1").mkdir(parents=True)
    before = contents(repository)
    with pytest.raises(InvalidArgument) as caught:
        get(store, repository, "m")
    assert contents(repository) == before
    return str(caught.value)


@pytest.mark.parametrize(
    "path",
    [
        *("../evil", "/etc/evil", "a/../../evil", "..", ".", "", "a//b", "./a", "a/", "a/.", "a\\b", "a\nb", "a\0b"),
        *("x" * 256, "/".join(["a" * 200] * 6)),
    ],
)
@pytest.mark.parametrize("field", ["files", "folders"])
def test_a_path_that_leaves_the_version(store: VersionStore, tmp_path: Path, path: str, field: str) -> None:
    changed = manifest(store)
    if field == "files":
        changed["files"][0]["path"] = path
    else:
        changed["folders"] = [path]
    replace(store, changed)
    assert "is not a path in a version" in refused(store, tmp_path / "b")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"format": 2}, "has format 2; this release reads format 1: upgrade Tidal"),
        ({"links": {"weights/x": "/etc/passwd"}}, "links: Extra inputs are not permitted"),
        ({"model": "../m"}, "is not a name of a model"),
        ({"model": "n"}, "is the manifest of version 1 of model 'n', not of its own path"),
        ({"version": 2}, "is the manifest of version 2 of model 'm', not of its own path"),
        ({"version": 0}, "version: Input should be greater than or equal to 1"),
        ({"requires": [{"model": "../x", "version": 1}]}, "is not a name of a model"),
        ({"requires": [{"model": ".x", "version": 1}]}, "is not a name of a model"),
        ({"folders": ["weights/own"]}, "a path is listed twice"),
        ({"folders": ["weights/own/below"]}, "'weights/own/below' is inside 'weights/own'"),
        ({"folders": ["weights"]}, "is inside 'weights'"),
        ({"tasks": [{"model": "m", "name": "..", "files": []}]}, "is not a name of a task"),
    ],
)
def test_a_field_that_is_not_accepted(
    store: VersionStore, tmp_path: Path, changes: dict[str, Any], expected: str
) -> None:
    replace(store, manifest(store) | changes)
    assert expected in refused(store, tmp_path / "b")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"mode": 0o4755}, "mode: Input should be less than or equal to 511"),
        ({"sha256": "../../../etc/passwd"}, "sha256: String should match pattern"),
        ({"sha256": "A" * 64}, "sha256: String should match pattern"),
        ({"bytes": -1}, "bytes: Input should be greater than or equal to 0"),
        ({"target": "/etc/passwd"}, "target: Extra inputs are not permitted"),
        ({"path": "weights/own"}, "a path is listed twice"),
    ],
)
def test_a_file_that_is_not_accepted(
    store: VersionStore, tmp_path: Path, changes: dict[str, Any], expected: str
) -> None:
    changed = manifest(store)
    changed["files"][0] |= changes
    replace(store, changed)
    assert expected in refused(store, tmp_path / "b")


def test_a_task_of_a_model_that_is_not_required(store: VersionStore, tmp_path: Path) -> None:
    changed = manifest(store)
    changed["tasks"] = [{"model": "other", "name": "t", "files": changed["files"][:1]}]
    replace(store, changed)
    assert "tasks are of 'other', which is not required" in refused(store, tmp_path / "b")


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "is not the manifest of a version"),
        (b"[" * 100_000, "is not the manifest of a version"),
        (b"\xff\xfe", "is not the manifest of a version"),
        (b"{}", "is not the manifest of a version"),
        (b'{"format": 1}', "is not the manifest of a version"),
        (b" " * (MAX_MANIFEST_BYTES + 1), f"is larger than {MAX_MANIFEST_BYTES} bytes"),
    ],
)
def test_a_file_that_is_no_manifest(store: VersionStore, tmp_path: Path, content: bytes, expected: str) -> None:
    replace(store, content)
    assert expected in refused(store, tmp_path / "b")


def test_a_config_that_is_too_large(store: VersionStore, tmp_path: Path) -> None:
    changed = manifest(store)
    changed["config"]["bytes"] = 1 << 30
    replace(store, changed)
    assert "config must be config.pbtxt of at most" in refused(store, tmp_path / "b")


def test_versions_that_require_each_other_and_too_many(store: VersionStore, tmp_path: Path) -> None:
    base = manifest(store)
    for name, required in (("m", "n"), ("n", "m")):
        replace(store, base | {"model": name, "requires": [{"model": required, "version": 1}]}, f"models/{name}/1.json")
    assert {each.model for each in get(store, tmp_path / "b", "m")} == {"m", "n"}
    many = [{"model": "m", "version": number} for number in range(2, 1003)]
    replace(store, base | {"requires": many})
    assert "at most 1000" in refused(store, tmp_path / "c")


def test_names_in_a_listing_that_are_no_models_or_versions(store: VersionStore) -> None:
    for path in ("models/.hidden/1.json", "models/m/01.json", "models/m/x.json", "models/m/.2.json.part", "models/m/3"):
        replace(store, b"{}", path)
    assert (store.models(), store.versions("m")) == (["m"], [1])
    assert store.versions("../m") == []


@settings(max_examples=50)
@given(st.recursive(_VALUES, lambda inner: st.dictionaries(_KEYS, inner, max_size=3), max_leaves=6))
def test_any_json_is_refused_in_one_sentence(value: object) -> None:
    with pytest.raises(InvalidArgument):
        parse_stored(json.dumps(value).encode(), "memory://x")


def test_an_unknown_scheme_names_those_that_are_known() -> None:
    with pytest.raises(InvalidArgument, match=r"unknown scheme 's4': did you mean 's3'\? accepted: file, gs, s3"):
        open_store("s4://bucket/path")
    with pytest.raises(InvalidArgument, match="unknown scheme 'http'"):
        open_store("http://host/path")


@pytest.mark.parametrize("scheme", ["s3", "gs"])
def test_a_scheme_without_its_library_names_the_extra(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for library in ("s3fs", "gcsfs"):
        monkeypatch.setitem(__import__("sys").modules, library, None)
    with pytest.raises(Unsupported) as caught:
        open_store(f"{scheme}://bucket/path")
    assert str(caught.value).endswith(f"which is not installed: {install_command(SCHEMES[scheme])}")


def test_what_is_not_there_is_named(store: VersionStore, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="has no model 'mm': did you mean 'm'"):
        get(store, tmp_path / "b", "mm")
    with pytest.raises(NotFound, match="has no version 2 of model 'm'; its versions are 1"):
        get(store, tmp_path / "b", "m", 2)
    with pytest.raises(TidalError, match=r"has no model '\.\./m'"):
        get(store, tmp_path / "b", "../m")
    assert not (tmp_path / "b").exists()
