"""The batcher's shared object, compiled with sanitizers, and the host that calls it as Triton does."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tidal.batcher.build import json_headers
from tidal.batcher.library import LIBRARY

_FLAGS = ("-std=c++17", "-O0", "-g1", "-fPIC", "-Wall", "-Wextra", "-Werror", "-fsanitize=address,undefined")
_STRICT = ("-fno-sanitize-recover=all", "-fno-omit-frame-pointer")
_HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Driver:
    """A compiled host and the library that it is to load."""

    host: Path
    library: Path

    def run(self, *arguments: str, script: Sequence[str] = ()) -> list[str]:
        """Return the output of the host, one line per command; a finding of a sanitizer fails the test."""
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
    """Compile the library and the host, unless the folder has them from the same sources."""
    compiler = shutil.which("g++") or "g++"
    sources = sorted(LIBRARY.sources.glob("*.cpp"))
    included = (f"-I{LIBRARY.sources}", "-isystem", str(json_headers()), '-DTIDAL_SOURCES="test"')
    digest = hashlib.sha256(repr((compiler, _FLAGS, _STRICT, included)).encode())
    for file in (*sources, *sorted(LIBRARY.sources.glob("*.h*")), *sorted(_HERE.glob("*.?pp"))):
        digest.update(file.read_bytes())
    made = folder / digest.hexdigest()[:12]
    if not made.is_dir():
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            _build(compiler, sources, included, Path(scratch))
            with contextlib.suppress(OSError):  # another process was faster
                Path(scratch).rename(made)
                Path(scratch).mkdir()
    return Driver(made / "host", made / "batcher.so")


def _build(compiler: str, sources: Sequence[Path], included: Sequence[str], folder: Path) -> None:
    hosts = [_HERE / "host.cpp", _HERE / "fuzz.cpp"]
    compiled = {source: str(folder / f"{source.stem}.o") for source in (*sources, *hosts)}
    # Those that take longest first.
    order = sorted(compiled, key=lambda source: source.stem not in ("settings", "fuzz"))
    with ThreadPoolExecutor(2) as pool:
        command = (compiler, *_FLAGS, *_STRICT, *included, "-c")
        list(pool.map(_compile, ([*command, str(source), "-o", compiled[source]] for source in order)))
    library, host = ([compiled[source] for source in part] for part in (sources, hosts))
    _compile([compiler, *_FLAGS, *_STRICT, "-shared", *library, "-o", str(folder / "batcher.so")])
    _compile([compiler, *_FLAGS, "-rdynamic", *host, "-ldl", "-o", str(folder / "host")])


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
