"""Who may ask over HTTP: web pages, tokens, certificates."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from edl.proto.security import ServerSecurity
from edl.tests.proto.security.authority import Authority, write_secret
from edl.tests.teacher.bench import Bench
from edl.tests.teacher.bench_http import INFER, ask, infer, refused, rows

GATED = [
    ("GET", "/v2"),
    ("GET", "/v2/models/resnet"),
    ("GET", "/v2/models/resnet/ready"),
    ("GET", "/v2/models/resnet/stats"),
    ("GET", "/v2/models/stats"),
    ("POST", "/v2/repository/index"),
    ("GET", "/v2/systemsharedmemory/status"),
    ("POST", "/v2/systemsharedmemory/unregister"),
    ("POST", "/v2/systemsharedmemory/region/r/register"),
    ("POST", INFER),
]


@pytest.mark.parametrize(
    ("headers", "status"),
    [({"Origin": "http://elsewhere.example"}, 403), ({"Host": "elsewhere.example"}, 421)],
)
def test_web_pages_are_kept_out(bench: Bench, headers: dict[str, str], status: int) -> None:
    refused(infer(bench, rows(), **headers), status)
    assert bench.labeller.backend.runs == []


@pytest.fixture
def tokens(tmp_path: Path) -> ServerSecurity:
    lines = "student:resnet s3cret\nviewer:grafana l00k\n"
    return ServerSecurity(tokens_file=write_secret(tmp_path / "tokens", lines))


def test_without_a_token_nothing_is_told_but_health(
    make: Callable[..., Bench], tokens: ServerSecurity
) -> None:
    bench = make(security=tokens)
    for number, (method, path) in enumerate(GATED, start=1):
        answer = ask(bench, method, path)
        assert "no token came with the call" in refused(answer, 401)
        assert answer.headers["www-authenticate"] == "Bearer"
        assert bench.refused("unauthenticated") == number
    assert ask(bench, "GET", "/v2/health/live").status_code == 200
    assert ask(bench, "GET", "/v2/health/ready").status_code == 200


def test_a_student_is_served_and_a_viewer_may_only_look(
    make: Callable[..., Bench], tokens: ServerSecurity
) -> None:
    bench = make(security=tokens)
    assert infer(bench, rows(), Authorization="Bearer s3cret").status_code == 200
    viewer = {"Authorization": "Bearer l00k"}
    assert ask(bench, "GET", "/v2/models/resnet", headers=viewer).status_code == 200
    assert "viewer:grafana" in refused(infer(bench, rows(), **viewer), 403)
    assert bench.refused("forbidden") == 1


def test_tls_asks_for_a_certificate_where_there_is_a_ca(
    make: Callable[..., Bench], tmp_path: Path
) -> None:
    import ssl

    authority = Authority(tmp_path)
    bench = make(security=ServerSecurity(authority.issue("server")))
    for name, status in (("student:resnet", 200), ("viewer:grafana", 403)):
        files = authority.issue(name.replace(":", "-"), name)
        context = ssl.create_default_context(cafile=str(files.ca))
        assert files.certificate is not None
        context.load_cert_chain(files.certificate, files.key)
        answer = ask(bench, "POST", INFER, json=rows(), verify=context)
        assert answer.status_code == status, answer.text
    import httpx

    nobody = ssl.create_default_context(cafile=str(files.ca))
    with pytest.raises((httpx.ConnectError, httpx.ReadError, httpx.RemoteProtocolError)):
        ask(bench, "POST", INFER, json=rows(), verify=nobody)
