"""Files of tokens: what they may hold, who may read them, and that nothing shows a token."""

from __future__ import annotations

from pathlib import Path

import pytest

from edl.errors import UsageError
from edl.proto.security.tokens import read_token, read_tokens

from .authority import write_secret

LIST = """
# who may call
plain-token
student:resnet  job-token   # only that job
viewer vvv
admin:ann aaa
"""


@pytest.fixture
def listed(tmp_path: Path) -> Path:
    return write_secret(tmp_path / "tokens", LIST)


@pytest.mark.parametrize(
    ("token", "who"),
    [
        ("plain-token", "student"),
        ("job-token", "student:resnet"),
        ("vvv", "viewer"),
        ("aaa", "admin:ann"),
    ],
)
def test_each_token_stands_for_somebody(listed: Path, token: str, who: str) -> None:
    assert str(read_tokens(listed).find(token)) == who


@pytest.mark.parametrize(
    "token", ["", "plain", "plain-token ", "Plain-token", "student:resnet", "#", "\ud800", "é"]
)
def test_nothing_else_does(listed: Path, token: str) -> None:
    assert read_tokens(listed).find(token) is None


def test_a_name_is_the_principal_and_else_the_token_is(tmp_path: Path) -> None:
    path = write_secret(tmp_path / "t", "one\ntwo\nstudent:a old\nstudent:a new\n")
    found = [read_tokens(path).find(token) for token in ("one", "two", "old", "new")]
    one, two, old, new = (caller.principal for caller in found if caller is not None)
    assert one != two
    assert old == new == "student:a"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "has no token in it"),
        ("# nothing\n\n", "has no token in it"),
        ("student a b", "line 1 .* has 3 words"),
        ("x\nroot abc", "line 2 .*'root' is no role: it is one of student, viewer, admin"),
        ("student: abc", "no name behind the colon"),
        ("abc\nadmin abc", "line 2 .*repeats a token"),
        ("a" * 5000, "more than 4096 characters"),
        ("a\x01b", "control character"),
        ("clé", "not ASCII"),
    ],
)
def test_a_list_that_cannot_be_meant_is_refused(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says) as caught:
        read_tokens(write_secret(tmp_path / "tokens", text))
    assert "abc" not in str(caught.value)


@pytest.mark.parametrize("mode", [0o604, 0o644, 0o606, 0o620, 0o602])
@pytest.mark.parametrize("read", [read_tokens, read_token])
def test_a_file_that_others_can_read_or_write_is_refused(
    tmp_path: Path, mode: int, read: object
) -> None:
    path = write_secret(tmp_path / "tokens", "abc")
    path.chmod(mode)
    with pytest.raises(UsageError, match=rf"mode is {mode:04o}.*chmod 600 {path}"):
        read(path)  # type: ignore[operator]


@pytest.mark.parametrize("mode", [0o600, 0o400, 0o440])
def test_a_file_of_its_owner_or_group_is_read(tmp_path: Path, mode: int) -> None:
    path = write_secret(tmp_path / "token", " abc\n")
    path.chmod(mode)
    assert read_token(path) == "abc"


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    for read in (read_token, read_tokens):
        with pytest.raises(UsageError, match=r"absent cannot be read: No such file"):
            read(tmp_path / "absent")
        with pytest.raises(UsageError, match=r"cannot be read: Is a directory"):
            read(tmp_path)


@pytest.mark.parametrize("text", ["", "a b", "admin abc"])
def test_a_client_has_one_token(tmp_path: Path, text: str) -> None:
    with pytest.raises(UsageError, match="must hold one token"):
        read_token(write_secret(tmp_path / "token", text))


def test_no_repr_shows_a_token(listed: Path) -> None:
    tokens = read_tokens(listed)
    shown = repr(tokens) + repr(tokens.entries)
    assert "4 of them" in shown
    assert not any(token in shown for token in ("plain-token", "job-token", "vvv", "aaa"))
