"""Images that are refused, and the reason of each."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from functools import cache

from tests.otas.photos import encoded, photo

MOST_PIXELS, MOST_BYTES = 1 << 20, 40 << 20


def png(width: int, height: int, rows: bytes) -> bytes:
    """A grey PNG with a size in its header."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    body = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


def progressive(scans: int) -> bytes:
    """A progressive JPEG that repeats its last scan."""
    content = encoded(photo(32, 32), "JPEG", progressive=True)
    begin = content.rindex(b"\xff\xda")
    return content[:begin] + content[begin:-2] * scans + content[-2:]


def with_chunks(kind: bytes, content: bytes, count: int = 1) -> bytes:
    """A valid PNG with chunks before its pixels."""
    chunk = struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
    sound = encoded(photo(20, 20))
    return sound[:33] + chunk * count + sound[33:]


def with_segments(segment: bytes, count: int) -> bytes:
    """A valid JPEG with bytes after its first marker."""
    sound = encoded(photo(20, 20), "JPEG")
    return sound[:2] + segment * count + sound[2:]


@cache
def bomb() -> bytes:
    """Compressed metadata that unfolds to 200 MiB."""
    return zlib.compress(bytes(200 << 20))


STILL = [photo(20, 20), photo(20, 20)]
MANY = [photo(20, 20)] * 300
NO_IMAGE = "is damaged or not an image; accepted:"
PIXELS = "has too many pixels; accepted: up to 1048576"
UNFOLDS = "has too large compressed metadata; accepted: up to 1048576 bytes per chunk and 67108864 in total"
METADATA = "has too much metadata; accepted: up to 8388608 bytes"
SEGMENTS = "is a JPEG of too many segments or fill bytes before its pixels; accepted: up to 1000 segments"

#: Contents are made when they are used: all together take seconds.
HOSTILE: dict[str, tuple[Callable[[], bytes], str]] = {
    "empty": (lambda: b"", "is empty; accepted: JPEG, PNG and WebP"),
    "text": (lambda: b"hello " * 100, "is damaged or not an image; accepted: JPEG, PNG and WebP"),
    "gif": (lambda: encoded(STILL[0], "GIF"), NO_IMAGE),
    "tiff": (lambda: encoded(STILL[0], "TIFF"), NO_IMAGE),
    "pdf": (lambda: encoded(STILL[0], "PDF"), NO_IMAGE),
    "postscript": (lambda: b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", NO_IMAGE),
    "cut jpeg": (lambda: encoded(photo(64, 64), "JPEG")[:-300], "is damaged: image file is truncated"),
    "cut png": (lambda: encoded(photo(64, 64))[:2000], "is damaged: "),
    "cut webp": (lambda: encoded(photo(64, 64), "WEBP")[:400], "is damaged"),
    "header alone": (lambda: encoded(photo(64, 64))[:33], "is damaged"),
    "too large": (lambda: png(1025, 1024, b""), "has 1025 x 1024 pixels; accepted: up to 1048576 in total"),
    "bomb": (lambda: png(60_000, 60_000, bytes(1 << 20)), PIXELS),
    "bomb of webp": (
        lambda: b"RIFF\x22\0\0\0WEBPVP8X\n\0\0\0\0\0\0\0\xfe\x3f\0\xfe\x3f\0VP8 \x04\0\0\0abcd\0\0\0\0",
        PIXELS,
    ),
    "thin": (lambda: png(2000, 20, b""), "has 2000 x 20 pixels; accepted: a ratio of the sides of up to 64"),
    "no pixels": (lambda: png(0, 0, b""), "is damaged"),
    "animated png": (lambda: encoded(STILL[0], "PNG", save_all=True, append_images=STILL[1:]), "is animated"),
    "animated webp": (lambda: encoded(STILL[0], "WEBP", save_all=True, append_images=STILL[1:]), "is animated"),
    "scans": (lambda: progressive(5000), "is a JPEG of 5009 scans; accepted: up to 100"),
    "png of 50,000 x 50,000": (lambda: png(50_000, 50_000, bytes(1 << 20)), PIXELS),
    "bytes": (lambda: encoded(photo(64, 64)) + bytes(MOST_BYTES), "has 41"),
    "many frames of gif": (lambda: encoded(STILL[0], "GIF", save_all=True, append_images=MANY), NO_IMAGE),
    "many frames of tiff": (lambda: encoded(STILL[0], "TIFF", save_all=True, append_images=MANY), NO_IMAGE),
    "many frames of webp": (lambda: encoded(STILL[0], "WEBP", save_all=True, append_images=MANY), "is animated"),
    "iTXt bomb": (lambda: with_chunks(b"iTXt", b"k\0\1\0\0\0" + bomb()), UNFOLDS),
    "zTXt bomb": (lambda: with_chunks(b"zTXt", b"k\0\0" + bomb()), UNFOLDS),
    "ICC bomb": (lambda: with_chunks(b"iCCP", b"k\0\0" + bomb()), UNFOLDS),
    "many zTXt": (lambda: with_chunks(b"zTXt", b"k\0\0" + zlib.compress(bytes(900_000)), 100), UNFOLDS),
    "large text of png": (lambda: with_chunks(b"tEXt", b"k\0" + bytes(9 << 20)), METADATA),
    "many chunks": (lambda: with_chunks(b"prVt", b"", 30_000), "is a PNG of too many chunks; accepted: up to 20000"),
    "metadata of jpeg": (lambda: with_segments(b"\xff\xe1\xff\xff" + bytes(65_533), 200), METADATA),
    "fill bytes of jpeg": (lambda: with_segments(b"\xff", 2_000_000), SEGMENTS),
    "junk of jpeg": (lambda: with_segments(b"\x00", 2_000_000), SEGMENTS),
    "escapes of jpeg": (lambda: with_segments(b"\xff\x00", 1_000_000), SEGMENTS),
    "markers of jpeg": (lambda: with_segments(b"\xff\xd0", 1_000_000), SEGMENTS),
    "empty segments of jpeg": (lambda: with_segments(b"\xff\xfe\x00\x02", 1_000_000), SEGMENTS),
}  # fmt: skip
