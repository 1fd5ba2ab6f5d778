"""`edl doctor`: what it says of Redis, from what a registry says of itself."""

from __future__ import annotations

import pytest

from edl.coordinator import MemoryRegistry
from edl.coordinator.ops import doctor
from edl.coordinator.ops.findings import Finding


class Described(MemoryRegistry):
    """A registry that says what it is, as Redis does."""

    def __init__(self, **info: str) -> None:
        super().__init__()
        self._info = {
            "server_name": "valkey",
            "version": "8.1.3",
            "role": "master",
            "maxmemory_policy": "noeviction",
            **info,
        }

    def server_info(self) -> dict[str, str]:
        return self._info


def findings_about(registry: MemoryRegistry, monkeypatch: pytest.MonkeyPatch) -> list[Finding]:
    monkeypatch.setattr(doctor, "connect", lambda url: registry)
    return list(doctor.examine("redis://here:6379", lambda: None))


@pytest.mark.parametrize(
    ("info", "level", "text"),
    [
        ({}, "well", "valkey 8.1.3"),
        ({"server_name": "redis", "version": "7.2.4"}, "well", "redis 7.2.4"),
        ({"role": "slave"}, "wrong", "valkey 8.1.3 is a slave"),
        ({"maxmemory_policy": "allkeys-lru"}, "doubt", "valkey 8.1.3 throws keys away"),
    ],
)
def test_redis_is_named_with_its_version(
    info: dict[str, str], level: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = findings_about(Described(**info), monkeypatch)
    assert any(one.level == level and one.text.startswith(text) for one in found), found
