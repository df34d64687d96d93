"""Records of the cluster's processes that this user started on this machine: `<state folder>/cluster/<name>.json`."""

from __future__ import annotations

import os
import shutil
import signal
import time
from pathlib import Path

import psutil
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tidal.errors import TidalError, Unavailable
from tidal.server.cleanup import clean_up
from tidal.server.state import state_folder
from tidal_client.local_servers import is_alive, process_started

HEAD = "head"
_END_S = 20.0
# Some processes of Ray ignore the signal once their parent has ended.
_ORPHANS_END_S = 3.0


class StartedProcess(BaseModel):
    """A process in a session of its own."""

    model_config = ConfigDict(frozen=True)

    pid: int
    started: float = Field(description="start time, which distinguishes it from a later process with the same id")

    @classmethod
    def of(cls, pid: int) -> StartedProcess:
        """Return the running process with an id.

        Raises:
            Unavailable: It has ended.
        """
        started = process_started(pid)
        if started is None:
            raise Unavailable(f"process {pid} has ended")
        return cls(pid=pid, started=started)

    def alive(self) -> bool:
        """Whether it runs; a process that has ended but was not waited for does not."""
        try:
            return is_alive(self.pid, self.started) and psutil.Process(self.pid).status() != psutil.STATUS_ZOMBIE
        except psutil.Error:
            return False

    def end(self, seconds: float = _END_S) -> None:
        """End it with all processes of its session: by SIGTERM, those that are left after a while by SIGKILL."""
        session = self._session()
        if self.alive():
            os.kill(self.pid, signal.SIGTERM)
        else:
            seconds = min(seconds, _ORPHANS_END_S)
            for process in session:
                process.terminate()
        until = time.monotonic() + seconds
        while time.monotonic() < until and any(map(_runs, session)):
            time.sleep(0.05)
        for process in session:
            if _runs(process):
                process.kill()

    def _session(self) -> list[psutil.Process]:
        """Return the processes of its session, also after it has ended itself.

        An id is not used again while it is that of a session: if another process has it, the session is empty.
        """
        if process_started(self.pid) is not None and not is_alive(self.pid, self.started):
            return []
        found = []
        for process in psutil.process_iter():
            try:
                if os.getsid(process.pid) == self.pid:
                    found.append(process)
            except OSError:
                continue
        return found


class ClusterRecord(BaseModel):
    """The head of a cluster, or a node of one, on this machine."""

    model_config = ConfigDict(frozen=True)

    name: str = Field(description="name of the node; `head` for the head")
    address: str = Field(description="host:port of the head")
    host: str = Field(description="address of this machine for the other nodes")
    token: Path | None = Field(description="file with the cluster's secret; None for a cluster without one")
    keep_token: bool = Field(False, description="whether the operator gave that file: it is never removed")
    ray: StartedProcess = Field(description="the process that holds Ray's processes of the node")
    folder: Path = Field(description="folder of Ray's temporary files and logs")
    serve: StartedProcess | None = Field(None, description="`tidal serve` that was started for the node")
    files: Path | None = Field(None, description="folder with the repository and the state of that server")
    metrics: str = Field("", description="host:port of the metrics of its controller or agent")
    redis: str | None = Field(None, description="host:port of the Redis that has the state of a head")


def records_folder() -> Path:
    """Return the folder of the records, which only its owner can read."""
    folder = state_folder() / "cluster"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def memory_file(node: str) -> Path:
    """Return the file that the agent of a node keeps over its restarts."""
    folder = records_folder() / "memory"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder / f"{node}.json"


def entrances_file(node: str) -> Path:
    """Return the file with the cluster's servers that the agent of a node writes for gateways."""
    folder = records_folder() / "servers"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder / f"{node}.json"


def write_record(record: ClusterRecord) -> None:
    """Write a record."""
    path = records_folder() / f"{record.name}.json"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(record.model_dump_json(indent=1))


def records() -> list[ClusterRecord]:
    """Return all records, the head first; also those whose processes have ended."""
    found = []
    for path in records_folder().glob("*.json"):
        try:
            found.append(ClusterRecord.model_validate_json(path.read_bytes()))
        except (OSError, ValidationError):
            path.unlink(missing_ok=True)
    return sorted(found, key=lambda record: (record.name != HEAD, record.name))


def end_record(record: ClusterRecord) -> None:
    """End the processes of a record, its server first so that it answers what it accepted, and remove its files."""
    if record.serve is not None:
        record.serve.end(60.0)
        if process_started(record.serve.pid) is None or is_alive(record.serve.pid, record.serve.started):
            # What is left where the guardian of the server was killed too. Another process may have the id by now.
            clean_up(f"tidal_{record.serve.pid}_")
    record.ray.end()
    for folder in filter(None, (record.folder, record.files)):
        shutil.rmtree(folder, ignore_errors=True)
    if record.name != HEAD:
        memory_file(record.name).unlink(missing_ok=True)
        entrances_file(record.name).unlink(missing_ok=True)
    elif record.token is not None and not record.keep_token:
        record.token.unlink(missing_ok=True)
    (records_folder() / f"{record.name}.json").unlink(missing_ok=True)


def this_cluster() -> ClusterRecord:
    """Return the record by which this machine reaches its cluster.

    Raises:
        Unavailable: This machine is in no cluster.
    """
    known = records()
    for record in known:
        if record.ray.alive():
            return record
    if known:
        raise Unavailable(
            f"Ray's processes of '{known[0].name}' have ended, see {known[0].folder}: remove what they left with tidal "
            f"cluster stop, then join again; servers go on answering"
        )
    raise Unavailable("this machine is in no cluster: run tidal cluster start, join or up first")


def check_absent(name: str) -> None:
    """Check that no process of this name runs on this machine; remove the record of one that has ended.

    Raises:
        Unavailable: One runs.
    """
    for record in records():
        if record.name == name:
            if record.ray.alive() or (record.serve is not None and record.serve.alive()):
                raise Unavailable(f"'{name}' runs on this machine already: end it first with tidal cluster stop")
            try:
                end_record(record)
            except TidalError:
                continue


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
