"""Limits on JPEG and PNG files that are checked before a decoder reads them: metadata, chunks and scans.

Pillow reads metadata in Python: a megabyte of fill bytes in a JPEG takes more than 1 s, a million empty chunks of a PNG
8 s. libjpeg decodes a progressive file once per scan.
"""

from __future__ import annotations

from PIL.JpegImagePlugin import MARKER

from tidal.errors import InvalidArgument

_PNG, _JPEG = b"\x89PNG\r\n\x1a\n", b"\xff\xd8"
# Encoders write pixels in chunks of at least 8 KiB, and about ten other chunks.
_MAX_CHUNKS = 20_000
# Segments before the first scan: tables, and metadata in segments of 64 KiB.
_MAX_SEGMENTS = 1_000
_MAX_FILL = 1_000
# Colour profiles, XMP and thumbnails together.
_MAX_METADATA_BYTES = 8 << 20
_SCAN, _MARKER = b"\xff\xda", b"\xff"
_FIRST_SCAN, _ESCAPED = 0xFFDA, 0xFF00
# A progressive file has about ten scans.
_MAX_SCANS = 100
_CHEAP_SCANS = 12
_MAX_SCANNED_PIXELS = 1_000_000_000


def check_metadata(content: bytes, name: str) -> None:
    """Check the amount of metadata; files of other formats and damaged files are left to the decoder.

    Args:
        content: Content of an encoded image.
        name: Name of the image, for errors.

    Raises:
        InvalidArgument: There is more than any encoder writes; names the limit.
    """
    if content.startswith(_PNG):
        _check_png(content, name)
    elif content.startswith(_JPEG):
        _check_jpeg(content, name)


def check_scans(content: bytes, pixels: int, name: str) -> None:
    """Check the number of scans of a JPEG.

    Args:
        content: Content of an encoded image.
        pixels: Number of pixels of the image.
        name: Name of the image, for errors.

    Raises:
        InvalidArgument: Decoding would take too many passes over the pixels; names the limit.
    """
    if not content.startswith(_JPEG):
        return
    scans = content.count(_SCAN)
    if scans > _MAX_SCANS:
        raise InvalidArgument(f"{name} is a JPEG of {scans} scans; accepted: up to {_MAX_SCANS}")
    if scans > _CHEAP_SCANS and scans * pixels > _MAX_SCANNED_PIXELS:
        raise InvalidArgument(
            f"{name} is a JPEG of {scans} scans over {pixels} pixels; accepted: up to {_CHEAP_SCANS} scans, or "
            f"{_MAX_SCANNED_PIXELS} pixels in all scans together"
        )


def _check_png(content: bytes, name: str) -> None:
    at, chunks, metadata = len(_PNG), 0, 0
    while at + 8 <= len(content):
        size, kind = int.from_bytes(content[at : at + 4], "big"), content[at + 4 : at + 8]
        chunks += 1
        if kind != b"IDAT":
            metadata += size
        if chunks > _MAX_CHUNKS:
            raise InvalidArgument(f"{name} is a PNG of too many chunks; accepted: up to {_MAX_CHUNKS}")
        _check_metadata(metadata, name)
        if kind == b"IEND":
            return
        at += 12 + size


def _check_jpeg(content: bytes, name: str) -> None:
    """Iterate over markers as Pillow does, which skips other bytes one by one."""
    at, segments, fill, metadata = 2, 0, 0, 0
    while (begin := content.find(_MARKER, at)) >= 0:
        near = content[begin : begin + _MAX_FILL + 2]
        place = begin + len(near) - len(near.lstrip(_MARKER))
        fill += place - at - 1
        segments += 1
        if segments > _MAX_SEGMENTS or fill > _MAX_FILL:
            raise InvalidArgument(
                f"{name} is a JPEG of too many segments or fill bytes before its pixels; accepted: up to "
                f"{_MAX_SEGMENTS} segments and {_MAX_FILL} fill bytes"
            )
        if place >= len(content):
            return
        code = 0xFF00 | content[place]
        at = place + 1
        if code == _ESCAPED:
            continue
        known = MARKER.get(code)
        if code == _FIRST_SCAN or known is None:  # the decoder reports an unknown marker
            return
        if known[2] is not None:  # else the marker has no content
            size = int.from_bytes(content[at : at + 2], "big")
            metadata += size
            _check_metadata(metadata, name)
            at += size


def _check_metadata(size: int, name: str) -> None:
    if size > _MAX_METADATA_BYTES:
        raise InvalidArgument(f"{name} has too much metadata; accepted: up to {_MAX_METADATA_BYTES} bytes")
