"""Redis URLs: parse them, mask passwords, and open clients."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

from ...runtime.errors import RedisUnavailable, UsageError

if TYPE_CHECKING:
    import redis

_SCHEMES: Final = ("redis", "rediss", "unix", "redis+sentinel", "rediss+sentinel")
#: Default port of Redis (False) and of sentinels (True).
_PORTS: Final = {False: 6379, True: 26379}
_TLS_FILES: Final = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")
_CHECK_HOSTNAME: Final = "ssl_check_hostname"
_PASSWORD_FILES: Final = ("password_file", "sentinel_password_file")
_PARAMETERS: Final = frozenset(
    {
        "db", "username", "password", "sentinel_username", "sentinel_password",
        *_PASSWORD_FILES, *_TLS_FILES, _CHECK_HOSTNAME,
    }
)  # fmt: skip
_FLAGS: Final = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


@dataclass(frozen=True, slots=True)
class RedisUrl:
    """A parsed URL. It contains passwords: only `shown` may appear in messages.

    Attributes:
        shown: the URL without user, password and parameters.
        hosts: (host, port) of the server or of the sentinels.
        path: path of a unix socket; empty for TCP.
        master: name of the master that the sentinels watch; empty: no sentinels.
        db: number of the database.
        login: username, password and password_file for Redis, as far as the URL has them.
        sentinel_login: the same for the sentinels.
        tls: TLS settings; None: no TLS.
    """

    shown: str
    hosts: tuple[tuple[str, int], ...] = ()
    path: str = ""
    master: str = ""
    db: int = 0
    login: Mapping[str, str] = field(default_factory=dict, repr=False)
    sentinel_login: Mapping[str, str] = field(default_factory=dict, repr=False)
    tls: Mapping[str, Any] | None = None


def is_redis_url(url: str) -> bool:
    """Return whether `url` has a supported Redis scheme."""
    return url.partition(":")[0].lower() in _SCHEMES


def masked(url: str) -> str:
    """Return a URL for messages, valid or not, without user, password and parameters."""
    # Mask up to the last '@': a password that is not percent-encoded may contain any delimiter.
    shown = re.sub(r"^([\w+]+://)?.*@", r"\1***@", url, flags=re.DOTALL)
    return re.split("[?#]", shown, maxsplit=1)[0]


def holds_password(url: str) -> bool:
    """Return whether a URL, valid or not, contains a password.

    A variable that Kubernetes expands, `$(NAME)`, does not count.
    """
    address, _, parameters = url.partition("?")
    if "@" in parameters and parameters.partition("=")[0] not in _PARAMETERS:
        address = url  # the '?' is part of the password
    match = re.search(r"//[^@/?]*:([^@]*)@", address)
    stated = match is not None and re.fullmatch(r"\$\([\w.-]+\)", match[1]) is None
    return stated or re.search(r"(^|&)(sentinel_)?password=", parameters) is not None


def with_absolute_paths(url: str) -> str:
    """Return a valid URL with absolute paths of its files."""
    address, mark, query = url.partition("?")
    parameters = {
        name: str(Path(value).absolute()) if name in (*_PASSWORD_FILES, *_TLS_FILES) else value
        for name, value in parse_qsl(query)
    }
    return address + mark + urlencode(parameters, safe="/")


def name_same_database(*urls: str) -> bool:
    """Return whether URLs are valid and name the same hosts, or path, and the same database.

    Users, passwords, TLS and files do not matter, and no file is read.
    """
    databases = set()
    for url in urls:
        address, _, query = url.partition("?")
        kept = "&".join(each for each in query.split("&") if each.startswith("db="))
        try:
            parsed = _parsed(f"{address}?{kept}", "")
        except ValueError:
            return False
        databases.add((frozenset(parsed.hosts), parsed.path, parsed.master, parsed.db))
    return len(databases) == 1


def parse(url: str) -> RedisUrl:
    """Parse a URL.

    Raises:
        UsageError: the URL is invalid, or names an unknown parameter or an unusable file.
    """
    shown = masked(url)
    try:
        return _parsed(url, shown)
    except ValueError:  # its text may contain part of the password
        raise UsageError(
            f"not a Redis URL: {shown}; expected redis://[user:password@]host:port[/db], "
            "redis+sentinel://[user:password@]host:port[,host:port...]/MASTER[/db] or "
            "unix:///PATH, with '/', '?', '#' and '@' in the password as %2F, %3F, %23 and %40"
        ) from None


def _parsed(url: str, shown: str) -> RedisUrl:
    parts = urlsplit(url)
    scheme = parts.scheme.lower()
    if parts.fragment or scheme not in _SCHEMES:
        raise ValueError
    parameters = dict(parse_qsl(parts.query, strict_parsing=True) if parts.query else ())
    _check_parameters(parameters, shown)
    user, _, addresses = parts.netloc.rpartition("@")
    login = _login(user, parameters)
    sentinels = scheme.endswith("+sentinel")
    unix = scheme == "unix"
    if unix and (addresses or not parts.path):  # unix://run/redis.sock lacks a slash
        raise ValueError
    path = [unquote(part) for part in parts.path.split("/")[1:]] if not unix else []
    return RedisUrl(
        shown,
        hosts=() if unix else _hosts(addresses, sentinels),
        path=unquote(parts.path) if unix else "",
        master=_master(path) if sentinels else "",
        db=_db(path, parameters),
        login=login,
        sentinel_login=_prefixed(parameters, "sentinel_"),
        tls=_tls(parameters, shown, used=scheme.startswith("rediss")),
    )


def _check_parameters(parameters: Mapping[str, str], shown: str) -> None:
    for name in parameters:
        if name not in _PARAMETERS:
            raise UsageError(
                f"the URL {shown} has an unknown parameter {name!r:.40}; known are "
                + ", ".join(sorted(_PARAMETERS))
            )
    for name in _PASSWORD_FILES:
        if name in parameters:
            try:
                read_password(parameters[name])
            except RedisUnavailable as error:
                raise UsageError(str(error)) from None


def _login(user: str, parameters: Mapping[str, str]) -> dict[str, str]:
    name, _, password = user.partition(":")
    from_address = {"username": unquote(name), "password": unquote(password)}
    login = {key: value for key, value in from_address.items() if value}
    login |= _prefixed(parameters, "")
    if "password_file" in login:
        login.pop("password", None)
    return login


def _prefixed(parameters: Mapping[str, str], prefix: str) -> dict[str, str]:
    names = ("username", "password", "password_file")
    return {name: parameters[prefix + name] for name in names if prefix + name in parameters}


def _hosts(addresses: str, sentinels: bool) -> tuple[tuple[str, int], ...]:
    hosts = []
    for address in addresses.split(",") if sentinels else [addresses]:
        split = urlsplit(f"//{address}")  # parses [::1]:port
        port = _PORTS[sentinels] if split.port is None else split.port
        if (split.hostname is None and sentinels) or port == 0:
            raise ValueError
        host = split.hostname or "localhost"
        host.encode("idna")  # as when connecting; raises ValueError if the name is invalid
        hosts.append((host, port))
    return tuple(hosts)


def _master(path: list[str]) -> str:
    if not path or not path[0]:
        raise ValueError
    return path.pop(0)


def _db(path: list[str], parameters: Mapping[str, str]) -> int:
    if len(path) > 1:
        raise ValueError
    number = int((path[0] if path else "") or parameters.get("db", "") or 0)
    if number < 0:
        raise ValueError
    return number


def _tls(parameters: Mapping[str, str], shown: str, *, used: bool) -> dict[str, Any] | None:
    if not used:
        for name in (*_TLS_FILES, _CHECK_HOSTNAME):
            if name in parameters:
                raise UsageError(
                    f"the {name} of {shown} has no effect without TLS: write rediss:// or "
                    "rediss+sentinel://"
                )
        return None
    tls: dict[str, Any] = {}
    for name in _TLS_FILES:
        if file := parameters.get(name):
            if not Path(file).is_file():
                raise UsageError(f"the {name} of {shown} is not a file: {file}")
            tls[name] = file
    if "ssl_keyfile" in tls and "ssl_certfile" not in tls:
        raise UsageError(f"{shown} has an ssl_keyfile but no ssl_certfile: name both")
    flag = parameters.get(_CHECK_HOSTNAME, "true").lower()
    if flag not in _FLAGS:
        raise UsageError(f"{_CHECK_HOSTNAME} of {shown} must be true or false")
    return {**tls, "ssl_cert_reqs": "required", _CHECK_HOSTNAME: _FLAGS[flag]}


def read_password(file: str) -> str:
    """Read a password from a file, which may be replaced at any time.

    Raises:
        RedisUnavailable: the file is empty, cannot be read, or is accessible to every user.
    """
    try:
        with Path(file).open("rb") as opened:
            if os.fstat(opened.fileno()).st_mode & 0o007:
                raise RedisUnavailable(
                    f"the password file {file} is accessible to every user of this machine: "
                    f"run 'chmod o= {file}'"
                )
            password = opened.read(4096).decode("utf-8", "strict").strip()
    except OSError as error:
        raise RedisUnavailable(
            f"the password file {file} cannot be read: {error.strerror or error}"
        ) from None
    except UnicodeDecodeError:
        raise RedisUnavailable(f"the password file {file} is not UTF-8 text") from None
    if not password:
        raise RedisUnavailable(f"the password file {file} is empty")
    return password


def open_client(url: RedisUrl, timeout_s: float) -> redis.Redis:
    """Return a client that connects at its first use; with sentinels, always to the master.

    Args:
        url: result of `parse`.
        timeout_s: timeout of a connection and of each answer, in seconds.
    """
    import redis
    from redis.backoff import NoBackoff
    from redis.retry import Retry
    from redis.sentinel import Sentinel

    options: dict[str, Any] = {
        "decode_responses": True,
        "encoding_errors": "replace",
        "socket_timeout": timeout_s,
        "socket_connect_timeout": timeout_s,
        "protocol": 2,
        # One retry, as the server may have closed an idle connection.
        "retry": Retry(NoBackoff(), 1),
        **_without_setinfo(),
    }
    tls = {} if url.tls is None else {"ssl": True, **url.tls}
    redis_options = {**options, **_credentials(url.login), "db": url.db}
    if url.path:
        return redis.Redis(unix_socket_path=url.path, **redis_options)
    if not url.master:
        host, port = url.hosts[0]
        return redis.Redis(host=host, port=port, **redis_options, **tls)
    sentinels: Any = Sentinel(  # type: ignore[no-untyped-call]
        list(url.hosts),
        sentinel_kwargs={**options, **_credentials(url.sentinel_login), **tls},
        **redis_options,
        **tls,
    )
    client: redis.Redis = sentinels.master_for(url.master)
    return client


def _without_setinfo() -> dict[str, Any]:
    """Return options that disable CLIENT SETINFO, which Redis 7.0 cannot permit to a user."""
    try:
        from redis.driver_info import DriverInfo
    except ImportError:  # before redis-py 7.2
        return {"lib_name": None, "lib_version": None}
    # With None, redis-py 7.2 to 7.4 would send the command.
    return {"driver_info": DriverInfo(name="", lib_version="")}


def _credentials(login: Mapping[str, str]) -> dict[str, Any]:
    if "password_file" not in login:
        return dict(login)
    from redis.credentials import CredentialProvider

    class FromFile(CredentialProvider):
        """Reads the file for each connection, so that a rotated password is used."""

        def get_credentials(self) -> tuple[str] | tuple[str, str]:
            password = read_password(login["password_file"])
            return (login["username"], password) if "username" in login else (password,)

    def log_in(connection: Any) -> None:
        try:
            connection.on_connect()
        except RedisUnavailable:  # else redis-py would use the connection without having logged in
            connection.disconnect()
            raise

    return {"credential_provider": FromFile(), "redis_connect_func": log_in}
