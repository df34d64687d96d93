"""The command line of a tritonserver that serves a Tidal repository."""

from __future__ import annotations

import os
import re
import secrets
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tidal.errors import InvalidArgument, NotFound, did_you_mean
from tidal.repository.cascades import cascades
from tidal.repository.ensembles import Ensemble, ensembles, lacking, with_steps
from tidal.repository.entries import ModelEntry, model_entries
from tidal.repository.partitioned import family, front_of
from tidal.server.control import ADMIN_APIS, ADMIN_HEADER, ServerControl
from tidal.server.endpoints import Endpoints
from tidal.server.extra_options import grpc_tls
from tidal.server.installation import TritonInstallation
from tidal.server.protection import Protection

# tritonserver gives each Python model threads on which its calls to other models wait and its answers go out: with the
# usual 32, a model with as many calls in flight cannot answer. A cascade has up to 24, and 32 more may be lost to
# processes that died.
_THREADS = 64

# Triton reads the key from inside an option where other characters are separators.
_KEY = re.compile(r"[A-Za-z0-9._~+/-]{8,}")


@dataclass(frozen=True, slots=True)
class Selection:
    """The models of a repository: those to serve, those that nothing is published of, and ensembles that lack a step,
    each with the reason."""

    served: tuple[ModelEntry, ...]
    unpublished: tuple[ModelEntry, ...]
    incomplete: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Launch:
    """Everything that a server is started with; `access_log` is what `tidal.access_log.target.Target` takes."""

    installation: TritonInstallation
    repository: Path
    backend_directory: Path
    models: tuple[str, ...]
    endpoints: Endpoints
    shm_prefix: str
    key: str | None
    exit_timeout_s: int
    extra: tuple[str, ...] = ()
    access_log: str | None = None
    protection: Protection = field(default_factory=Protection)

    def environment(self) -> dict[str, str]:
        """Environment of the process."""
        return {**self.installation.environment(), **self.protection.environment}

    def control(self) -> ServerControl:
        """The admin side of the server, once it runs.

        Loads go over HTTP where gRPC takes TLS connections only: Tidal has neither the names in a certificate nor, with
        mutual TLS, a certificate of its own.
        """
        address = self.endpoints.address
        grpc = None if grpc_tls(self.extra) else address(self.endpoints.grpc)
        return ServerControl(address(self.endpoints.http), self.key, grpc)

    def command(self) -> list[str]:
        """Arguments of the process, the binary first."""
        ports = self.endpoints
        options = [
            *_basic(self.repository, self.backend_directory, self.models),
            # A model that does not load is reported by name, not by the server's exit.
            "--exit-on-error=false",
            # Its /v2/health/ready says that the server accepts requests. Strict, it would stay 400 until the process
            # ends after any version failed to load, also while another version serves. `GET /ready` says which models
            # answer.
            "--strict-readiness=false",
            f"--exit-timeout-secs={self.exit_timeout_s}",
            f"--http-address={ports.host}",
            f"--http-port={ports.http}",
            f"--grpc-address={ports.host}",
            f"--grpc-port={ports.grpc}",
            f"--metrics-address={ports.host}",
            f"--metrics-port={ports.metrics}",
            f"--backend-config=python,shm-region-prefix-name={self.shm_prefix}",
        ]
        if self.key is not None:
            rule = f"{','.join(ADMIN_APIS)}:{ADMIN_HEADER}={self.key}"
            options += [f"--http-restricted-api={rule}", f"--grpc-restricted-protocol={rule}"]
        options += self.protection.options
        return [str(self.installation.binary), *options, *self.extra]


def select_models(repository: Path, names: Sequence[str]) -> Selection:
    """The models to serve: those named, else all that have a published version.

    A partitioned model comes with its runtimes, and without those that only an earlier version of it has.
    One that is partitioned no more comes without any. A cascade comes with the models of the levels that it asks;
    models that were built for its other levels alone come only where they are named. An ensemble comes with the
    models of its steps where it is named, else where they are served anyway.

    Raises:
        NotFound: the repository is missing or has no model, a name is not in it, nothing is published, or a step of
            a named ensemble is not.
        InvalidArgument: Triton cannot start Python models from its path.
    """
    if not repository.is_dir():
        raise NotFound(f"model repository '{repository}' is not a folder: give its path, or make it with tidal build")
    entries = {entry.name: entry for entry in model_entries(repository)}
    if not entries:
        raise NotFound(f"model repository '{repository}' has no model: publish one with tidal build")
    joint = ensembles(repository)
    for name in names:
        if name not in entries:
            raise NotFound(f"model '{name}' is not in {repository}: {did_you_mean(name, entries)}")
        if not entries[name].versions() and name not in {each.name for each in joint}:
            raise NotFound(f"model '{name}' has no published version: {build_command(entries[name])}")
    names = with_steps(names, joint)
    published = {name for name, entry in entries.items() if entry.versions()}
    for each in joint:
        if each.name in names and (why := lacking(repository, each, published)):
            unbuilt = [build_command(entries[step]) for step in each.steps if step in entries.keys() - published]
            raise NotFound(f"ensemble '{each.name}' {why}" + (f": run {', '.join(unbuilt)}" if unbuilt else ""))
    for entry in entries.values():
        check_path(entry.folder)
    asking = cascades(repository)
    implied = (level for each in asking if each.name in names for level in each.levels)
    wanted = [*names, *(level for level in implied if level in entries and entries[level].versions())]
    unasked = {level for each in asking for level in each.own} - {level for each in asking for level in each.levels}
    chosen = [
        entry
        for name, entry in entries.items()
        if name in names or (name not in unasked and _chosen(repository, entry, wanted))
    ]
    incomplete = {} if names else _incomplete(repository, joint, {entry.name for entry in chosen})
    served = tuple(entry for entry in chosen if entry.name not in incomplete)
    if not served:
        commands = ", ".join(build_command(entry) for name, entry in entries.items() if name not in incomplete)
        raise NotFound(f"no model in {repository} has a published version: run {commands}")
    unpublished = (entry for name, entry in entries.items() if name not in published and name not in incomplete)
    return Selection(served, tuple(unpublished), tuple(incomplete.items()))


def _incomplete(repository: Path, joint: Sequence[Ensemble], served: set[str]) -> dict[str, str]:
    """Ensembles that lack a step among these models, or among what is left of them without such, with the reason."""
    found: dict[str, str] = {}
    while True:
        left = served.difference(found)
        more = {each.name: why for each in joint if each.name not in found if (why := lacking(repository, each, left))}
        if not more:
            return found
        found |= more


def _chosen(repository: Path, entry: ModelEntry, names: Sequence[str]) -> bool:
    if not names and not entry.versions():
        return False
    kin = family(repository, entry.name)
    if kin is None and (front := front_of(repository, entry.name)) is not None:
        # A runtime of a front that is partitioned no more serves nobody.
        return entry.name in names or not (names or ModelEntry(repository / front).versions())
    if kin is None or kin.front == entry.name:
        return entry.name in names or not names
    runs = entry.name in kin.runtime_models.values()
    return entry.name in names or (runs and (kin.front in names or not names))


def check_path(path: Path) -> None:
    """Triton starts a Python model by a shell command in which it does not quote the paths.

    Raises:
        InvalidArgument: a shell would not take the path as it is.
    """
    absolute = str(path.resolve())
    if shlex.quote(absolute) != absolute:
        raise InvalidArgument(
            f"Triton cannot start Python models from '{absolute}': use a path of letters, digits and @%_+=:,./- only"
        )


def build_command(entry: ModelEntry) -> str:
    """The command that publishes a model, with its spec where one lies in the model's folder."""
    specs = sorted((*entry.folder.glob("*.yaml"), *entry.folder.glob("*.yml")))
    return f"tidal build {specs[0] if specs else 'SPEC.yaml'}"


def check_key(key: str | None) -> str:
    """The admin key to use: the given one, else a new one.

    Raises:
        InvalidArgument: the key is too short or has characters that Triton's option cannot carry.
    """
    if key is None:
        return secrets.token_urlsafe(24)
    if not _KEY.fullmatch(key):
        raise InvalidArgument("TIDAL_ADMIN_KEY must be at least 8 characters out of A-Z a-z 0-9 . _ ~ + / -")
    return key


def stock_command(
    installation: TritonInstallation, repository: Path, backends: Path, models: Sequence[str], protected: Protection
) -> str:
    """Shell command that serves the repository with tritonserver alone, as `tidal serve` would find it."""
    paths = installation.search_paths()
    words = [str(installation.binary), *_basic(repository.resolve(), backends.resolve(), models), *protected.options]
    # Without the guard only the stack limit can be raised, which takes a shell of its own.
    shell = f'sh -c \'ulimit -Ss {protected.stack_bytes >> 10} && exec "$0" "$@"\'' if protected.stack_bytes else ""
    lines = [
        "env -u PYTHONHOME",
        *(f'{name}={shlex.quote(os.pathsep.join(folders))}"${{{name}:+:${name}}}"' for name, folders in paths.items()),
        *(f"{name}={shlex.quote(value)}" for name, value in protected.environment.items()),
        *([shell] if shell else []),
        *map(shlex.quote, words),
    ]
    return " \\\n  ".join(lines)


def _basic(repository: Path, backends: Path, models: Sequence[str]) -> list[str]:
    return [
        f"--model-repository={repository}",
        f"--backend-directory={backends}",
        "--model-control-mode=explicit",
        f"--backend-config=python,thread-pool-size={_THREADS}",
        *(f"--load-model={name}" for name in models),
    ]
