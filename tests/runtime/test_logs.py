"""Log records are one line each, as text or as JSON, and say what they are of."""

from __future__ import annotations

import json
import signal
from typing import Any

import pytest

from edl.runtime.errors import UsageError
from edl.runtime.logs import FORMAT_VARIABLE, LEVEL_VARIABLE, configure_logging
from edl.runtime.supervise import Process, python_command, start
from edl.tests.runtime.programs import WAIT_S, python

PROGRAM = """
    import logging
    from edl.runtime.logs import Fields, add_log_fields, configure_logging, print_progress
    configure_logging()
    add_log_fields(job="digits")
    log = logging.getLogger("edl.x")
    log.debug("detail")
    for library in ("grpc._cython.cygrpc", "asyncio"):
        logging.getLogger(library).debug("chatter")
    log.info("asked", extra={"teacher": "t1", "batches": [5]})
    log.info("it says %s", "\\x1b[2J")
    log.info(Fields(status="OK", samples=3))
    print_progress("loading")
    try:
        raise ValueError("two" + chr(10) + "lines")
    except ValueError:
        log.exception("it %s", "failed")
"""


def logged(**env: str) -> list[str]:
    process = start(python(PROGRAM, env=env))
    process.wait(WAIT_S)
    return process.tail()


def test_text_is_one_line_for_each_record() -> None:
    asked, steering, fields, told, failed = logged()
    assert asked.endswith("INFO edl.x: asked")
    assert steering.endswith(r"INFO edl.x: it says \x1b[2J")
    assert fields.endswith('INFO edl.x: {"status": "OK", "samples": 3}')
    assert told == "loading"
    assert failed.endswith("ERROR edl.x: it failed (ValueError: two | lines)")
    assert logged(**{LEVEL_VARIABLE: "debug"})[0].endswith("DEBUG edl.x: detail")


def test_json_has_what_a_record_is_of_in_fields_of_their_own() -> None:
    asked, steering, fields, told, failed = map(json.loads, logged(**{FORMAT_VARIABLE: "json"}))
    assert asked.pop("time").endswith("+00:00")
    about = {"level": "INFO", "logger": "edl.x", "job": "digits"}
    assert asked == {**about, "teacher": "t1", "batches": [5], "message": "asked"}
    assert steering["message"] == "it says \x1b[2J"
    assert fields["status"] == "OK"
    assert (told["level"], told["message"]) == ("INFO", "loading")
    assert failed["error"] == "ValueError: two\nlines"
    assert "traceback" not in failed
    debug = {FORMAT_VARIABLE: "json", LEVEL_VARIABLE: "debug"}
    verbose = [json.loads(line) for line in logged(**debug)]
    assert verbose[0]["message"] == "detail"
    assert "Traceback" in verbose[-1]["traceback"]


@pytest.mark.parametrize(("level", "count"), [("debug", 6), ("WARNING", 1), ("", 5)])
def test_the_level_comes_from_the_environment(level: str, count: int) -> None:
    lines = logged(**{LEVEL_VARIABLE: level, FORMAT_VARIABLE: "json"})
    assert len(lines) == count


def test_another_level_or_format_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable, words in (
        (LEVEL_VARIABLE, "debug, .* critical"),
        (FORMAT_VARIABLE, "text or json"),
    ):
        monkeypatch.setenv(variable, "xml")
        with pytest.raises(UsageError, match=f"{variable} expects {words}, got 'xml'"):
            configure_logging()


STUDENT = """
    import numpy as np
    from edl.distill_reader import DistilReader
    batches = [(np.ones((2, 4), np.float32),)] * 3
    with DistilReader(batches, service="s", teachers=[{address!r}], job="digits") as reader:
        for _ in reader:
            pass
"""


@pytest.mark.system
def test_a_batch_can_be_followed_from_its_student_to_a_teacher() -> None:
    env = {FORMAT_VARIABLE: "json", LEVEL_VARIABLE: "debug"}
    model = "edl.tests.teacher.functions:steered"
    own = ("--service", "s", "--teacher-id", "t1", "--metrics-listen", "0")
    teacher = start(
        python_command("teacher", "edl.teacher", "serve", "--model", model, *own, env=env)
    )
    try:
        address = teacher.expect(r"^teacher ready: t1 s on (\S+)$", WAIT_S).group(1)
        student = start(python(STUDENT.format(address=address), env=env))
        assert student.wait(WAIT_S) == 0
        asked = [one for one in records(student) if one.get("batches") == [1]]
        (request,) = {one["request"] for one in asked if "request" in one}
        assert {one["student"] for one in asked} == {"digits/0"}
        assert asked[-1]["message"] == "batch 1 has its labels"
    finally:
        teacher.send_signal(signal.SIGTERM)
        teacher.wait(WAIT_S)
        teacher.stop()
    lines = [line for line in teacher.tail(500) if not line.startswith("teacher ready: ")]
    told = [one.get("message", "") for one in map(json.loads, lines)]
    begin = ("metrics on", "loading", "warming up", "self-test passed", "HTTP on", "draining")
    assert all(any(line.startswith(words) for line in told) for words in begin), told
    (answered,) = (one for one in records(teacher) if one.get("request") == request)
    assert (answered["teacher"], answered["status"], answered["samples"]) == ("t1", "OK", 2)


def records(process: Process) -> list[dict[str, Any]]:
    return [json.loads(line) for line in process.tail(500) if line.startswith("{")]
