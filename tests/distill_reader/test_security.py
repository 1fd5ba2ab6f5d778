"""What the reader shows teachers, and what it does about those that do not let it in."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from edl.distill_reader import DistilReader
from edl.distill_reader.config import ReaderConfig, security_of
from edl.distill_reader.engine.teacher_link import pause_after
from edl.errors import (
    NoTeacherAvailable,
    RateLimited,
    RetryableError,
    Unauthenticated,
    UsageError,
)
from edl.proto.security import ServerSecurity
from edl.scheduler.probing import FULL_PAUSE_S, REFUSED_PAUSE_S
from edl.tests.distill_reader.test_reader import Batches, check_epoch, until
from edl.tests.proto.security.authority import Authority, write_secret
from edl.tests.scripted_teacher import ScriptedTeacher

SOURCE = Batches(20)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture
def guarded(authority: Authority, tmp_path: Path) -> Iterator[ScriptedTeacher]:
    """A teacher that asks for a certificate and a token."""
    tokens = write_secret(tmp_path / "tokens", "student good-token\n")
    security = ServerSecurity(authority.issue("teacher"), tokens)
    teacher = ScriptedTeacher(security=security)
    yield teacher
    teacher.stop()


@pytest.fixture
def open_teacher() -> Iterator[ScriptedTeacher]:
    teacher = ScriptedTeacher()
    yield teacher
    teacher.stop()


def reader_of(
    authority: Authority, token: Path, *teachers: ScriptedTeacher, timeout_s: float = 15.0
) -> DistilReader:
    files = authority.issue("student", "student:job")
    return DistilReader(
        SOURCE,
        service="s",
        teachers=[teacher.address for teacher in teachers],
        tls_ca=files.ca,
        tls_cert=files.certificate,
        tls_key=files.key,
        token_file=token,
        wait_timeout_s=timeout_s,
    )


def test_certificate_and_token_let_the_reader_in(
    authority: Authority, guarded: ScriptedTeacher, tmp_path: Path
) -> None:
    token = write_secret(tmp_path / "token", "good-token\n")
    with reader_of(authority, token, guarded) as reader:
        check_epoch(SOURCE, list(reader))
        assert reader.stats.resends == 0


def test_a_wrong_token_is_told_in_words_and_mended_by_a_new_one(
    authority: Authority, guarded: ScriptedTeacher, tmp_path: Path
) -> None:
    token = write_secret(tmp_path / "token", "bad-token\n")
    with reader_of(authority, token, guarded, timeout_s=3.0) as reader:
        until(lambda: reader.stats.want > 1)  # it has been refused
        with pytest.raises(NoTeacherAvailable, match="does not let this reader in"):
            list(reader)
        assert guarded.requests == 0
    with reader_of(authority, token, guarded) as reader:
        iterator = iter(reader)
        until(lambda: bool(reader.stats.want))
        write_secret(token, "good-token\n")
        check_epoch(SOURCE, list(iterator))


def test_no_batch_is_blamed_for_a_teacher_that_refuses_the_reader(
    open_teacher: ScriptedTeacher,
) -> None:
    def refuse(request: object) -> dict[str, object]:
        raise Unauthenticated("no token")

    closed = ScriptedTeacher(refuse)  # type: ignore[arg-type]
    try:
        addresses = [closed.address, open_teacher.address]
        with DistilReader(SOURCE, service="s", teachers=addresses) as reader:
            check_epoch(SOURCE, list(reader))
        assert closed.requests <= reader.config.window, "it is asked rarely"
    finally:
        closed.stop()


def test_it_is_asked_again_after_seconds_not_at_once() -> None:
    assert pause_after(Unauthenticated("no"), 0) == REFUSED_PAUSE_S
    assert pause_after(RetryableError("busy"), 0) == 0.0


def test_a_teacher_that_is_full_is_asked_again_when_it_says() -> None:
    for failures in (0, 7):
        assert pause_after(RateLimited("full", 0.25), failures) == 0.25
    assert pause_after(RateLimited("full", 1e6), 0) == FULL_PAUSE_S
    assert pause_after(RateLimited("full"), 0) == 0.0


def test_only_file_names_travel_to_the_engine(authority: Authority, tmp_path: Path) -> None:
    token = write_secret(tmp_path / "token", "very-secret\n")
    security = security_of(authority.ca, None, None, token)
    config = ReaderConfig("s", teachers=("127.0.0.1:9",), security=security)
    assert ReaderConfig.from_json(config.to_json()) == config
    assert "very-secret" not in str(config.to_json())


@pytest.mark.parametrize("option", ["tls_ca", "tls_cert", "tls_key", "token_file"])
def test_a_file_that_does_not_exist_is_told_at_once(option: str) -> None:
    with pytest.raises(UsageError, match="no file 'nowhere"):
        DistilReader(SOURCE, service="s", teachers=["x:1"], **{option: "nowhere.pem"})  # type: ignore[arg-type]
