"""What is fetched is byte for byte what was published, with everything that it requires, and nothing is sent twice."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core.manifests import publish_front
from tests.serve.folders import add_ensemble
from tests.serve.partitioned import publish_partitioned
from tests.tabi.serving import VERSION, cascades, write_cascade
from tests.version_store.support import add_plain, contents, get, memory_store, quiet, send
from tidal import device
from tidal.errors import InvalidArgument, NotFound, Unavailable
from tidal.tabi.manifest import TabiManifest
from tidal.version_store.fetch import fetch, roots
from tidal.version_store.publish import publish
from tidal.version_store.store import VersionStore, open_store


@pytest.fixture(params=["file", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> VersionStore:
    return memory_store() if request.param == "memory" else open_store(f"file://{tmp_path}/store")


def blobs(store: VersionStore) -> set[str]:
    return {path.rpartition("/")[2] for path in store._files.find(store._at("blobs"))}


def test_a_version_arrives_as_it_was(store: VersionStore, tmp_path: Path) -> None:
    source = add_plain(tmp_path / "a", "m")
    (source / "run.sh").write_text("#!/bin/sh\n")
    (source / "run.sh").chmod(0o750)
    (source / "empty").mkdir()
    published = send(store, tmp_path / "a", "m")
    assert [(each.model, each.version, each.state) for each in published] == [("m", 1, "published")]
    assert published[0].uploaded_bytes == published[0].bytes + len('backend: "python"\n')
    fetched = get(store, tmp_path / "b", "m")
    assert [(each.model, each.version, each.state) for each in fetched] == [("m", 1, "fetched")]
    assert contents(tmp_path / "b") == contents(tmp_path / "a")
    assert get(store, tmp_path / "b", "m")[0].state == "here before"
    assert contents(tmp_path / "b") == contents(tmp_path / "a")


def test_a_content_is_stored_once(store: VersionStore, tmp_path: Path) -> None:
    add_plain(tmp_path / "a", "m", 1)
    send(store, tmp_path / "a", "m")
    before = blobs(store)
    add_plain(tmp_path / "a", "m", 2)
    add_plain(tmp_path / "a", "n", 1)
    second, third = send(store, tmp_path / "a", "m", "n")
    assert len(blobs(store) - before) == 2  # weights/own of each
    assert (second.uploaded_bytes, third.uploaded_bytes) == (len("m 2 a"), len("n 1 a"))
    again = send(store, tmp_path / "a", "m")
    assert [(each.state, each.uploaded_bytes) for each in again] == [("published before", 0)]


def test_of_one_number_with_two_contents_the_second_is_refused(store: VersionStore, tmp_path: Path) -> None:
    add_plain(tmp_path / "a", "m", text="a")
    add_plain(tmp_path / "b", "m", text="b")
    send(store, tmp_path / "a", "m")
    with pytest.raises(InvalidArgument, match=r"another version 1 of model 'm': 'model\.py' differs; fetch it, then"):
        send(store, tmp_path / "b", "m")
    get(store, tmp_path / "c", "m")
    assert contents(tmp_path / "c") == contents(tmp_path / "a")


def test_a_race_of_two_publishers_has_one_winner(
    store: VersionStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one publishes after this one has looked, and before it writes its manifest."""
    for name in "ab":
        add_plain(tmp_path / name, "m", text=name)
    create, entered = store.create, []

    def racing(*arguments: object) -> object:
        if not entered:
            entered.append(True)
            send(store, tmp_path / "b", "m")
        return create(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(store, "create", racing)
    with pytest.raises(InvalidArgument, match="another version 1 of model 'm'"):
        send(store, tmp_path / "a", "m")
    get(store, tmp_path / "c", "m")
    assert contents(tmp_path / "c") == contents(tmp_path / "b")


def test_a_lost_answer_of_the_store_is_no_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = memory_store()
    add_plain(tmp_path / "a", "m")
    pipe_file = store._files.pipe_file

    def lost(*arguments: object, **options: object) -> None:
        pipe_file(*arguments, **options)
        raise TimeoutError("no answer")

    monkeypatch.setattr(store._files, "pipe_file", lost)
    assert send(store, tmp_path / "a", "m")[0].state == "published"


def test_a_partitioned_model_goes_with_its_runtimes(store: VersionStore, tmp_path: Path) -> None:
    publish_partitioned(tmp_path / "a", "m", [16, 64], version=1)
    publish_partitioned(tmp_path / "a", "m", [16, 64], version=2)
    published = send(store, tmp_path / "a", "m")
    assert [(each.model, each.version) for each in published] == [("m_len16", 2), ("m_len64", 2), ("m", 2)]
    assert roots(store) == ["m"]
    get(store, tmp_path / "b", "m")
    expected = {path: each for path, each in contents(tmp_path / "a").items() if "/1" not in path}
    assert contents(tmp_path / "b") == expected


def test_the_config_of_a_runtime_follows_and_that_of_a_model_stays(store: VersionStore, tmp_path: Path) -> None:
    publish_partitioned(tmp_path / "a", "m", [16])
    send(store, tmp_path / "a", "m")
    get(store, tmp_path / "b", "m")
    publish_partitioned(tmp_path / "a", "m", [16], version=2)
    for model in ("m", "m_len16"):
        path = tmp_path / "a" / model / "config.pbtxt"
        path.write_text(f"{path.read_text()}\n# second\n")
    (tmp_path / "b/m/config.pbtxt").write_text("# the operator's\n")
    send(store, tmp_path / "a", "m")
    get(store, tmp_path / "b", "m")
    assert (tmp_path / "b/m/config.pbtxt").read_text() == "# the operator's\n"
    assert (tmp_path / "b/m_len16/config.pbtxt").read_text().endswith("# second\n")
    (tmp_path / "b/m/config.pbtxt").unlink()
    get(store, tmp_path / "b", "m")
    assert (tmp_path / "b/m/config.pbtxt").read_text().endswith("# second\n")
    # An older version that is fetched later does not bring its config back.
    fetch(store, tmp_path / "b", "m", 1, quiet)
    assert (tmp_path / "b/m_len16/config.pbtxt").read_text().endswith("# second\n")


def _add_task(repository: Path, model: str, name: str) -> None:
    folder = repository / model / "tasks" / name
    folder.mkdir(parents=True)
    (folder / "task.json").write_text("{}")
    (folder / "task.safetensors").write_bytes(b"\1\2\3")


def _cascade(repository: Path) -> None:
    """The cascade `c`: the model `c_l0` in version 1, and the task `mood` of the newest version of `encoder`."""
    write_cascade(repository / "c", cascades())
    path = repository / "c" / str(VERSION) / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["levels"][1] |= {"model": "encoder", "task": "mood", "version": 1}
    path.write_text(TabiManifest.model_validate(manifest).model_dump_json())
    cpu = device.cpu().model_dump()
    for model, versions in (("c_l0", (1, 2)), ("encoder", (1, 5))):
        for version in versions:
            publish_front(repository, model, version, [16], device=cpu)
    _add_task(repository, "encoder", "mood")
    _add_task(repository, "encoder", "other")


def test_a_cascade_goes_with_its_levels_and_tasks(store: VersionStore, tmp_path: Path) -> None:
    _cascade(tmp_path / "a")
    assert [(each.model, each.version) for each in send(store, tmp_path / "a", "c")] == [
        ("c_l0", 1), ("encoder", 5), ("c", VERSION),
    ]  # fmt: skip
    get(store, tmp_path / "b", "c")
    left_out = ("c_l0/2", "encoder/1", "encoder/tasks/other")
    expected = {path: each for path, each in contents(tmp_path / "a").items() if not path.startswith(left_out)}
    assert contents(tmp_path / "b") == expected


def test_another_task_with_the_name_is_kept_and_reported(tmp_path: Path) -> None:
    store = memory_store()
    _cascade(tmp_path / "a")
    send(store, tmp_path / "a", "c")
    publish_front(tmp_path / "b", "encoder", 5, [16], device=device.cpu().model_dump())
    _add_task(tmp_path / "b", "encoder", "mood")
    (tmp_path / "b/encoder/tasks/mood/task.safetensors").write_bytes(b"other")
    before = contents(tmp_path / "b")
    with pytest.raises(InvalidArgument, match=r"task 'mood' of .* differs .*tidal tasks remove encoder"):
        get(store, tmp_path / "b", "c")
    assert contents(tmp_path / "b") == before


def test_an_ensemble_goes_with_its_steps(store: VersionStore, tmp_path: Path) -> None:
    add_plain(tmp_path / "a", "step", 3)
    add_ensemble(tmp_path / "a", "both", "step")
    send(store, tmp_path / "a", "both")
    get(store, tmp_path / "b", "both")
    assert contents(tmp_path / "b") == contents(tmp_path / "a")


def test_what_is_required_and_missing_is_named(tmp_path: Path) -> None:
    store = memory_store()
    publish_partitioned(tmp_path, "m", [16, 64])
    (tmp_path / "m_len64" / "1").rename(tmp_path / "moved")
    with pytest.raises(InvalidArgument, match="requires version 1 of 'm_len64', which is not in"):
        send(store, tmp_path, "m")
    with pytest.raises(NotFound, match="no version of 'mm': did you mean 'm'"):
        send(store, tmp_path, "mm")
    with pytest.raises(NotFound, match="no version 7 of 'm'; its versions are 1"):
        publish(store, tmp_path, [("m", 7)], quiet)
    assert store.models() == []


def test_a_damaged_version_is_not_published(tmp_path: Path) -> None:
    write_cascade(tmp_path / "c", cascades())
    for index in range(2):
        publish_front(tmp_path, f"c_l{index}", index + 1, [16])
    tokenizer = next((tmp_path / "c" / str(VERSION) / "tokenizers").iterdir())
    tokenizer.write_text("damaged")
    store = memory_store()
    with pytest.raises(InvalidArgument, match=f"{tokenizer} differs from what was published"):
        send(store, tmp_path, "c")
    assert store.models() == []


@pytest.mark.parametrize(
    ("make", "kind"),
    [(lambda path: path.symlink_to("/etc"), "a link"), (os.mkfifo, "neither a file nor a folder")],
)
def test_a_link_is_not_published(tmp_path: Path, make: Callable[[Path], None], kind: str) -> None:
    make(add_plain(tmp_path, "m") / "weights" / "x")
    with pytest.raises(InvalidArgument, match=f"weights/x is {kind}"):
        send(memory_store(), tmp_path, "m")


def test_another_version_with_the_number_is_kept(store: VersionStore, tmp_path: Path) -> None:
    add_plain(tmp_path / "a", "m", text="a")
    send(store, tmp_path / "a", "m")
    add_plain(tmp_path / "b", "m", text="b")
    before = contents(tmp_path / "b")
    with pytest.raises(InvalidArgument, match=r"m/1 differs from version 1 of model 'm' in the store: 'model\.py'"):
        get(store, tmp_path / "b", "m")
    assert contents(tmp_path / "b") == before


def test_a_version_for_another_device_is_refused(tmp_path: Path) -> None:
    store = memory_store()
    own = device.cpu().model_dump()
    publish_front(tmp_path / "a", "m", 1, [16], device={**own, "name": "Other 9"}, libraries={"openvino": "1.0"})
    send(store, tmp_path / "a", "m")
    with pytest.raises(
        InvalidArgument, match=r"device\.name is 'Other 9', this machine has .*; library is openvino 1\.0"
    ):
        get(store, tmp_path / "b", "m")
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize("damage", [b"", b"x" * 2000, None])
def test_a_damaged_content_leaves_the_repository_as_it_was(
    store: VersionStore, tmp_path: Path, damage: bytes | None
) -> None:
    add_plain(tmp_path / "a", "m", 1)
    send(store, tmp_path / "a", "m")
    get(store, tmp_path / "b", "m")
    before = contents(tmp_path / "b")
    (tmp_path / "a/m/1").rename(tmp_path / "a/m/2")
    (tmp_path / "a/m/2/weights/shared").write_bytes(b"y" * 2000)
    send(store, tmp_path / "a", "m")
    new = store.read("m", 2)
    (file,) = (each for each in new.files if each.path == "weights/shared")
    path = store._at(store._blob(file))
    if damage is None:
        store._files.rm(path)
    else:
        store._files.pipe_file(path, damage)
    expected = "is missing" if damage is None else "differs from what was published"
    with pytest.raises(InvalidArgument, match=f"file 'weights/shared' of version 2 of model 'm' {expected}"):
        get(store, tmp_path / "b", "m")
    assert contents(tmp_path / "b") == before
    # Where it is missing or incomplete, publishing again restores it.
    if damage != b"x" * 2000:
        send(store, tmp_path / "a", "m")
        get(store, tmp_path / "b", "m")
        assert contents(tmp_path / "b/m/2") == contents(tmp_path / "a/m/2")


def test_too_little_space_is_reported_before_anything_is_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = memory_store()
    add_plain(tmp_path / "a", "m")
    send(store, tmp_path / "a", "m")
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=7))
    with pytest.raises(Unavailable, match="has 7 bytes free, and 2"):
        get(store, tmp_path / "b", "m")


_NAMES = st.text(st.sampled_from("ab.é_- ~0"), min_size=1, max_size=4).filter(lambda name: name not in (".", ".."))
_FILES = st.tuples(st.binary(max_size=20), st.sampled_from([0o644, 0o755, 0o600, 0o444, 0o640]))
_FOLDERS = st.recursive(
    st.dictionaries(_NAMES, _FILES, max_size=3),
    lambda inner: st.dictionaries(_NAMES, st.one_of(_FILES, inner), max_size=3),
    max_leaves=8,
)


def _write(folder: Path, tree: dict[str, object]) -> None:
    folder.mkdir(parents=True)
    for name, each in tree.items():
        if isinstance(each, dict):
            _write(folder / name, each)
        else:
            content, mode = each  # type: ignore[misc]
            (folder / name).write_bytes(content)
            (folder / name).chmod(mode)


@settings(max_examples=40)
@given(_FOLDERS, _FOLDERS, st.booleans())
def test_any_layout_arrives_as_it_was(first: dict[str, object], second: dict[str, object], memory: bool) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        store = memory_store() if memory else open_store(name + "/store")
        for version, tree in ((1, first), (12, second)):
            _write(folder / "a" / "m" / str(version), tree)
            send(store, folder / "a", "m")
        (folder / "a/m/config.pbtxt").write_text("")
        for version in store.versions("m"):
            get(store, folder / "b", "m", version)
        a, b = contents(folder / "a"), contents(folder / "b")
        a.pop("m/config.pbtxt")  # written after the versions were published
        assert a == b
