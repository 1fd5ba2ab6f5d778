"""Who may call a service manager: roles and tokens, each for what it is made out to."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from edl.proto import coordinator_pb2 as pb
from edl.proto.security import ServerSecurity
from edl.tests.coordinator.calls import (
    ask,
    end_of,
    next_assignment,
    open_stream,
    report,
    subscribe,
)
from edl.tests.coordinator.scripted_manager import Served, served
from edl.tests.proto.security.authority import write_secret

TOKENS = """
# what each may do
student everyjob
student:j onejob
viewer:eye looking
admin:root ruling
"""


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    tokens = write_secret(tmp_path_factory.mktemp("tokens") / "tokens", TOKENS)
    with served(security=ServerSecurity(None, tokens)) as mesh:
        mesh.registry.register("teachers", "s", "t1", {"incarnation": "1"}, 600.0)
        yield mesh


@pytest.fixture(autouse=True)
def nothing_refused_yet(request: pytest.FixtureRequest) -> None:
    if "guarded" in request.fixturenames:
        request.getfixturevalue("guarded").refused.clear()


def bearer(token: str) -> list[tuple[str, str]]:
    return [("authorization", f"Bearer {token}")] if token else []


REQUESTS = {
    "Status": pb.StatusRequest(),
    "Watch": pb.WatchRequest(),
    "Drain": pb.DrainRequest(teacher_id="t1"),
    "Upgrade": pb.UpgradeRequest(service="s", content_id="c2", at="now"),
    "Deploy": pb.DeployRequest(
        service="s", model_url="s3://bucket/model", content_id="0" * 64, min=1, max=1
    ),
}


@pytest.mark.parametrize(
    ("token", "allowed"),
    [
        ("onejob", []),
        ("everyjob", []),
        ("looking", ["Status", "Watch"]),
        ("ruling", ["Status", "Watch", "Drain", "Upgrade", "Deploy"]),
    ],
)
def test_a_role_may_do_what_is_its_own(guarded: Served, token: str, allowed: list[str]) -> None:
    ended = {
        method: ask(guarded.address, method, request, metadata=bearer(token))[0]
        for method, request in REQUESTS.items()
    }
    # As one message it may be that a log has none, or several.
    assert [m for m, code in ended.items() if code != "PERMISSION_DENIED"] == allowed
    assert guarded.refused == ["forbidden"] * (len(REQUESTS) - len(allowed))


@pytest.mark.parametrize("token", ["", "wrong", "ruling2"])
def test_without_a_token_that_is_known_nothing_is_answered(guarded: Served, token: str) -> None:
    ended = [
        ask(guarded.address, method, request, metadata=bearer(token))[0]
        for method, request in REQUESTS.items()
    ]
    ended.append(subscribe(guarded.address, report(), metadata=bearer(token))[0])
    assert ended == ["UNAUTHENTICATED"] * 6
    assert guarded.refused == ["unauthenticated"] * 6


@pytest.mark.parametrize(
    ("token", "student", "code"),
    [("onejob", "j/0", ""), ("onejob", "k/0", "PERMISSION_DENIED"), ("everyjob", "k/0", "")],
)
def test_a_credential_for_one_job_is_for_no_other(
    guarded: Served, token: str, student: str, code: str
) -> None:
    sent = report(student_id=student)
    with open_stream(guarded.address, sent, metadata=bearer(token)) as (call, _):
        if code:
            assert end_of(call)[0] == code
            assert guarded.refused == ["forbidden"]
        else:
            next_assignment(call)
            assert not guarded.refused


def test_one_that_may_not_call_is_refused_before_it_is_read(guarded: Served) -> None:
    code, _ = ask(guarded.address, "Status", b"\xff" * (4 << 20), metadata=bearer("wrong"))
    assert code == "UNAUTHENTICATED"
    assert guarded.refused == ["unauthenticated"]
