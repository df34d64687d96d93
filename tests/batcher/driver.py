"""The batcher's shared object, compiled with sanitizers, and the host that calls it as Triton does."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tidal.batcher.build import json_headers
from tidal.batcher.library import source_folder

_FLAGS = ("-std=c++17", "-O0", "-g1", "-Wall", "-Wextra", "-Werror", "-fsanitize=address,undefined")
_STRICT = ("-fno-sanitize-recover=all", "-fno-omit-frame-pointer")
_HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Driver:
    """A compiled host and the library that it is to load."""

    host: Path
    library: Path

    def run(self, *arguments: str, script: Sequence[str] = ()) -> list[str]:
        """What the host answers, a line a command; fails where a sanitizer finds something."""
        done = subprocess.run(
            [str(self.host), str(self.library), *arguments],
            input="".join(f"{line}\n" for line in script),
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "ASAN_OPTIONS": "detect_leaks=1", "UBSAN_OPTIONS": "print_stacktrace=1"},
        )
        assert done.returncode == 0, f"{done.returncode}: {done.stderr[-4000:]}"
        return done.stdout.splitlines()


def make_driver(folder: Path) -> Driver:
    """Compile both."""
    include = f"-I{source_folder()}"
    sources = [str(path) for path in sorted(source_folder().glob("*.cpp"))]
    library, host = folder / "batcher.so", folder / "host"
    compiler = shutil.which("g++") or "g++"
    given = [
        "-isystem",
        str(json_headers()),
        "-shared",
        "-fPIC",
        '-DTIDAL_SOURCES="test"',
        *sources,
        "-o",
        str(library),
    ]
    commands = [[compiler, *_FLAGS, *_STRICT, include, *given]]
    objects = [folder / "host.o", folder / "fuzz.o"]
    for made in objects:
        source = str(_HERE / f"{made.stem}.cpp")
        commands.append([compiler, *_FLAGS, *_STRICT, include, "-c", source, "-o", str(made)])
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(_compile, commands))
    _compile([compiler, *_FLAGS, "-rdynamic", *map(str, objects), "-ldl", "-o", str(host)])
    return Driver(host, library)


def _compile(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]


def config(
    parameters: Mapping[str, object],
    *,
    preferred: Sequence[int] = (),
    delay_us: int = 0,
    inputs: Sequence[tuple[str, str, Sequence[int]]] = (("input_ids", "TYPE_INT64", (-1,)),),
    **more: Any,
) -> str:
    """A model's config as Triton gives it; `parameters` are the batcher's, without TIDAL_BATCH_ before them."""
    made = {
        "name": "m",
        "max_batch_size": 8,
        "input": [{"name": name, "data_type": kind, "dims": list(dims)} for name, kind, dims in inputs],
        "dynamic_batching": {"preferred_batch_size": list(preferred), "max_queue_delay_microseconds": delay_us},
        "parameters": {f"TIDAL_BATCH_{key}": {"string_value": str(value)} for key, value in parameters.items()},
    }
    return json.dumps({key: value for key, value in {**made, **more}.items() if value is not None})
