"""The page's server: its feed, who may do what, and what hostile clients get."""

from __future__ import annotations

import logging
import random
import socket
import threading
import time
from collections.abc import Callable
from contextlib import closing
from itertools import islice
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from edl.coordinator.web import feed, server
from edl.coordinator.web.server import WebServer
from edl.errors import AddressInUse, RegistryUnavailable, UsageError
from edl.proto import coordinator_pb2 as pb
from edl.proto.security import Gate

from .conftest import ADMIN, VIEWER, bearer, messages
from .scripted_mesh import ScriptedMesh

Serve = Callable[..., str]
S = "resnet101"
DRAIN = {"service": S, "teacher": "p4-01-1"}


def test_the_page_and_its_files_come_with_every_guard(serve: Serve) -> None:
    url = serve()
    for path, kind in (("", "text/html"), ("static/page.js", "text/javascript"), ("nothing", "")):
        answer = httpx.get(url + path)
        assert answer.headers["content-type"].startswith(kind)
        assert "script-src 'self'" in answer.headers["content-security-policy"]
        assert "unsafe" not in answer.headers["content-security-policy"]
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "server" not in answer.headers


def test_nothing_comes_from_outside() -> None:
    for path in (Path(server.__file__).parent / "static").iterdir():
        text = path.read_text().replace("http://www.w3.org/2000/svg", "")
        assert "http:" not in text, path
        assert "https:" not in text, path
        assert 'style="' not in text, path
        assert len(text.splitlines()) < 300, path


@pytest.mark.parametrize(
    "path", ["static/nothing.js", "static/../server.py", "static/%2e%2e/app.py"]
)
def test_only_its_own_files_are_served(serve: Serve, path: str) -> None:
    assert httpx.get(serve() + path).status_code == 404


def test_the_feed_begins_with_the_whole_and_goes_on_with_changes(
    serve: Serve, script: ScriptedMesh
) -> None:
    with closing(messages(serve())) as stream:
        first = next(stream)
        assert set(first["whole"]["teachers"]) == {f"{S} {name}" for name in script.teachers[S]}
        assert first["events"][-1]["kind"] == "assigned"
        script.kill(S, "p4-01-2")
        for message in islice(stream, 40):
            lost = message["changes"].get("teachers", {}).get(f"{S} p4-01-2", {})
            if lost.get("state") == "lost":
                assert "lost" in [event["kind"] for event in message["events"]]
                return
    raise AssertionError("the death did not reach the page")


def test_pages_share_one_reading(serve: Serve, script: ScriptedMesh) -> None:
    readings = 0
    status = script.status

    def counted() -> pb.MeshStatus:
        nonlocal readings
        readings += 1
        return status()

    script.status = counted  # type: ignore[method-assign]
    url = serve()
    assert readings == 0  # nobody looks
    streams = [messages(url) for _ in range(6)]
    for stream in streams:
        assert "whole" in next(stream)
    began_s, before = time.monotonic(), readings
    for stream in streams:
        next(stream)
    intervals = (time.monotonic() - began_s) / feed.FAST_S  # one, unless we were kept from it
    assert readings - before <= max(2, 1.5 + intervals)
    for stream in streams:
        stream.close()


def test_a_registry_that_is_away_is_said_and_comes_back(serve: Serve, script: ScriptedMesh) -> None:
    status = script.status
    with closing(messages(serve())) as stream:
        next(stream)

        def away() -> pb.MeshStatus:
            raise RegistryUnavailable("Redis does not answer")

        script.status = away  # type: ignore[method-assign]
        assert any(m["error"] == "Redis does not answer" for m in islice(stream, 40))
        script.status = status  # type: ignore[method-assign]
        assert any(m["error"] == "" for m in islice(stream, 40))


def test_without_tokens_the_page_is_read_only(serve: Serve, script: ScriptedMesh) -> None:
    url = serve(gate=Gate(None))
    assert httpx.get(f"{url}api/access").json() == {
        "guarded": False,
        "tokens": False,
        "known": False,
        "view": True,
        "drain": False,
    }
    answer = httpx.post(f"{url}api/drain", json=DRAIN, headers=bearer("anything"))
    assert answer.status_code == 403
    assert "--tokens" in answer.json()["error"]
    assert script.drained == []


def test_a_drain_needs_an_administrators_token(
    serve: Serve, script: ScriptedMesh, gate: Gate
) -> None:
    url = serve(gate=gate)
    drain = f"{url}api/drain"
    assert next(messages(url))["whole"]  # looking is free on this machine
    assert httpx.post(drain, json=DRAIN).status_code == 401
    assert httpx.post(drain, json=DRAIN, headers=bearer("wrong")).status_code == 401
    assert httpx.post(drain, json=DRAIN, headers=bearer(VIEWER)).status_code == 403
    assert httpx.post(drain, params={"token": ADMIN}, json=DRAIN).status_code == 401
    assert script.drained == []
    assert httpx.post(drain, json=DRAIN, headers=bearer(ADMIN)).status_code == 200
    assert script.drained == [(S, "p4-01-1")]
    assert httpx.get(f"{url}api/access", headers=bearer(ADMIN)).json()["drain"] is True
    assert httpx.get(f"{url}api/access", headers=bearer(VIEWER)).json()["drain"] is False


def test_a_drain_of_nobody_says_so(serve: Serve, gate: Gate) -> None:
    answer = httpx.post(
        f"{serve(gate=gate)}api/drain",
        json=DRAIN | {"teacher": "nobody"},
        headers=bearer(ADMIN),
    )
    assert answer.status_code == 400
    assert answer.json()["error"] == "there is no teacher nobody of service resnet101"


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"", "application/json"),
        (b"{", "application/json"),
        (b"[" * 4000, "application/json"),
        (b'{"service": 1, "teacher": "t"}', "application/json"),
        (b'{"service": "", "teacher": ""}', "application/json"),
        (b" " * 5000, "application/json"),
        (b"service=resnet101&teacher=p4-01-1", "application/x-www-form-urlencoded"),
        (b'{"service": "resnet101", "teacher": "p4-01-1"}', "text/plain"),
    ],
)
def test_a_malformed_drain_is_refused(
    serve: Serve, script: ScriptedMesh, gate: Gate, body: bytes, kind: str
) -> None:
    headers = bearer(ADMIN) | {"Content-Type": kind}
    answer = httpx.post(f"{serve(gate=gate)}api/drain", content=body, headers=headers)
    assert answer.status_code == 400
    assert answer.json()["error"]
    assert script.drained == []


def test_beyond_this_machine_looking_needs_a_token_too(serve: Serve, gate: Gate) -> None:
    url = serve("0.0.0.0:0", gate=gate)
    assert httpx.get(url).status_code == 200  # the page itself, which asks for the token
    assert httpx.get(f"{url}api/access").json()["view"] is False
    assert httpx.get(f"{url}api/feed").status_code == 401
    assert httpx.get(f"{url}api/feed", headers=bearer("student-token-here")).status_code == 403
    with closing(messages(url, VIEWER)) as stream:
        assert next(stream)["whole"]


def test_beyond_this_machine_it_wants_tokens_or_a_word(script: ScriptedMesh) -> None:
    for gate in (None, Gate(None)):
        with pytest.raises(UsageError, match="--insecure"):
            WebServer(script, "0.0.0.0:0", gate)


def test_it_says_when_a_port_is_taken(serve: Serve, script: ScriptedMesh) -> None:
    taken = urlsplit(serve()).port
    with pytest.raises(AddressInUse):
        WebServer(script, str(taken))


def test_a_name_of_elsewhere_is_refused_on_loopback(serve: Serve) -> None:
    url = serve()
    for host in ("evil.example", "evil.example:80", "", "127.0.0.1.evil.example"):
        assert httpx.get(f"{url}api/access", headers={"Host": host}).status_code == 421
    for host in ("localhost", "localhost:7500", "127.0.0.1:1", "[::1]:80"):
        assert httpx.get(f"{url}api/access", headers={"Host": host}).status_code == 200


def test_no_token_is_ever_logged(
    serve: Serve, gate: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    logging.getLogger("httpx").setLevel(logging.CRITICAL)  # the client's own lines
    url = serve(gate=gate)
    httpx.post(f"{url}api/drain", json=DRAIN, headers=bearer(ADMIN))
    httpx.post(f"{url}api/drain", json=DRAIN, headers=bearer("wrong-token"))
    assert ADMIN not in caplog.text
    assert "wrong-token" not in caplog.text


def test_too_many_pages_are_refused_in_words(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "MAX_VIEWERS", 2)
    url = serve()
    streams = [messages(url) for _ in range(2)]
    for stream in streams:
        next(stream)
    answer = httpx.get(f"{url}api/feed")
    assert (answer.status_code, "close one" in answer.text) == (429, True)
    for stream in streams:
        stream.close()


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET",
        b"\0" * 100,
        b"\x16\x03\x01" + bytes(300),
        b"GET / HTTP/1.1\r\nhost: 127.0.0.1\r\nx: " + b"y" * 200_000,
        b"POST /api/drain HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: -1\r\n\r\n",
        b"POST /api/drain HTTP/1.1\r\nhost: 127.0.0.1\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        random.Random(7).randbytes(2048),
    ],
    ids=lambda garbage: repr(garbage[:10]),
)
def test_garbage_hurts_nobody_else(serve: Serve, garbage: bytes) -> None:
    url = serve()
    with socket.create_connection(("127.0.0.1", urlsplit(url).port or 0), timeout=5) as connection:
        try:
            connection.sendall(garbage)
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(1 << 16):
                pass
        except OSError:
            pass  # it need not hear us out
    assert httpx.get(f"{url}api/access").status_code == 200


def test_who_says_nothing_is_not_waited_for(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_REQUEST_S", 0.2)
    url = serve()
    with socket.create_connection(("127.0.0.1", urlsplit(url).port or 0), timeout=5) as connection:
        assert connection.recv(1) == b""


def test_it_ends_at_once_while_pages_are_open(script: ScriptedMesh) -> None:
    page = WebServer(script, "0")
    url = page.start()
    seen = threading.Event()
    ended = threading.Event()

    def look() -> None:
        for _ in messages(url):
            seen.set()
        ended.set()

    viewer = threading.Thread(target=look)
    viewer.start()
    assert seen.wait(5)
    page.stop()
    page.stop()
    assert ended.wait(5)
    viewer.join()


def test_a_large_mesh_is_read_less_often() -> None:
    assert feed.interval_s(600) == feed.FAST_S
    assert feed.FAST_S < feed.interval_s(6_000) < feed.SLOW_S
    assert feed.interval_s(1_000_000) == feed.SLOW_S


def test_500_teachers_twice_a_second_are_cheap(script: ScriptedMesh) -> None:
    page = WebServer(ScriptedMesh(500, 30, services=2), "0")
    url = page.start()
    try:
        with closing(messages(url)) as stream:
            whole = len(str(next(stream)))
            change = max(len(str(message["changes"])) for message in islice(stream, 3))
    finally:
        page.stop()
    assert change < whole / 4
    assert whole < 400_000
