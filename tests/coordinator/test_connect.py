"""Registry URLs: which ones there are, and that none shows its password."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import redis

import edl.coordinator
from edl.coordinator import MemoryRegistry, connect
from edl.coordinator.registry import masked
from edl.coordinator.registry.redis_registry import RedisRegistry
from edl.coordinator.registry.redis_url import open_client, parse, read_password
from edl.errors import RegistryUnavailable, UsageError


def test_memory_registries_of_one_name_are_one() -> None:
    first = connect("memory://connect-a")
    first.register("teachers", "s", "t", {"incarnation": "1"}, 5.0)
    assert connect("memory://connect-a").names("teachers", "s") == {"t"}
    assert connect("memory://connect-b").names("teachers", "s") == set()
    assert isinstance(first, MemoryRegistry)


@pytest.mark.parametrize(
    "url",
    [
        "redis://h:1/2", "rediss://u:p@h:1", "unix:///tmp/redis.sock", "redis://h", "redis://[::1]:1",
        "redis+sentinel://h:1,[::1]:2,g/mesh/3", "rediss+sentinel://u:p@h/mesh",
        "redis://h?db=3", "REDIS://h",
    ],
)  # fmt: skip
def test_redis_urls_connect_only_when_they_are_used(url: str) -> None:
    registry = connect(url)
    assert isinstance(registry, RedisRegistry)
    registry.close()


@pytest.mark.parametrize(
    "url",
    [
        "", "h:6379", "http://h", "redis://h:port", "redis://[::1", "redis://h/x", "redis://h/1/2",
        "redis://h#1", "redis+sentinel://h", "redis+sentinel://h/", "redis+sentinel:///mesh",
        "redis+sentinel://h,/mesh", "redis://h:99999", "redis://h?password_file=/nowhere",
        "redis://h?socket_timeout=3", "redis://h?db", "rediss://h?ssl_check_hostname=maybe",
        "sentinel://h/mesh",
    ],
)  # fmt: skip
def test_other_urls_are_refused_in_one_sentence(url: str) -> None:
    with pytest.raises(UsageError) as error:
        connect(url)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://user:secret@h:1/0", "redis://***@h:1/0"),
        ("redis://:secret@h", "redis://***@h"),
        ("redis://h:6379?password=secret", "redis://h:6379"),
        ("redis://h:6379", "redis://h:6379"),
        ("redis+sentinel://u:secret@h:1,g:2/mesh", "redis+sentinel://***@h:1,g:2/mesh"),
        ("redis+sentinel://h/mesh?sentinel_password=secret", "redis+sentinel://h/mesh"),
    ],
)
def test_passwords_are_masked(url: str, shown: str) -> None:
    assert masked(url) == shown
    assert connect(url).url == shown


@pytest.mark.parametrize(
    "url",
    [
        "redis://:sec#ret@h:6379",
        "redis://:sec/ret@h:6379",
        "redis://:sec?ret@h:6379",
        "redis://:sec@ret@h:port",
        "redis://:sec://ret@h:port",
        "redis://:sec[ret@h:6379",
        "http://:sec#ret@h",
        ":secret@h:6379",
        "redis+sentinel://u:sec#ret@h/mesh",
        "redis+sentinel://u:sec/ret@h/mesh/x",
        "rediss+sentinel://u:sec?ret@h",
    ],
)
def test_a_password_that_breaks_the_url_is_not_shown_either(url: str) -> None:
    with pytest.raises(UsageError) as error:
        connect(url)
    assert "sec" not in str(error.value)
    assert "ret" not in str(error.value)


def test_a_url_is_taken_apart(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.touch(mode=0o600)
    secret.write_text("rotates\n")
    url = parse(
        f"rediss+sentinel://me:p%40%2F@h:1,[::1]/mesh%20a/3?ssl_ca_certs={secret}"
        f"&sentinel_username=s&sentinel_password_file={secret}"
    )
    assert url.hosts == (("h", 1), ("::1", 26379))
    assert (url.master, url.db) == ("mesh a", 3)
    assert url.login == {"username": "me", "password": "p@/"}
    assert url.sentinel_login == {"username": "s", "password_file": str(secret)}
    assert url.tls is not None
    assert url.tls["ssl_ca_certs"] == str(secret)
    assert "p@/" not in repr(url)
    assert parse("unix://u:p@/run/redis.sock?db=2").path == "/run/redis.sock"
    # A file that rotates wins over a password that stands in the URL.
    assert "password" not in parse(f"redis://u:old@h?password_file={secret}").login


def test_tls_is_spoken_with_sentinels_and_with_the_master() -> None:
    pool: Any = open_client(parse("rediss+sentinel://h:1/mesh"), 1.0).connection_pool
    (sentinel,) = pool.sentinel_manager.sentinels
    for each in (pool, sentinel.connection_pool):
        assert issubclass(each.connection_class, redis.SSLConnection)
        assert each.connection_kwargs["ssl_cert_reqs"] == "required"
        assert each.connection_kwargs["ssl_check_hostname"] is True
        assert each.connection_kwargs["socket_timeout"] == 1.0


def test_a_password_file_is_for_its_owner_only(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("rotates")
    secret.chmod(0o644)
    with pytest.raises(UsageError, match=r"open to every user .*chmod o="):
        connect(f"redis://h?password_file={secret}")
    secret.chmod(0o640)
    assert read_password(str(secret)) == "rotates"
    for content in (b"", b" \n", b"\xff\xfe"):
        secret.write_bytes(content)
        with pytest.raises(RegistryUnavailable):
            read_password(str(secret))
    with pytest.raises(UsageError, match="cannot be read"):
        connect(f"redis://h?password_file={tmp_path}")


def test_the_public_face() -> None:
    assert sorted(edl.coordinator.__all__) == [
        "Heartbeat",
        "MemoryRegistry",
        "Registry",
        "Subscription",
        "connect",
        "drain",
        "fetch_status",
        "upgrade",
        "watch",
    ]
    for name in edl.coordinator.__all__:
        assert getattr(edl.coordinator, name).__name__ == name
    with pytest.raises(AttributeError):
        edl.coordinator.nothing  # noqa: B018


def test_importing_the_face_loads_neither_redis_nor_grpc() -> None:
    code = "import edl.coordinator, sys; print(*{'redis', 'grpc', 'google'} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == ""
