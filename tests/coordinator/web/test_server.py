"""The page's server: its feed, access, hostile clients, TLS."""

from __future__ import annotations

import logging
import socket
import ssl
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from itertools import count, islice
from pathlib import Path
from threading import Barrier
from urllib.parse import urlsplit

import httpx
import pytest

from edl.coordinator.store.records import WrongKeyType
from edl.coordinator.web import feed, server
from edl.coordinator.web.server import WebServer
from edl.proto import coordinator_pb2 as pb
from edl.proto.security import servers
from edl.proto.security.access_control import AccessControl
from edl.proto.security.credentials import TlsFiles
from edl.runtime.errors import AddressInUse, RedisUnavailable, UsageError
from edl.tests.proto.security.authority import Authority, write_secret
from edl.tests.waiting import DEADLINE_S, wait_until

from .conftest import ADMIN, VIEWER, bearer, get, make_gate, messages, post
from .scripted_mesh import ScriptedMesh

Serve = Callable[..., str]
S = "resnet101"
DRAIN = {"service": S, "teacher": "p4-01-1"}


@pytest.fixture(autouse=True)
def quick_feed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "FAST_S", 0.05)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, ScriptedMesh]]:
    """A page that knows tokens, and its mesh, for tests that change nothing."""
    script = ScriptedMesh(teachers=6, students=2)
    page = WebServer(script, "0", make_gate(tmp_path_factory.mktemp("tokens")))
    yield page.start(), script
    page.stop()


@pytest.mark.parametrize(
    ("path", "kind", "status"),
    [
        ("", "text/html", 200), ("static/page.js", "text/javascript", 200), ("nothing", "", 404),
        ("static/nothing.js", "", 404), ("static/../server.py", "", 404),
        ("static/%2e%2e/app.py", "", 404),
    ],
)  # fmt: skip
def test_only_own_files_are_served_and_with_every_guard(
    guarded: tuple[str, ScriptedMesh], path: str, kind: str, status: int
) -> None:
    answer = get(guarded[0] + path)
    assert answer.status_code == status
    assert answer.headers["content-type"].startswith(kind)
    assert "script-src 'self'" in answer.headers["content-security-policy"]
    assert "unsafe" not in answer.headers["content-security-policy"]
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "server" not in answer.headers


def test_the_feed_begins_with_the_whole_and_goes_on_with_changes_and_outages(
    serve: Serve, script: ScriptedMesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away() -> pb.MeshStatus:
        raise RedisUnavailable("Redis does not answer")

    with closing(messages(serve())) as stream:
        first = next(stream)
        assert set(first["whole"]["teachers"]) == {f"{S} {name}" for name in script.teachers[S]}
        assert first["events"][-1]["kind"] == "assigned"
        script.kill(S, "p4-01-2")
        events, states = [], []
        while "lost" not in states:
            message = next(stream)
            events += [event["kind"] for event in message["events"]]
            changes = message["changes"].get("teachers", {})
            states.append(changes.get(f"{S} p4-01-2", {}).get("state"))
        assert "lost" in events
        with monkeypatch.context() as patch:
            patch.setattr(script, "status", away)
            assert any(message["error"] == "Redis does not answer" for message in stream)
        assert any(message["error"] == "" for message in stream)


def test_a_log_that_cannot_be_read_hides_nothing_else(
    serve: Serve, script: ScriptedMesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = script.events

    def read(service: str, after: str, last: int) -> Sequence[pb.Event]:
        if service == "odd":
            raise WrongKeyType("another program wrote it")
        return events(service, after, last)

    script.subscribe("odd", "j/0")
    monkeypatch.setattr(script, "events", read)
    with closing(messages(serve())) as stream:
        first = next(stream)
    assert first["error"] == ""
    assert first["whole"]["services"].keys() == {S, "odd"}
    assert {event["service"] for event in first["events"]} == {S}


def test_pages_share_one_reading(serve: Serve, script: ScriptedMesh) -> None:
    numbers, status = count(1), script.status

    def numbered() -> pb.MeshStatus:
        found = status()
        found.redis_time_ms = next(numbers)
        return found

    script.status = numbered  # type: ignore[method-assign]
    url = serve()
    assert next(numbers) == 1, "it was read though no page looks"
    streams = [messages(url) for _ in range(6)]
    for stream in streams:
        assert "whole" in next(stream)
    for stream in streams:
        seen = [message["now_ms"] for message in islice(stream, 4)]
        assert seen == list(range(seen[0], seen[0] + 4)), "some readings were for other pages"
        stream.close()


def test_without_tokens_the_page_is_read_only(serve: Serve, script: ScriptedMesh) -> None:
    url = serve(gate=AccessControl(None))
    access = get(f"{url}api/access").json()
    assert {name for name, allowed in access.items() if allowed} == {"view"}
    answer = post(f"{url}api/drain", json=DRAIN, headers=bearer("anything"))
    assert (answer.status_code, script.drained) == (403, [])
    assert "--tokens" in answer.json()["error"]


def test_a_drain_needs_an_administrators_token_that_is_never_logged(
    serve: Serve, script: ScriptedMesh, gate: AccessControl, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    logging.getLogger("httpx").setLevel(logging.CRITICAL)  # the client's own lines
    url = serve(gate=gate)
    drain = f"{url}api/drain"
    assert next(messages(url))["whole"]  # looking is free on this machine
    assert post(drain, json=DRAIN).status_code == 401
    assert post(drain, json=DRAIN, headers=bearer("wrong-token")).status_code == 401
    assert post(drain, json=DRAIN, headers=bearer(VIEWER)).status_code == 403
    assert post(drain, params={"token": "wrong-token"}, json=DRAIN).status_code == 401
    assert script.drained == []
    assert post(drain, json=DRAIN, headers=bearer(ADMIN)).status_code == 200
    assert script.drained == [(S, "p4-01-1")]
    assert get(f"{url}api/access", headers=bearer(ADMIN)).json()["drain"] is True
    assert get(f"{url}api/access", headers=bearer(VIEWER)).json()["drain"] is False
    assert not {token for token in (ADMIN, VIEWER, "wrong-token") if token in caplog.text}


GOOD = b'{"service": "resnet101", "teacher": "p4-01-1"}'


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        *((body, "application/json") for body in (b"", b"{", b"[" * 4000, b" " * 5000)),
        (b'{"service": 1, "teacher": "t"}', "application/json"),
        (b'{"service": "", "teacher": ""}', "application/json"),
        (GOOD.replace(b"p4-01-1", b"nobody"), "application/json"),
        (b"service=resnet101&teacher=p4-01-1", "application/x-www-form-urlencoded"),
        (GOOD, "text/plain"),
    ],
)
def test_bad_drains_are_refused(guarded: tuple[str, ScriptedMesh], body: bytes, kind: str) -> None:
    url, script = guarded
    headers = bearer(ADMIN) | {"Content-Type": kind}
    answer = post(f"{url}api/drain", content=body, headers=headers)
    assert answer.status_code == 400
    assert answer.json()["error"]
    assert script.drained == []


def test_beyond_this_machine_looking_needs_a_token_too(serve: Serve, gate: AccessControl) -> None:
    url = serve("0.0.0.0:0", gate=gate)
    assert get(url).status_code == 200  # the page itself, which asks for the token
    assert get(f"{url}api/access").json()["view"] is False
    assert get(f"{url}api/feed").status_code == 401
    assert get(f"{url}api/feed", headers=bearer("student-token-here")).status_code == 403
    with closing(messages(url, VIEWER)) as stream:
        assert next(stream)["whole"]
    with pytest.raises(AddressInUse):
        serve(str(urlsplit(url).port))
    for none in (None, AccessControl(None)):
        with pytest.raises(UsageError, match="--insecure"):
            serve("0.0.0.0:0", gate=none)


def test_the_feed_of_a_viewer_whose_token_is_withdrawn_ends(
    serve: Serve, gate: AccessControl, tmp_path: Path
) -> None:
    url = serve("0.0.0.0:0", gate=gate)
    with closing(messages(url, VIEWER)) as revoked, closing(messages(url, ADMIN)) as other:
        assert next(revoked)["whole"]
        assert next(other)["whole"]
        write_secret(tmp_path / "tokens", f"admin:ann {ADMIN}\n")
        for _ in revoked:
            pass  # until it ends
        assert next(other)
    assert get(f"{url}api/feed", headers=bearer(VIEWER)).status_code == 401


def test_a_foreign_host_name_is_refused_on_loopback(guarded: tuple[str, ScriptedMesh]) -> None:
    url = f"{guarded[0]}api/access"
    for host in ("evil.example", "evil.example:80", "", "127.0.0.1.evil.example"):
        assert get(url, headers={"Host": host}).status_code == 421
    for host in ("localhost", "localhost:7500", "127.0.0.1:1", "[::1]:80"):
        assert get(url, headers={"Host": host}).status_code == 200


def test_pages_that_come_at_once_get_the_places_that_there_are(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed, "MAX_VIEWERS", 2)
    url = serve()

    def status(all_answered: Barrier) -> int:
        with httpx.stream("GET", f"{url}api/feed", verify=False, timeout=DEADLINE_S) as answer:
            all_answered.wait(DEADLINE_S)
            return answer.status_code

    def statuses(pages: int) -> list[int]:
        with ThreadPoolExecutor(pages) as pool:
            return sorted(pool.map(status, [Barrier(pages)] * pages))

    assert statuses(4) == [200, 200, 429, 429]
    wait_until(lambda: statuses(2) == [200, 200])  # the places are free again


def test_silent_clients_are_cut_off(script: ScriptedMesh, monkeypatch: pytest.MonkeyPatch) -> None:
    page = WebServer(script, "0")
    url = page.start()
    stream = messages(url)
    next(stream)  # its request may have been late
    monkeypatch.setattr(server, "_REQUEST_S", 0.2)
    with socket.create_connection(("127.0.0.1", urlsplit(url).port or 0), 5) as silent:
        assert silent.recv(1) == b""
    assert next(stream)
    page.stop()
    page.stop()
    for _ in stream:
        pass  # until the feed ends


@pytest.mark.parametrize("script", [ScriptedMesh(500, 30, services=2)], ids=["large"])
def test_a_large_mesh_is_read_less_often_and_its_changes_are_small(serve: Serve) -> None:
    with closing(messages(serve())) as stream:
        whole = len(str(next(stream)))
        assert all(len(str(message["changes"])) < whole / 4 for message in islice(stream, 3))
    intervals = [feed.interval_s(members) for members in (600, 6_000, 1_000_000)]
    assert intervals[0] == feed.FAST_S < intervals[1] < intervals[2] == feed.SLOW_S


def certify(folder: Path, host: str) -> tuple[TlsFiles, ssl.SSLContext]:
    """Write a new pair of a new CA; returns its files, and what trusts that CA alone."""
    authority = Authority(folder)
    trusting = ssl.create_default_context(cafile=str(authority.ca))
    return replace(authority.issue("page", host=host), ca=None), trusting


def test_a_handshake_has_a_deadline(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servers, "HANDSHAKE_S", 0.05)
    files, _ = certify(tmp_path, "127.0.0.1")
    port = urlsplit(serve(tls=files)).port or 0
    with socket.create_connection(("127.0.0.1", port), 5) as silent:
        assert silent.recv(1) == b""


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_replaced_certificate_is_offered_next(serve: Serve, tmp_path: Path, host: str) -> None:
    files, former = certify(tmp_path, host)
    url = serve(tls=files).replace("127.0.0.1", host)
    assert url.startswith("https://")
    assert httpx.get(url, verify=former).status_code == 200
    _, trusting = certify(tmp_path, host)
    assert httpx.get(url, verify=trusting).status_code == 200
    with pytest.raises(httpx.ConnectError):
        httpx.get(url, verify=former)
    (tmp_path / "page.key").write_text("half a k")
    assert httpx.get(url, verify=trusting).status_code == 200, "the old pair still serves"
    with pytest.raises(UsageError, match="cannot be used"):
        serve(tls=files)
