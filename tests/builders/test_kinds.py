"""The registry of buildable kinds: a new kind is one entry, and `tidal build` supports it fully."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.builders.toy_kind import CONFIG
from tests.tabi.builders.command import tidal_build
from tidal.catalog.manifests import MANIFESTS
from tidal.manifest import MANIFEST_FILE
from tidal_builders.kinds import KINDS, BuildableKind
from tidal_builders.report import BuildReport
from tidal_builders.spec import ModelSpec
from tidal_builders.specs import spec_schema

WriteToy = Callable[..., Path]


@pytest.fixture
def write_toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WriteToy:
    monkeypatch.setitem(
        KINDS,
        "toy",
        BuildableKind(
            spec="tests.builders.toy_kind:ToySpec",
            plan="tests.builders.toy_kind:plan_toy",
            build="tests.builders.toy_kind:build_toy",
            report="tests.builders.toy_kind:ToyReport",
        ),
    )
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "text.txt").write_text("hello")

    def write(**fields: object) -> Path:
        path = tmp_path / "toy.yaml"
        path.write_text(yaml.safe_dump({"kind": "toy", "name": "copy", "source": "source", **fields}))
        return path

    return write


@pytest.mark.parametrize("name", KINDS)
def test_every_entry_can_be_imported(name: str) -> None:
    kind = KINDS[name]
    assert issubclass(kind.spec_type, ModelSpec)
    assert kind.spec_type.model_fields["kind"].annotation.__args__ == (name,)
    assert isinstance(kind.make_report(name="m", outcome="stale"), BuildReport)
    assert callable(kind.load("plan"))
    assert callable(kind.load("build"))


def test_servers_read_the_manifest_of_every_kind() -> None:
    # `engine` is what the build of a partitioned `arlo` model publishes for each of its runtimes.
    assert set(MANIFESTS) == {*KINDS, "engine"}
    for name, manifest in MANIFESTS.items():
        assert manifest.model_fields["kind"].annotation.__args__ == (name,)  # type: ignore[union-attr]


def test_a_new_kind_is_one_entry(write_toy: WriteToy, tmp_path: Path) -> None:
    repository, spec = tmp_path / "r", write_toy()
    stale = tidal_build(spec, "--repository", repository, "--check")
    assert (stale.code, stale.stdout) == (1, "copy: stale: no version is published\n")
    assert not repository.exists()

    built = tidal_build(spec, "--repository", repository)
    assert built.code == 0, built.stderr
    assert "toy characters" in built.stdout
    assert "version 1 published" in built.stdout
    assert (repository / "copy/1/copy.txt").read_text() == "hello"
    assert (repository / "copy/config.pbtxt").read_text() == CONFIG
    manifest = json.loads((repository / "copy/1" / MANIFEST_FILE).read_text())
    assert (manifest["name"], manifest["spec"], manifest["characters"]) == ("copy", str(spec), 5)
    assert [record["path"] for record in manifest["files"]] == ["copy.txt"]
    assert list((repository / "copy/.build").iterdir()) == [repository / "copy/.build/lock"]

    current = tidal_build(spec, "--repository", repository, "--json")
    assert json.loads(current.stdout)["models"][0]["outcome"] == "current"
    (tmp_path / "source/text.txt").write_text("hello again")
    stale = tidal_build(spec, "--repository", repository, "--check")
    assert (stale.code, stale.stdout) == (1, "copy: stale: source files changed\n")
    assert tidal_build(spec, "--repository", repository).code == 0
    forced = tidal_build(spec, "--repository", repository, "--force")
    assert "version 3 published" in forced.stdout
    assert "(forced)" in forced.stdout.replace("\n", " ")

    missed = tidal_build(write_toy(longest=3), "--repository", repository)
    assert (missed.code, missed.stdout.splitlines()[-1]) == (3, "copy: not published: 11 characters")


def test_a_new_kind_is_in_the_schema_and_in_errors(write_toy: WriteToy, tmp_path: Path) -> None:
    assert any(each["$ref"].endswith("/ToySpec") for each in spec_schema()["oneOf"])
    wrong = tidal_build(write_toy(longst=3), "--repository", tmp_path / "r")
    assert (wrong.code, "unknown field 'longst': did you mean 'longest'" in wrong.stderr) == (2, True)
    wrong = tidal_build(write_toy(kind="toi"), "--repository", tmp_path / "r")
    assert "unknown kind 'toi': did you mean 'toy'" in wrong.stderr
