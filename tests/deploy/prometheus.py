"""A running Prometheus by a committed configuration."""

from __future__ import annotations

import json
import shutil
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.deploy.project import ROOT, documents
from tidal.server.endpoints import choose_port

PROMETHEUS = shutil.which("prometheus")


@dataclass(frozen=True)
class Prometheus:
    """A running Prometheus, by its address."""

    address: str

    def get(self, path: str, **parameters: str) -> Any:
        """What its API answers."""
        url = f"http://{self.address}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=10) as response:
            return json.load(response)["data"]

    def values(self, query: str) -> list[Any]:
        """The series that a query gives now."""
        return list(self.get("query", query=query)["result"])

    def healthy(self) -> bool:
        try:
            return {target["health"] for target in self.get("targets")["activeTargets"]} == {"up"}
        except OSError:
            return False


@contextmanager
def started(folder: Path, name: str, addresses: dict[str, str]) -> Iterator[Prometheus]:
    """Prometheus by the committed files, but for the addresses and for how often it reads; without the gateway.

    Args:
        folder: Folder for its files.
        name: Name of the committed configuration.
        addresses: Address of each target.
    """
    shutil.copytree(ROOT / "deploy" / "prometheus", folder / "config")
    (config,) = documents(f"deploy/prometheus/{name}")
    config["global"]["scrape_interval"] = "1s"
    config["scrape_configs"] = [job for job in config["scrape_configs"] if job["job_name"] != "gateway"]
    for job in config["scrape_configs"]:
        for each in job["static_configs"]:
            each["targets"] = [addresses[target] for target in each["targets"]]
    for each in config["alerting"]["alertmanagers"][0]["static_configs"]:
        each["targets"] = [addresses[target] for target in each["targets"]]
    (folder / "config" / name).write_text(yaml.safe_dump(config))

    address = f"127.0.0.1:{choose_port('127.0.0.1')}"
    with (folder / "prometheus.log").open("w") as log:
        process = subprocess.Popen(
            [
                str(PROMETHEUS),
                f"--config.file={folder / 'config' / name}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address={address}",
            ],
            stdout=log,
            stderr=log,
        )
    try:
        yield Prometheus(address)
    finally:
        process.terminate()
        process.wait(30)
