"""Redis over TLS: who is trusted, who is let in, and what is said of everything else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
import trustme

from edl.coordinator import Heartbeat
from edl.coordinator.registry import connect
from edl.errors import RegistryUnavailable, UsageError
from edl.tests.ground.programs import wait_for
from edl.tests.system.redis_servers import TlsProxy, redis_server

PASSWORD = "p@ss/word"


@dataclass
class Tls:
    """A server with a password, its authority's file, and proxies before it."""

    port: int
    authority: trustme.CA
    folder: Path
    proxy: Callable[..., TlsProxy]

    @property
    def ca(self) -> Path:
        return self.folder / "ca.pem"

    def url(self, proxy: TlsProxy, *parameters: str, host: str = "127.0.0.1") -> str:
        query = "&".join([f"ssl_ca_certs={self.ca}", *parameters])
        return f"rediss://:p%40ss%2Fword@{host}:{proxy.port}/1?{query}"


@pytest.fixture
def tls(tmp_path: Path) -> Iterator[Tls]:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    with ExitStack() as stack:
        _, port = stack.enter_context(redis_server("--requirepass", PASSWORD))

        def proxy(**options: object) -> TlsProxy:
            made = TlsProxy(port, authority, **options)  # type: ignore[arg-type]
            stack.callback(made.close)
            return made

        yield Tls(port, authority, tmp_path, proxy)


def test_leases_over_tls(tls: Tls) -> None:
    registry = connect(tls.url(tls.proxy()))
    assert registry.url.startswith("rediss://***@127.0.0.1:")
    heart = Heartbeat(registry, "teachers", "s", "t", lambda: {"incarnation": "1"}, 0.6)
    heart.start()
    wait_for(lambda: [m.member for m in registry.members("teachers", "s")] == ["t"])
    heart.stop()
    assert registry.names("teachers", "s") == set()
    registry.close()


def test_an_authority_that_is_not_ours_is_not_trusted(tls: Tls) -> None:
    proxy = tls.proxy()
    trustme.CA().cert_pem.write_to_path(str(tls.ca))
    registry = connect(tls.url(proxy))
    with pytest.raises(RegistryUnavailable, match="ssl_ca_certs=FILE") as error:
        registry.time_ms()
    assert "certificate verify failed" in str(error.value)
    assert "p%40ss" not in str(error.value)
    registry.close()


def test_a_certificate_of_another_host_is_refused_unless_that_is_wanted(tls: Tls) -> None:
    proxy = tls.proxy(name="redis.example")
    registry = connect(tls.url(proxy))
    with pytest.raises(RegistryUnavailable, match="certificate verify failed"):
        registry.time_ms()
    registry.close()
    lenient = connect(tls.url(proxy, "ssl_check_hostname=false"))
    assert lenient.time_ms() > 0
    lenient.close()


def test_a_server_that_asks_for_a_certificate_gets_ours(tls: Tls) -> None:
    proxy = tls.proxy(client_authority=tls.authority)
    own = tls.authority.issue_cert("teacher")
    own.private_key_pem.write_to_path(str(tls.folder / "key.pem"))
    own.cert_chain_pems[0].write_to_path(str(tls.folder / "cert.pem"))
    files = [f"ssl_certfile={tls.folder / 'cert.pem'}", f"ssl_keyfile={tls.folder / 'key.pem'}"]
    registry = connect(tls.url(proxy, *files))
    assert registry.time_ms() > 0
    registry.close()
    bare = connect(tls.url(proxy))
    with pytest.raises(RegistryUnavailable, match="does not answer"):
        bare.time_ms()
    bare.close()


def test_tls_to_a_server_without_it_and_the_other_way_round(tls: Tls) -> None:
    over = connect(f"rediss://127.0.0.1:{tls.port}?ssl_ca_certs={tls.ca}", timeout_s=0.5)
    with pytest.raises(RegistryUnavailable, match="does not answer"):
        over.time_ms()
    over.close()
    plain = connect(f"redis://127.0.0.1:{tls.proxy().port}", timeout_s=0.5)
    with pytest.raises(RegistryUnavailable, match="does not answer"):
        plain.time_ms()
    plain.close()


def test_files_that_are_not_there_are_told_at_once(tls: Tls) -> None:
    with pytest.raises(UsageError, match="ssl_ca_certs of rediss://h:1 is no file: /nowhere"):
        connect("rediss://h:1?ssl_ca_certs=/nowhere")
    with pytest.raises(UsageError, match="no ssl_certfile"):
        connect(f"rediss://h:1?ssl_keyfile={tls.ca}")
