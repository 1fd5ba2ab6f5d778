"""A self-signed certificate for loopback, made by openssl."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from ...proto.security import TlsFiles
from . import HOST


def has_openssl() -> bool:
    """Whether openssl, which `make` needs, is installed."""
    return shutil.which("openssl") is not None


def make(folder: Path) -> None:
    """Make a certificate and its key in `folder`, valid for a day."""
    files = tls_files(folder)
    command = ["openssl", "req", "-x509", "-days", "1", "-noenc", "-subj", f"/CN={HOST}"]
    command += ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    command += ["-addext", f"subjectAltName=IP:{HOST}"]
    command += ["-keyout", str(files.key), "-out", str(files.certificate)]
    subprocess.run(command, check=True, capture_output=True)


def tls_files(folder: Path) -> TlsFiles:
    """Return the paths of the files that `make` writes to `folder`."""
    return TlsFiles(certificate=folder / "certificate.pem", key=folder / "key.pem")
