"""Sending contents to a store."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tidal.version_store.store_files import StoreFiles
from tidal.version_store.stored_version import StoredFile
from tidal.version_store.transfers import ByteCount, Report, in_parallel


def upload(store: StoreFiles, sources: Iterable[tuple[StoredFile, Path]], report: Report) -> dict[str, int]:
    """Send the contents that the store does not have, each once.

    Args:
        store: The store.
        sources: Files, and where they are on this machine.
        report: Called with the progress.

    Returns:
        The sizes in bytes of what was sent, by hash.
    """
    by_hash: dict[str, tuple[StoredFile, Path]] = {}
    for file, path in sources:
        by_hash.setdefault(file.sha256, (file, path))
    missing: list[tuple[StoredFile, Path]] = []
    in_parallel(lambda each: None if store.has(each[0]) else missing.append(each), by_hash.values())
    count = ByteCount(report, "upload", sum(file.bytes for file, _ in missing))

    def send(each: tuple[StoredFile, Path]) -> None:
        store.upload(*each)
        count.add(each[0].bytes)

    in_parallel(send, missing)
    return {file.sha256: file.bytes for file, _ in missing}
