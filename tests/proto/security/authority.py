"""A certificate authority whose files lie in a folder."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import trustme

from edl.proto.security.credentials import TlsFiles


class Authority:
    """Makes certificates for this machine, and writes them where `TlsFiles` can name them."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._ca = trustme.CA()
        self.ca = folder / "ca.pem"
        self._ca.cert_pem.write_to_path(self.ca)

    def issue(
        self,
        name: str,
        common_name: str | None = None,
        *,
        host: str = "",
        days: float = 365.0,
    ) -> TlsFiles:
        """A pair of files; those of the same `name` are written over. `days` below 0: expired."""
        hosts = [host] if host else ["localhost", "127.0.0.1"]
        now = datetime.now(UTC)
        ends = now + timedelta(days=days)
        begins = min(now, ends) - timedelta(days=1)
        made = self._ca.issue_cert(
            *hosts, common_name=common_name, not_before=begins, not_after=ends
        )
        certificate, key = self._folder / f"{name}.pem", self._folder / f"{name}.key"
        made.private_key_pem.write_to_path(key)
        certificate.write_bytes(b"".join(pem.bytes() for pem in made.cert_chain_pems))
        return TlsFiles(certificate, key, self.ca)


def write_secret(path: Path, text: str) -> Path:
    """A file that others cannot read; replaced at once, as a careful operator does."""
    fresh = path.with_name(f"{path.name}.new")
    fresh.touch(mode=0o600)
    fresh.write_text(text)
    return fresh.replace(path)
