"""The command line of a tritonserver that serves a Tidal repository."""

from __future__ import annotations

import os
import re
import secrets
import shlex
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tidal.catalog.graph import ModelGraph
from tidal.errors import InvalidArgument, NotFound, did_you_mean
from tidal.repository.entries import ModelEntry
from tidal.server.control import ADMIN_APIS, ADMIN_HEADER, ServerControl
from tidal.server.endpoints import Endpoints
from tidal.server.extra_options import grpc_tls
from tidal.server.installation import TritonInstallation
from tidal.server.protection import Protection
from tidal.server.traces import Traces

# Threads on which calls of a Python model to other models wait and its responses are sent: with the default of 32, a
# model with as many calls in flight cannot respond. A cascade has up to 24, and crashed processes may occupy 32 more.
_THREADS = 64

# The key is part of an option of Triton in which other characters are separators.
_KEY = re.compile(r"[A-Za-z0-9._~+/-]{8,}")


@dataclass(frozen=True, slots=True)
class Selection:
    """Models of a repository by what a server does with them.

    Attributes:
        served: Models to serve.
        unpublished: Models without a published version.
        incomplete: Ensembles that are not served because a step is not, each with the reason.
    """

    served: tuple[ModelEntry, ...]
    unpublished: tuple[ModelEntry, ...]
    incomplete: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Launch:
    """Everything that a server is started with.

    Attributes:
        installation: Installation of tritonserver.
        repository: Folder of the model repository.
        backend_directory: Folder with Tidal's backends.
        models: Names of the models that the server loads while it starts.
        endpoints: Addresses to listen on.
        shm_prefix: Prefix of its shared-memory files, which no other server uses.
        key: Admin key; None leaves the admin endpoints open.
        exit_timeout_s: Time in seconds for requests in flight at shutdown.
        extra: Further command-line words for tritonserver.
        access_log: Target of the request log, as `tidal.access_log.target.Target` accepts it; None for no log.
        protection: Options and environment that protect it from requests.
        traces: Traces of its requests; None if they are not traced.
    """

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
    traces: Traces | None = None

    def environment(self) -> dict[str, str]:
        """Environment of the process."""
        traced = {} if self.traces is None else self.traces.environment
        return {**self.installation.environment(), **self.protection.environment, **traced}

    def control(self) -> ServerControl:
        """Admin API of the server, once it runs.

        Loads go over HTTP where gRPC accepts TLS connections only: Tidal has neither the names in a certificate nor,
        with mutual TLS, a certificate of its own.
        """
        address = self.endpoints.address
        grpc = None if grpc_tls(self.extra) else address(self.endpoints.grpc)
        return ServerControl(address(self.endpoints.http), self.key, grpc)

    def command(self) -> list[str]:
        """Command line of the process."""
        ports = self.endpoints
        options = [
            *_basic(self.repository, self.backend_directory, self.models),
            # A model that does not load is reported by name; it must not end the server.
            "--exit-on-error=false",
            # Its /v2/health/ready reports that the server accepts requests. Strict, it would stay 400 until the process
            # ends after any version failed to load, even while another version serves. `GET /ready` reports which
            # models answer.
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
        options += [] if self.traces is None else self.traces.options(self.extra)
        return [str(self.installation.binary), *options, *self.extra]


def select_models(graph: ModelGraph, names: Sequence[str]) -> Selection:
    """The models to serve: those named with what they require, else all that have a published version.

    Without names, what was built for one model alone and is no longer required is left out, such as runtimes of an
    earlier version, or levels that a cascade does not call; and so are ensembles without all of their steps.

    Args:
        graph: Relations between the models of the repository.
        names: Names of models; empty for all.

    Raises:
        NotFound: The repository does not exist or has no model, a name is not in it, nothing is published, or a step of
            a named ensemble is not.
        InvalidArgument: Triton cannot start Python models from its path.
    """
    repository = graph.repository
    if repository is None or not repository.is_dir():
        raise NotFound(f"model repository '{repository}' is not a folder: give its path, or make it with tidal build")
    if not graph.models:
        raise NotFound(f"model repository '{repository}' has no model: publish one with tidal build")
    for name in names:
        if name not in graph.models:
            raise NotFound(f"model '{name}' is not in {repository}: {did_you_mean(name, graph.models)}")
        if not graph.versions(name) and not graph.steps(name):
            raise NotFound(f"model '{name}' has no published version: {build_command(graph.entry(name))}")
    published = {name for name in graph.models if graph.versions(name)}
    required = graph.load_order(names)
    for name in required:
        if why := _lacking(graph, name, published):
            unbuilt = [each for each in graph.steps(name) if each in set(graph.models) - published]
            commands = ", ".join(build_command(graph.entry(each)) for each in unbuilt)
            raise NotFound(f"ensemble '{name}' {why}" + (f": run {commands}" if unbuilt else ""))
    for name in graph.models:
        check_path(graph.entry(name).folder)
    chosen = published.intersection(required) if names else published - graph.superseded()
    incomplete = {} if names else _incomplete(graph, chosen)
    chosen -= incomplete.keys()
    if not chosen:
        commands = ", ".join(build_command(graph.entry(name)) for name in graph.models if name not in incomplete)
        raise NotFound(f"no model in {repository} has a published version: run {commands}")
    return Selection(
        served=tuple(graph.entry(name) for name in graph.models if name in chosen),
        unpublished=tuple(graph.entry(name) for name in graph.models if name not in {*published, *incomplete}),
        incomplete=tuple(incomplete.items()),
    )


def _incomplete(graph: ModelGraph, served: Collection[str]) -> dict[str, str]:
    """Ensembles without all of their steps among these models, or among those left without such ensembles."""
    found: dict[str, str] = {}
    while True:
        left = set(served).difference(found)
        more = {name: why for name in graph.models if name not in found and (why := _lacking(graph, name, left))}
        if not more:
            return found
        found |= more


def _lacking(graph: ModelGraph, model: str, served: Collection[str]) -> str | None:
    """Why an ensemble cannot be served beside these models, as the end of a sentence; None where it can."""
    if not graph.steps(model):
        return None
    if not graph.versions(model):
        return f"has no version folder; create one: mkdir {graph.entry(model).folder / '1'}"
    missing = [f"'{step}'" for step in graph.steps(model) if step not in served]
    if not missing:
        return None
    return f"requires {' and '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} not served"


def check_path(path: Path) -> None:
    """Check that a path needs no quotes: Triton starts a Python model by a shell command without any.

    Raises:
        InvalidArgument: A shell would interpret the path.
    """
    absolute = str(path.resolve())
    if shlex.quote(absolute) != absolute:
        raise InvalidArgument(
            f"Triton cannot start Python models from '{absolute}': use a path of letters, digits and @%_+=:,./- only"
        )


def build_command(entry: ModelEntry) -> str:
    """The command that publishes a model, with its spec where the model's folder has one."""
    specs = sorted((*entry.folder.glob("*.yaml"), *entry.folder.glob("*.yml")))
    return f"tidal build {specs[0] if specs else 'SPEC.yaml'}"


def check_key(key: str | None) -> str:
    """The admin key to use: the given one, else a new one.

    Raises:
        InvalidArgument: The key is too short, or has characters that Triton's option does not accept.
    """
    if key is None:
        return secrets.token_urlsafe(24)
    if not _KEY.fullmatch(key):
        raise InvalidArgument(
            "TIDAL_ADMIN_KEY is not valid: it must have at least 8 characters out of A-Z a-z 0-9 . _ ~ + / -"
        )
    return key


def stock_command(
    installation: TritonInstallation, repository: Path, backends: Path, models: Sequence[str], protected: Protection
) -> str:
    """Shell command that serves the repository with tritonserver alone, in the environment of `tidal serve`."""
    paths = installation.search_paths()
    words = [str(installation.binary), *_basic(repository.resolve(), backends.resolve(), models), *protected.options]
    # Without the guard only the stack limit can be raised, which requires a shell.
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
