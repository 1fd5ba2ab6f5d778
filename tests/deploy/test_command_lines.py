"""The check of commands in deployment files lets pass what works, and nothing else."""

from __future__ import annotations

import pytest

from edl.tests.deploy.command_lines import WrongCommand, check, is_ours


@pytest.mark.parametrize(
    "command",
    [
        "edl --version",
        "edl coordinator serve --help",
        "/opt/edl/bin/edl coordinator serve --redis rediss://m@redis:6379 --port 7010",
        "edl-teacher serve --model m --service s",
        "python -P -m edl.teacher serve --model m",
        "edl agent --devices cpu --ttl 6",
        "edl student train job.py --nodes 1:4 --coordinator redis://redis",
    ],
)
def test_commands_that_work(command: str) -> None:
    check(command.split())


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("edl coordinator serve --reddis redis://x", "--reddis"),
        ("edl coordinator serve --port seven", "seven"),
        ("edl coordinator serve --port 70000", "70000"),
        ("edl coordinator server", "server"),
        ("edl coordinator", "not complete"),
        ("edl-teacher serve", "--model"),
        ("edl teacher serve --model m extra", "extra"),
        ("edl student train", "JOB.py"),
        ("edl drain --timeout 3", "--timeout"),
        ("sleep 3", "not a program"),
        ("python -m http.server", "not a program"),
    ],
)
def test_commands_that_do_not(command: str, says: str) -> None:
    with pytest.raises(WrongCommand, match=says):
        check(command.split())


def test_variables_count_as_options_do() -> None:
    values = check(["edl", "teacher", "serve"], {"EDL_MODEL": "m", "EDL_PORT": "8500", "TZ": "x"})
    assert (values["model"], values["port"]) == ("m", 8500)
    with pytest.raises(WrongCommand, match="EDL_MODELL"):
        check(["edl", "teacher", "serve", "--model", "m"], {"EDL_MODELL": "m"})
    with pytest.raises(WrongCommand, match="EDL_REDIS"):  # of another command
        check(["edl", "teacher", "serve", "--model", "m"], {"EDL_REDIS": "redis://x"})
    with pytest.raises(WrongCommand, match="EDL_PORT"):
        check(["edl", "teacher", "serve", "--model", "m"], {"EDL_PORT": "many"})


def test_variables_of_this_process_are_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDL_MODEL", "m")
    with pytest.raises(WrongCommand, match="--model"):
        check(["edl", "teacher", "serve"])


def test_whose_program_it_is() -> None:
    assert is_ours(["/opt/edl/bin/edl"])
    assert is_ours(["python3.12", "-m", "edl"])
    assert not is_ours(["redis-server"])
    assert not is_ours([])
