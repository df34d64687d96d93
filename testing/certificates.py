"""Certificates for tests of TLS."""

from __future__ import annotations

import subprocess
from pathlib import Path


def write_self_signed(folder: Path, name: str, owner: str) -> tuple[Path, Path]:
    """Write a certificate that is signed by itself, and its key; requires openssl.

    Args:
        folder: Folder to write to.
        name: Name of the files, `<name>.pem` and `<name>.key`.
        owner: Whom the certificate is for, as openssl names it, such as `IP:127.0.0.1` or `DNS:localhost`.

    Returns:
        Paths of the certificate and of the key.
    """
    certificate, key = folder / f"{name}.pem", folder / f"{name}.key"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"),
            *("-keyout", str(key), "-out", str(certificate), "-days", "2"),
            *("-subj", f"/CN={name}", "-addext", f"subjectAltName={owner}"),
        ],
        check=True,
        capture_output=True,
    )
    return certificate, key
