"""Compiles Tidal's C++ sources with g++ on the machine where they are installed."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import tidal
from tidal.errors import Internal, NotFound, TidalError

_SOURCES = (".cpp", ".hpp", ".h")

#: Flags for the levels of vector instructions that kernels are compiled for; the level is chosen at run time.
_AVX512 = ("-mavx512f", "-mavx512dq", "-mavx512vl", "-mavx512bw", "-mfma", "-mprefer-vector-width=512")
_BF16 = (*_AVX512, "-mavx512bf16", "-mavx512vnni")
LEVELS: Mapping[str, tuple[str, ...]] = {
    "amx": (*_BF16, "-mamx-tile", "-mamx-bf16", "-mamx-int8"),
    "avx512bf16": _BF16,
    "avx512vnni": (*_AVX512, "-mavx512vnni"),
    "avx512": _AVX512,
    "avx2": ("-mavx2", "-mfma"),
    "plain": (),
}


def source_folder(path: str, known: str) -> Path:
    """The folder of C++ sources in the checkout or in the installation.

    Args:
        path: Path of the folder below `backends`, such as `pets/native`.
        known: Name of a file in it.

    Raises:
        NotFound: The installation has no sources.
    """
    checkout = Path(tidal.__file__).resolve().parent.parent / path
    installed = Path(sysconfig.get_path("data")) / "share" / "tidal" / "backends" / path
    for folder in (checkout, installed):
        if (folder / known).is_file():
            return folder
    raise NotFound(f"the C++ sources are neither in {checkout} nor in {installed}: reinstall tidal")


def shared_headers() -> Path:
    """Folder of the headers that several native parts include: vectors, activations, and the choice of a level.

    Raises:
        NotFound: The installation lacks them.
    """
    return source_folder("native", "vectors.hpp")


def sources_digest(*folders: Path, against: str = "") -> str:
    """Hash of a native part's sources and of what they are compiled against, 12 hexadecimal digits.

    Args:
        folders: Folders of all sources and headers of the part.
        against: Version of the library that they are compiled against, or "".
    """
    digest = hashlib.sha256(against.encode())
    for folder in folders:
        for path in sorted(folder.iterdir()):
            if path.suffix in _SOURCES:
                digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]


@dataclass(frozen=True, slots=True)
class ServerLibrary:
    """A shared object that tritonserver loads from a fixed path, and that contains the digest of its sources.

    Attributes:
        path: Path of the folder of its sources below `backends`.
        known: Name of a file in it.
        name: Name of the shared object, without suffix.
    """

    path: str
    known: str
    name: str

    @property
    def sources(self) -> Path:
        """Folder of the sources.

        Raises:
            NotFound: The installation has no sources.
        """
        return source_folder(self.path, self.known)

    @property
    def file(self) -> Path:
        """Path of the shared object, whether or not it exists."""
        return self.sources / "build" / f"{self.name}.so"

    def is_current(self) -> bool:
        """Whether the shared object exists and was built from these sources."""
        mark = f"{self.name}_sources={sources_digest(self.sources)}"
        return self.file.is_file() and mark.encode() in self.file.read_bytes()

    def compile(self, compiler: str, flags: Sequence[str], libraries: Sequence[str] = ()) -> Path:
        """Compile the shared object; a server that has loaded the previous one keeps it.

        Args:
            compiler: Path of g++.
            flags: Flags for all sources, to which the definition of `TIDAL_SOURCES`, their digest, is added.
            libraries: Flags after the sources, which name libraries to link.

        Returns:
            Path of the shared object.

        Raises:
            Internal: The compiler fails; contains its output.
        """
        sources = [str(path) for path in sorted(self.sources.glob("*.cpp"))]
        command = [compiler, *flags, f'-DTIDAL_SOURCES="{sources_digest(self.sources)}"', *sources]
        return replace_library(self.file, lambda _, made: run_compiler([*command, "-o", str(made), *libraries]))


def find_compiler(purpose: str, *, version: int = 9) -> str:
    """Path of g++.

    Args:
        purpose: Part that needs the compiler, as a clause of the error.
        version: Oldest version that compiles it.

    Raises:
        NotFound: It is not installed.
    """
    compiler = shutil.which("g++")
    if compiler is None:
        raise NotFound(f"g++ is missing, and {purpose}: install g++ {version} or newer")
    return compiler


def compile_sources(
    compiler: str, folder: Path, scratch: Path, flags: Sequence[str], levelled: Mapping[str, Sequence[str]]
) -> list[str]:
    """Compile all sources of a folder to objects.

    Args:
        compiler: Path of g++.
        folder: Folder of the sources.
        scratch: Folder for the objects.
        flags: Flags for every source.
        levelled: Names of levels, by source, for sources that are compiled once per level of `LEVELS`, with
            `TIDAL_LEVEL` defined as the level's name.

    Returns:
        Paths of the objects.

    Raises:
        Internal: The compiler fails; contains its output.
    """
    commands, objects = [], []
    for source in sorted(folder.glob("*.cpp")):
        for level in levelled.get(source.name, ("",)):
            objects.append(str(scratch / f"{source.stem}{level}.o"))
            named = (*LEVELS[level], f"-DTIDAL_LEVEL={level}") if level else ()
            commands.append([compiler, *flags, *named, "-c", str(source), "-o", objects[-1]])
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(run_compiler, commands))
    return objects


def replace_library(target: Path, link: Callable[[Path, Path], None]) -> Path:
    """Link a library beside its place, put it there, and delete those that were built from other sources.

    Args:
        target: Path of the library. Libraries of other sources have the same name but for what follows its last hyphen.
        link: Links the library; receives a folder for objects and the path to write the library to.

    Returns:
        The path of the library.

    Raises:
        Internal: The compiler fails; contains its output.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        linked = Path(scratch) / target.name
        link(Path(scratch), linked)
        linked.replace(target)
    name, hyphen, _ = target.name.rpartition("-")
    for path in target.parent.glob(f"{name}-*{target.suffix}") if hyphen else ():
        if path != target:
            path.unlink()
    return target


def run_compiler(command: Sequence[str]) -> None:
    """Run g++.

    Args:
        command: The command with its arguments.

    Raises:
        Internal: It fails; contains its output.
    """
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Internal(f"g++ failed: {' '.join(command)}\n{done.stderr.strip()[-4000:]}")


def build_command(build: Callable[..., Path]) -> int:
    """Run a module's build as a command that prints the path of the result, or one line with the error.

    Args:
        build: Builds, even if the result exists when its argument `force` is set, and returns the path of the result.
            `force` is set by the option `--force`.

    Returns:
        The exit code.
    """
    try:
        print(build(force="--force" in sys.argv[1:]))
    except TidalError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0
