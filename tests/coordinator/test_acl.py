"""Rules of Redis users: what they name, and that the files which are shipped are made of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from edl.coordinator.registry import acl
from edl.errors import UsageError

FOLDER = Path(__file__).parents[2] / "deploy" / "redis"
EXAMPLE = "resnet101"


def test_the_example_is_what_the_code_makes() -> None:
    text = (FOLDER / "users.acl").read_text("utf-8")
    assert [line for line in text.splitlines() if line] == [acl.NO_DEFAULT, *acl.rules(EXAMPLE)]


def test_the_readme_names_each_file_and_user() -> None:
    text = (FOLDER / "README.md").read_text("utf-8")
    for file in FOLDER.iterdir():
        assert file.name == "README.md" or file.name in text
    for user in acl.users(EXAMPLE):
        assert user in text


def test_a_password_is_written_as_its_hash() -> None:
    lines = acl.rules("s", {acl.READER: "secret"})
    assert len(lines) == len(acl.users("s"))
    assert not any("secret" in line for line in lines)
    reader = next(line for line in lines if line.startswith(f"user {acl.READER} "))
    assert "#2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b" in reader
    assert sum(acl.PLACEHOLDER in line for line in lines) == len(lines) - 1


def test_a_teacher_has_no_key_of_another_service() -> None:
    line = acl.rules("s")[0]
    patterns = [word.strip("()") for word in line.split() if "~" in word]
    assert {p for p in patterns if "{s}" not in p} == {"%W~edl:services"}
    assert acl.teacher("other") not in line


@pytest.mark.parametrize("service", ["", "a b", "s\nuser evil on nopass ~* +@all", "x~*"])
def test_a_service_that_could_mean_something_else_is_refused(service: str) -> None:
    with pytest.raises(UsageError):
        acl.rules(service)
