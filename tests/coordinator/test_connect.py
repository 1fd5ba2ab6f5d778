"""Registry URLs: which ones there are, and that none shows its password."""

from __future__ import annotations

import subprocess
import sys

import pytest

import edl.coordinator
from edl.coordinator import MemoryRegistry, connect
from edl.coordinator.redis_registry import RedisRegistry
from edl.coordinator.registry import masked
from edl.errors import UsageError


def test_memory_registries_of_one_name_are_one() -> None:
    first = connect("memory://connect-a")
    first.register("teachers", "s", "t", {"incarnation": "1"}, 5.0)
    assert connect("memory://connect-a").names("teachers", "s") == {"t"}
    assert connect("memory://connect-b").names("teachers", "s") == set()
    assert isinstance(first, MemoryRegistry)


@pytest.mark.parametrize(
    "url", ["redis://h:1/2", "rediss://u:p@h:1", "unix:///tmp/redis.sock", "redis://h"]
)
def test_redis_urls_connect_only_when_they_are_used(url: str) -> None:
    registry = connect(url)
    assert isinstance(registry, RedisRegistry)
    registry.close()


@pytest.mark.parametrize("url", ["", "h:6379", "http://h", "redis://h:port", "redis://[::1"])
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
    ],
)
def test_a_password_that_breaks_the_url_is_not_shown_either(url: str) -> None:
    with pytest.raises(UsageError) as error:
        connect(url)
    assert "sec" not in str(error.value)
    assert "ret" not in str(error.value)


def test_the_public_face() -> None:
    assert sorted(edl.coordinator.__all__) == [
        "Heartbeat",
        "MemoryRegistry",
        "Registry",
        "Subscription",
        "connect",
        "fetch_status",
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
