"""Certificates and keys: read from files, checked, reloaded when they change, and used in TLS."""

from __future__ import annotations

import logging
import math
import re
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, TypeVar

from ...runtime.errors import UsageError
from ...runtime.files import file_stamps
from .credentials import ClientSecurity, ServerSecurity, TlsFiles

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PemContents:
    """The content of `TlsFiles`, as gRPC expects it; None for a file that is not named."""

    certificate: bytes | None
    key: bytes | None = field(repr=False)
    ca: bytes | None


def read_pem(files: TlsFiles) -> PemContents:
    """Read all named files and check that they fit together.

    Raises:
        UsageError: a file cannot be read or is not PEM, or the key does not belong to the
            certificate.
    """
    pem = PemContents(
        certificate=_read("certificate", files.certificate),
        key=_read("key", files.key),
        ca=_read("CA", files.ca),
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if files.ca is not None:
        use_ca(context, files.ca)
    if files.certificate is not None and files.key is not None:
        use_pair(context, files.certificate, files.key)
    return pem


def _read(what: str, path: Path | None) -> bytes | None:
    if path is None:
        return None
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"{what} {path} cannot be read: {error.strerror or error}") from None


def use_ca(context: ssl.SSLContext, ca: Path) -> None:
    """Trust certificates that `ca` has signed.

    Raises:
        UsageError: `ca` cannot be read, or is not PEM.
    """
    data = _read("CA", ca) or b""
    try:
        # Text around the certificates may have characters that are not ASCII.
        context.load_verify_locations(cadata=data.decode("ascii", "ignore"))
    except (ssl.SSLError, ValueError):
        raise UsageError(f"CA {ca} is no certificate in PEM form") from None


def use_pair(context: ssl.SSLContext, certificate: Path, key: Path) -> None:
    """Load a certificate and its key. After an error the context must not be used.

    Raises:
        UsageError: a file cannot be read or is not PEM, or the files do not belong together.
    """
    try:
        context.load_cert_chain(certificate, key, password=_refuse_password)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise UsageError(f"key {key} does not belong to certificate {certificate}") from None
        raise UsageError(
            f"certificate {certificate} with key {key} cannot be used: one of the two is not in "
            f"PEM form ({error.reason or error})"
        ) from None
    except _PasswordNeeded:
        raise UsageError(
            f"key {key} has a password, which cannot be entered here: remove it with "
            f"'openssl pkey -in {key} -out NEW', and let nobody else read NEW"
        ) from None
    except OSError as error:  # it does not name the file
        _read("certificate", certificate)
        _read("key", key)
        raise UsageError(f"certificate {certificate} cannot be read: {error.strerror}") from None


class _PasswordNeeded(Exception):
    """The key needs a password, for which OpenSSL would ask on the terminal."""


def _refuse_password() -> str:
    raise _PasswordNeeded


#: A certificate ends soon if fewer days and a smaller part of its validity than these are left.
_SOON_DAYS, _SOON_PART = 14.0, 0.2
_SECONDS_PER_DAY: Final = 86_400.0
_BEGIN, _END = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
#: ASN.1 tags: of the version of a certificate, and of both kinds of times, with their formats.
_VERSION: Final = 0xA0
_TIME_FORMATS: Final = {0x17: "%y%m%d%H%M%S%z", 0x18: "%Y%m%d%H%M%S%z"}

#: Error texts of OpenSSL, BoringSSL and gRPC for a failed handshake, and what to do about them.
_HINTS: Final = {
    "certificate has expired": "the peer's certificate has expired: replace it on the peer",
    "certificate is not yet valid": (
        "the peer's certificate is not valid yet: compare both clocks"
    ),
    "hostname verification check failed|hostname mismatch|ip address mismatch": (
        "the peer's certificate is for other names than this address: connect to a name that is in "
        "the certificate, or give the peer a certificate for this address"
    ),
    "unable to get (local )?issuer|self.signed": (
        "the peer's certificate is signed by an authority that is not trusted here: name the "
        "authority with {}"
    ),
}


class Validity(NamedTuple):
    """When a certificate becomes valid and when it expires, in seconds since 1970."""

    start_s: float
    expiry_s: float

    @property
    def days_left(self) -> float:
        """Days until it expires; negative: it has expired."""
        return (self.expiry_s - time.time()) / _SECONDS_PER_DAY

    @property
    def ends_soon(self) -> bool:
        """Whether it should be replaced; the alert EdlCertificateExpires has the same rule."""
        days = (self.expiry_s - self.start_s) / _SECONDS_PER_DAY
        return self.days_left < min(_SOON_PART * days, _SOON_DAYS)


def validity_of(path: Path, *, bundle: bool = False) -> Validity:
    """Return the validity of the first certificate of a PEM file; in a chain, the owner's.

    Args:
        path: the file.
        bundle: the file holds authorities: return the one that expires last instead.

    Raises:
        UsageError: the file cannot be read, or holds no certificate.
    """
    try:
        parts = path.read_text("latin-1").split(_BEGIN)[1:]  # any text may be around certificates
        used = parts if bundle else parts[:1]
        pems = [f"{_BEGIN}{part[: part.index(_END)]}{_END}" for part in used]
        validities = [_validity(ssl.PEM_cert_to_DER_cert(pem)) for pem in pems]
        return max(validities, key=lambda validity: validity.expiry_s)
    except OSError as error:
        raise UsageError(f"certificate {path} cannot be read: {error.strerror or error}") from None
    except (ValueError, IndexError, StopIteration):
        raise UsageError(f"{path} holds no certificate in PEM form") from None


def check_validity(path: Path) -> None:
    """Check that a certificate has not expired. A certificate that is not valid yet is accepted.

    Raises:
        UsageError: the certificate has expired, or cannot be read.
    """
    expiry_s = validity_of(path).expiry_s
    if time.time() >= expiry_s:
        date = f"{datetime.fromtimestamp(expiry_s, UTC):%Y-%m-%d %H:%M} UTC"
        raise UsageError(f"certificate {path} expired on {date}: replace it")


def handshake_hint(
    text: str, ca: str = "--tls ca=FILE, or tls=TLS(ca=...) of a DistilReader"
) -> str:
    """Return advice for an error text of a failed TLS handshake; empty for other errors.

    Args:
        text: text of the error.
        ca: the option or setting by which a user names the authority of the peer's certificate.
    """
    return next((h.format(ca) for regex, h in _HINTS.items() if re.search(regex, text, re.I)), "")


def export_expiry(
    registry: CollectorRegistry, security: ClientSecurity | ServerSecurity | None
) -> None:
    """Add the expiry of a process's certificates to its metrics; files are read at each scrape.

    Args:
        registry: the metrics of the process.
        security: settings of the process; without certificates nothing is added.
    """
    files = None if security is None else security.tls
    paths = {} if files is None else {"own": files.certificate, "ca": files.ca}
    named = {what: path for what, path in paths.items() if path is not None}
    if named:
        registry.register(_ExpiryCollector(named))


@dataclass(eq=False)
class _ExpiryCollector:
    paths: dict[str, Path]

    def collect(self) -> Iterator[Metric]:
        from prometheus_client.core import GaugeMetricFamily

        gauges = [
            GaugeMetricFamily(
                f"edl_certificate_{name}_timestamp_seconds",
                f"Unix time at which a certificate {event}, as read from its file: the process's"
                " own (`own`) or that of its CA (`ca`).",
                labels=["certificate"],
            )
            for name, event in (("start", "becomes valid"), ("expiry", "expires"))
        ]
        for what, path in self.paths.items():
            # No series while the file is unusable; the process still uses the former certificate.
            with suppress(UsageError):
                validity = validity_of(path, bundle=what == "ca")
                for gauge, time_s in zip(gauges, validity, strict=True):
                    gauge.add_metric([what], time_s)
        yield from gauges


def _validity(der: bytes) -> Validity:
    """Return the validity of an X.509 certificate (RFC 5280); `ssl` decodes only trusted ones."""
    certificate = next(_elements(der, 0, len(der)))
    to_be_signed = next(_elements(der, *certificate[1:]))
    fields = [field for field in _elements(der, *to_be_signed[1:]) if field[0] != _VERSION]
    _serial, _algorithm, _issuer, (_, start, stop), *_ = fields  # start and stop of the validity
    start_s, expiry_s = (
        datetime.strptime(der[a:b].decode("ascii"), _TIME_FORMATS.get(tag, "")).timestamp()
        for tag, a, b in _elements(der, start, stop)
    )
    return Validity(start_s, expiry_s)


def _elements(der: bytes, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
    """Yield tag, start and end of the content of each DER element between two offsets."""
    while start < stop:
        tag, length = der[start], der[start + 1]
        start += 2
        if length & 0x80:
            count = length & 0x7F
            length = int.from_bytes(der[start : start + count], "big")
            start += count
        yield tag, start, start + length
        start += length


_T = TypeVar("_T")
#: Seconds from a failed attempt to load changed files until the next attempt.
_RETRY_S: Final = 1.0


class Reloaded(Generic[_T]):
    """The content of files, reloaded when they change. Safe to use from several threads.

    A change that cannot be used (a missing, incomplete or unprotected file) is logged once, and the
    previous content stays in use, so that a mistake in a file locks no caller out. To revoke a
    credential, write a valid file without it. Unusable files are read again after `_RETRY_S`: the
    reason may have passed, such as a lack of descriptors.

    Args:
        paths: the files; a change of any of them reloads all.
        load: reads the files and returns the value to keep.
        clock: returns seconds, monotonic.

    Raises:
        UsageError: the first `load` fails.
    """

    def __init__(
        self,
        paths: tuple[Path, ...],
        load: Callable[[], _T],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._paths = paths
        self._load = load
        self._clock = clock
        self._lock = threading.Lock()
        self._retry_at = math.inf  # time of the next attempt after a failed one
        self._problem = ""  # of the last failed attempt
        self._stamps = file_stamps(paths)  # before reading, to notice a change in between
        self._value = load()

    def current(self) -> _T:
        """Return the content of the files; reload them if they have changed."""
        stamps = file_stamps(self._paths)
        if stamps == self._stamps and self._clock() < self._retry_at:
            return self._value
        with self._lock:
            if stamps != self._stamps:
                self._stamps, self._problem = stamps, ""
                self._reload()
            elif self._clock() >= self._retry_at:
                self._reload()
            return self._value

    def _reload(self) -> None:
        try:
            self._value = self._load()
        except UsageError as error:
            self._retry_at = self._clock() + _RETRY_S
            if (problem := str(error)) != self._problem:
                self._problem = problem
                log.error("%s; the previous content stays in use", problem)
        else:
            self._retry_at = math.inf
            log.info("reloaded: %s", ", ".join(map(str, self._paths)))


def reloading_context(files: TlsFiles, *, ask_clients: bool = False) -> ssl.SSLContext:
    """Create a context for a server of `ssl` that reloads its certificate.

    A new connection uses the certificate that is in the files at its handshake. If that has
    expired, the former certificate stays in use. Existing connections keep theirs.

    Args:
        files: certificate and key, and the CA of the clients.
        ask_clients: require TLS 1.3 and a certificate that the CA has signed, if there is a CA.

    Raises:
        UsageError: a file cannot be used, or the certificate has expired.
    """
    contexts = Reloaded(files.paths(), lambda: _context(files, ask_clients))

    def use_current(connection: ssl.SSLObject, _name: str | None, _used: ssl.SSLContext) -> None:
        """Called by OpenSSL in each handshake, whether or not the client names a host."""
        connection.context = contexts.current()

    first = contexts.current()
    first.sni_callback = use_current
    return first


def _context(files: TlsFiles, ask_clients: bool) -> ssl.SSLContext:
    assert files.certificate is not None
    assert files.key is not None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    use_pair(context, files.certificate, files.key)
    check_validity(files.certificate)
    if ask_clients and files.ca is not None:
        use_ca(context, files.ca)
        context.verify_mode = ssl.CERT_REQUIRED
        # A resumed session would skip the check of a certificate that has expired, or whose CA was
        # withdrawn. TLS 1.3 resumes only by tickets; `ssl` cannot turn off resumption of TLS 1.2.
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.num_tickets = 0
    return context


def client_context(security: ClientSecurity) -> ssl.SSLContext:
    """Create a context for a client of `ssl`, with its certificate and the CAs that it trusts.

    Raises:
        UsageError: a file of `security` cannot be used.
    """
    tls = security.tls
    if tls is None or tls.ca is None:
        context = ssl.create_default_context()
    else:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        use_ca(context, tls.ca)
    if tls is not None and tls.certificate is not None and tls.key is not None:
        use_pair(context, tls.certificate, tls.key)
    return context
