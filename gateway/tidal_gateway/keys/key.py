"""The form of an API key: a public id, and 256 random bits of which only the hash is stored."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from typing import Final

_PREFIX: Final = "tidal"
_ID_BYTES: Final = 6
_SECRET_BYTES: Final = 32
#: Longest text that is taken for a key.
MAX_CHARS: Final = 128


def new_key() -> tuple[str, str, str]:
    """Return a new key, its id, and the hash of its secret."""
    identifier, secret = secrets.token_hex(_ID_BYTES), secrets.token_urlsafe(_SECRET_BYTES)
    return f"{_PREFIX}-{identifier}-{secret}", identifier, hash_of(secret)


def parse_key(text: str) -> tuple[str, str] | None:
    """Return the id and the secret of a key; None if the text has another form."""
    parts = text.split("-", 2)
    if len(text) > MAX_CHARS or len(parts) != 3 or parts[0] != _PREFIX or not parts[1] or not parts[2]:
        return None
    return parts[1], parts[2]


def hash_of(secret: str) -> str:
    """Return the SHA-256 of a secret, hexadecimal.

    A slow password hash protects guessable secrets, which 256 random bits are not, and would let anybody who sends
    wrong keys occupy the processor.
    """
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def matches(secret: str, stored: str) -> bool:
    """Whether a secret has this hash; takes the same time for every wrong one."""
    return hmac.compare_digest(hash_of(secret), stored)
