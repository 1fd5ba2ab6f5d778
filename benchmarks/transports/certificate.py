"""A certificate for this host's loopback that signs itself, made by openssl."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from ...proto.security import TlsFiles
from . import HOST


def has_openssl() -> bool:
    """Whether `make` can be used."""
    return shutil.which("openssl") is not None


def make(folder: Path) -> None:
    """Make certificate and key in `folder`, good for a day."""
    files = tls_files(folder)
    command = ["openssl", "req", "-x509", "-days", "1", "-noenc", "-subj", f"/CN={HOST}"]
    command += ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    command += ["-addext", f"subjectAltName=IP:{HOST}"]
    command += ["-keyout", str(files.key), "-out", str(files.certificate)]
    subprocess.run(command, check=True, capture_output=True)


def tls_files(folder: Path) -> TlsFiles:
    """The files that `make` makes there."""
    return TlsFiles(certificate=folder / "certificate.pem", key=folder / "key.pem")
