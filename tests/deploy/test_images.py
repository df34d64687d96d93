"""The images: copied files exist, commands are those of the code, and containers run without privileges."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path

import pytest
from dockerfile_parse import DockerfileParser

from tests.deploy.project import ROOT, accepts, pyproject
from tidal.commands.serve import STATUS_PORT
from tidal.server.releases import RELEASES, SECURE_SINCE, VULNERABILITIES, known_vulnerabilities


@dataclass
class Stage:
    """A stage of the Dockerfile."""

    name: str
    base: str
    steps: list[tuple[str, str]] = field(default_factory=list)

    def last(self, instruction: str) -> str:
        return [value for name, value in self.steps if name == instruction][-1]


@pytest.fixture(scope="module")
def parsed(tmp_path_factory: pytest.TempPathFactory) -> DockerfileParser:
    # The parser wants to own the folder of its file.
    folder = tmp_path_factory.mktemp("image")
    (folder / "Dockerfile").write_text((ROOT / "Dockerfile").read_text())
    return DockerfileParser(str(folder))


@pytest.fixture(scope="module")
def stages(parsed: DockerfileParser) -> dict[str, Stage]:
    found: dict[str, Stage] = {}
    for step in parsed.structure:
        name, value = step["instruction"], step["value"]
        if name == "FROM":
            base, _, stage = value.partition(" AS ")
            found[stage] = Stage(stage, base)
        elif found and name != "COMMENT":
            list(found.values())[-1].steps.append((name, value))
    return found


def made_by(stages: dict[str, Stage], name: str) -> str:
    """All steps that lead to a stage, as text."""
    text = ""
    while name in stages:
        text, name = "\n".join(value for _, value in stages[name].steps) + text, stages[name].base
    return text


def sent(path: Path) -> bool:
    """Whether .dockerignore lets a file go to the build: the last pattern that fits decides."""
    name, kept = path.relative_to(ROOT).as_posix(), True
    for pattern in (ROOT / ".dockerignore").read_text().splitlines():
        if not pattern or pattern.startswith("#"):
            continue
        bare = pattern.removeprefix("!").removeprefix("**/")
        deep = "**/" in pattern
        parts = name.split("/")
        prefixes = ["/".join(parts[:n]) for n in range(1, len(parts) + 1)]
        if any(
            fnmatch(each.rpartition("/")[2] if deep else each, bare)
            and (deep or each.count("/") == bare.count("/") or bare == "*")
            for each in prefixes
        ):
            kept = pattern.startswith("!")
    return kept


def test_the_only_foreign_base_image_is_tritonserver(stages: dict[str, Stage]) -> None:
    foreign = {stage.base for stage in stages.values() if stage.base not in stages}
    assert foreign == {"nvcr.io/nvidia/tritonserver:${TRITON_RELEASE}-py3"}


def test_copied_files_exist(stages: dict[str, Stage]) -> None:
    before: set[str] = set()
    for stage in stages.values():
        for name, value in stage.steps:
            if name != "COPY":
                continue
            options, paths = (
                [w for w in value.split() if w.startswith("--")],
                [w for w in value.split() if not w.startswith("--")],
            )
            origin = next((option.partition("=")[2] for option in options if option.startswith("--from=")), None)
            for source in paths[:-1]:
                if origin is not None:
                    assert origin in before, f"{origin} comes later than {stage.name}"
                    assert source in made_by(stages, origin), f"{origin} makes no {source}"
                else:
                    here = ROOT / source
                    files = (
                        [here]
                        if here.is_file()
                        else [
                            p for p in here.rglob("*") if p.is_file() and p.suffix in (".py", ".cpp", ".pbtxt", ".yaml")
                        ]
                    )
                    assert files, f"{source} is not there"
                    assert any(map(sent, files)), f".dockerignore keeps {source} back"
        before.add(stage.name)


def test_nothing_else_is_sent_to_the_build() -> None:
    for name in (
        ".git/HEAD",
        "tests/conftest.py",
        "backends/batcher/build/tidal_batcher.so",
        "deploy/prometheus/alerts.yml",
        ".venv/bin/python",
        "model_repository/intents/2/manifest.json",
        "demo/__pycache__/x.pyc",
    ):
        assert not sent(ROOT / name), name
    for name in (
        "backends/tidal/py.typed",
        "backends/native/vectors.hpp",
        "backends/pets/native/kernels.cpp",
        "model_repository/intents/config.pbtxt",
        "demo/tasks.yaml",
    ):
        assert sent(ROOT / name), name


@pytest.mark.parametrize("target", ["serve", "builder"])
def test_images_run_without_rights(stages: dict[str, Stage], target: str) -> None:
    assert stages[target].last("USER") == "1000:1000"
    owned = re.findall(r"chown -R 1000:1000 (.*)", made_by(stages, target))[0].split()
    assert {"/srv/models", "/run/tidal", "/var/lib/tidal"} <= set(owned)
    assert list(stages)[-1] == "serve", "`docker build .` makes the last one"


def test_the_image_serves(stages: dict[str, Stage]) -> None:
    serve = stages["serve"]
    assert json.loads(serve.last("ENTRYPOINT"))[-1] == "tidal"
    assert "tidal" in pyproject()["scripts"]
    called = accepts(json.loads(serve.last("CMD")))
    assert called["host"] == "0.0.0.0"
    ports = [*(called[name] for name in ("http_port", "grpc_port", "metrics_port")), STATUS_PORT]
    assert serve.last("EXPOSE").split() == [str(port) for port in ports]
    assert f"http://127.0.0.1:{STATUS_PORT}/ready" in serve.last("HEALTHCHECK")
    assert ("RUN", "tidal doctor --image") in serve.steps
    assert accepts(["doctor", "--image"]) == {"as_json": False, "image": True}


def test_the_builder_builds(stages: dict[str, Stage]) -> None:
    command = json.loads(stages["builder"].last("CMD"))
    assert command == ["tidal", "build", "--help"]


def test_nothing_is_downloaded_at_start(stages: dict[str, Stage]) -> None:
    assert "HF_HUB_OFFLINE=1" in stages["runtime"].last("ENV")
    for target in ("serve", "builder"):
        started = stages[target].last("ENTRYPOINT") + stages[target].last("CMD")
        assert not re.search(r"pip|apt|wget|git|curl", started)
        assert not [value for name, value in stages[target].steps if name == "RUN" and re.search(r"pip |apt", value)]


def test_installed_packages_are_pinned(parsed: DockerfileParser, stages: dict[str, Stage]) -> None:
    (named,) = re.findall(r"^ARG EXTRAS=(\S+)", parsed.content, re.MULTILINE)
    extras = [*named.split(","), "build", "tensorrt"]
    assert set(extras) <= set(pyproject()["optional-dependencies"])
    installs = [
        line for line in re.split(r"&&|\n(?=[A-Z]+ )", parsed.content) if "/opt/tidal/bin/python -m pip install" in line
    ]
    assert len(installs) == 5
    assert all("--constraint constraints.txt" in line for line in installs)


def test_the_image_is_of_a_release_without_known_vulnerabilities(parsed: DockerfileParser) -> None:
    (named,) = re.findall(r"^ARG TRITON_RELEASE=(\S+)$", parsed.content, re.MULTILINE)
    (release,) = (each for each in RELEASES if each.name == named)
    assert named >= SECURE_SINCE
    assert known_vulnerabilities(release.version) == ()
    # The server's stub is made for the image's Python, so the virtual environment must be of that one.
    assert 'uv venv --seed --python "$(command -v python3)" /opt/tidal' in parsed.content
    (least,) = re.findall(r">=(\d+)\.(\d+)", pyproject()["requires-python"])
    assert tuple(map(int, release.python.split("."))) >= tuple(map(int, least))


def test_the_documented_releases_are_those_of_the_code(parsed: DockerfileParser) -> None:
    page = (ROOT / "docs" / "reference" / "triton-releases.md").read_text()
    rows = {row[0]: row for row in re.findall(r"^\| (\d\d\.\d\d) \| (\S+) \| (\S+) \| (.*?) \| (.*?) \|$", page, re.M)}
    assert set(rows) == {release.name for release in RELEASES}
    for release in RELEASES:
        _, version, python, tensorrt, executed = rows[release.name]
        assert (version, python) == (release.version, release.python)
        assert tensorrt == (release.tensorrt or "not documented")
        assert executed.startswith("yes" if release.executed else "no")
    for each in VULNERABILITIES:
        assert all(name in page for name in each.names) or each.protection == "", each.names


def test_an_image_of_an_older_release_is_guarded(stages: dict[str, Stage]) -> None:
    """`tidal serve` is what starts the server in every file of deployment, so it is what protects it."""
    assert "tidal.http_guard.build" in compiled_by_a_wheel()
    assert json.loads(stages["serve"].last("ENTRYPOINT"))[-1] == "tidal"
    assert json.loads(stages["serve"].last("CMD"))[0] == "serve"


def test_the_image_compiles_the_same_native_parts_as_a_checkout() -> None:
    """The image installs the checkout as a wheel, whose build compiles."""
    made = set(re.findall(r"python -m (tidal\S*\.build)\b", (ROOT / "Makefile").read_text()))
    assert compiled_by_a_wheel() == made


def test_the_image_copies_the_build_backend_before_it_installs(parsed: DockerfileParser) -> None:
    before_install = parsed.content.partition('".[${EXTRAS}]"')[0]
    assert "COPY buildtools buildtools" in before_install
    assert "setup.py" in before_install
    assert all(sent(ROOT / name) for name in ("setup.py", "buildtools/native_wheel.py"))


def compiled_by_a_wheel() -> set[str]:
    text = (ROOT / "buildtools" / "native_wheel.py").read_text()
    return set(re.findall(r'"(tidal\S*\.build)"', text))
