"""The parts of JPEG and PNG files around their pixels, counted before a decoder reads them.

Pillow reads these parts in Python: a megabyte of fill bytes in a JPEG takes it over a second, a million empty chunks of
a PNG eight. libjpeg then decodes a progressive file once for every scan in it.
"""

from __future__ import annotations

from PIL.JpegImagePlugin import MARKER

from tidal.errors import InvalidArgument

_PNG, _JPEG = b"\x89PNG\r\n\x1a\n", b"\xff\xd8"
# Encoders write pixels in chunks of 8 KiB and more, and about ten chunks around them.
_MOST_CHUNKS = 20_000
# Segments before the first scan: tables, and metadata in pieces of 64 KiB.
_MOST_SEGMENTS = 1_000
_MOST_FILL = 1_000
# Colour profiles, XMP and thumbnails together.
_MOST_METADATA = 8 << 20
_SCAN, _MARKER = b"\xff\xda", b"\xff"
_FIRST_SCAN, _ESCAPED = 0xFFDA, 0xFF00
# A progressive file has about ten.
_MOST_SCANS = 100
_USUAL_SCANS = 12
_MOST_SCANNED_PIXELS = 1_000_000_000


def check_parts(content: bytes, name: str) -> None:
    """Count what stands around the pixels; a file of another format, or a damaged one, is left to its decoder.

    Args:
        content: an encoded image.
        name: of the image, for errors.

    Raises:
        InvalidArgument: there is more of it than any encoder writes; names the limit.
    """
    if content.startswith(_PNG):
        _check_png(content, name)
    elif content.startswith(_JPEG):
        _check_jpeg(content, name)


def check_scans(content: bytes, pixels: int, name: str) -> None:
    """Bound the passes that decoding a JPEG takes over its pixels; raises as `check_parts`."""
    if not content.startswith(_JPEG):
        return
    scans = content.count(_SCAN)
    if scans > _MOST_SCANS:
        raise InvalidArgument(f"{name} is a JPEG of {scans} scans; accepted are up to {_MOST_SCANS}")
    if scans > _USUAL_SCANS and scans * pixels > _MOST_SCANNED_PIXELS:
        raise InvalidArgument(
            f"{name} is a JPEG of {scans} scans over {pixels} pixels; accepted are up to {_USUAL_SCANS} scans, or "
            f"{_MOST_SCANNED_PIXELS} pixels in all scans together"
        )


def _check_png(content: bytes, name: str) -> None:
    at, chunks, metadata = len(_PNG), 0, 0
    while at + 8 <= len(content):
        size, kind = int.from_bytes(content[at : at + 4], "big"), content[at + 4 : at + 8]
        chunks += 1
        if kind != b"IDAT":
            metadata += size
        if chunks > _MOST_CHUNKS:
            raise InvalidArgument(f"{name} is a PNG of more than the {_MOST_CHUNKS} chunks that are accepted")
        _check_metadata(metadata, name)
        if kind == b"IEND":
            return
        at += 12 + size


def _check_jpeg(content: bytes, name: str) -> None:
    """Walk from marker to marker as Pillow does, which skips what is no marker byte by byte."""
    at, segments, fill, metadata = 2, 0, 0, 0
    while (begin := content.find(_MARKER, at)) >= 0:
        near = content[begin : begin + _MOST_FILL + 2]
        place = begin + len(near) - len(near.lstrip(_MARKER))
        fill += place - at - 1
        segments += 1
        if segments > _MOST_SEGMENTS or fill > _MOST_FILL:
            raise InvalidArgument(
                f"{name} is a JPEG of more than the {_MOST_SEGMENTS} segments or {_MOST_FILL} fill bytes that are "
                "accepted before its pixels"
            )
        if place >= len(content):
            return
        code = 0xFF00 | content[place]
        at = place + 1
        if code == _ESCAPED:
            continue
        known = MARKER.get(code)
        if code == _FIRST_SCAN or known is None:  # the decoder tells what is wrong with an unknown one
            return
        if known[2] is not None:  # else the marker stands alone
            size = int.from_bytes(content[at : at + 2], "big")
            metadata += size
            _check_metadata(metadata, name)
            at += size


def _check_metadata(size: int, name: str) -> None:
    if size > _MOST_METADATA:
        raise InvalidArgument(f"{name} has more than the {_MOST_METADATA} bytes of metadata that are accepted")
