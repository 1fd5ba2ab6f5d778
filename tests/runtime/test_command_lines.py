"""How command lines and servers end: lines of text, exit codes, signals, tracebacks."""

from __future__ import annotations

import random
import signal
import tomllib
from pathlib import Path

import pytest

from edl.runtime.supervise import Command, Process, start
from edl.tests.runtime.programs import WAIT_S, python, ran

pytestmark = pytest.mark.system

ROOT = Path(__file__).parents[2]

CLI = """
    import sys, typer
    from edl.runtime.errors import RedisUnavailable
    from edl.runtime.lifecycle import run_cli

    app = typer.Typer(no_args_is_help=True, add_completion=False)
    errors = {
        "unavailable": RedisUnavailable("Redis at redis://x does not answer"),
        "control": RedisUnavailable("a teacher says: \\x1b[2J"),
        "defect": ValueError("two"),
        "lost": BrokenPipeError("the peer has gone"),
        "exit": typer.Exit(1),
    }

    @app.command()
    def fail(error: str) -> None:
        raise errors[error]

    @app.command()
    def flood() -> None:
        while True:
            print("x" * 1000)

    @app.command()
    def poor() -> None:
        sys.modules["lmdb"] = None  # as if it were not installed
        import lmdb

    @app.command()
    def broken() -> None:
        import lmdb.nothing  # lmdb is installed and has no such module

    @app.command()
    def good(count: int = 0, wait: float = 0.0) -> None:
        print("good")

    def make() -> typer.Typer:
        return app
    run_cli(make if "defect" in sys.argv else app)
"""


def run(*args: str, **env: str) -> Process:
    process = start(python(CLI, *args, env=env))
    process.wait(WAIT_S)
    return process


@pytest.mark.parametrize(
    ("args", "code", "line"),
    [
        (["good"], 0, "good"),
        (["fail", "unavailable"], 69, "edl: Redis at redis://x does not answer"),
        (["fail", "control"], 69, r"edl: a teacher says: \x1b[2J"),
        (["fail", "defect"], 1, "edl: ValueError: two (EDL_DEBUG=1 shows where)"),
        (["fail", "lost"], 1, "edl: BrokenPipeError: the peer has gone (EDL_DEBUG=1 shows where)"),
        (["fail", "exit"], 1, None),
        (["poor"], 2, "edl: lmdb is not installed: "),
        (["broken"], 1, "edl: ModuleNotFoundError: No module named 'lmdb.nothing' ("),
        (["nope"], 2, "edl: No such command 'nope'."),
        (["good", "--nope"], 2, "edl: No such option: --nope"),
        (["good", "--count", "x"], 2, "edl: Invalid value for '--count': "),
        (["good", "--wait", "nan"], 2, "edl: Invalid value for '--wait': nan is not a finite "),
        (["good", "--wait=-inf"], 2, "edl: Invalid value for '--wait': -inf is not a finite "),
    ],
)
def test_command_line_prints_one_line_and_exits_with_its_code(
    args: list[str], code: int, line: str | None
) -> None:
    process = run(*args)
    assert len(process.tail()) == (line is not None)
    assert all(said.startswith(line or "") for said in process.tail())
    assert process.returncode == code


@pytest.mark.parametrize(
    ("args", "env"),
    [
        (["fail", "defect"], {"EDL_DEBUG": "1"}),
        (["fail", "unavailable"], {"EDL_LOG_LEVEL": "debug"}),
    ],
)
def test_the_traceback_is_shown_when_asked_for(args: list[str], env: dict[str, str]) -> None:
    lines = run(*args, **env).tail(100)
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[-1].startswith("edl: ")


def test_without_a_command_the_help_is_shown() -> None:
    process = run()
    assert process.returncode == 2
    assert "Usage:" in "\n".join(process.tail(50))


@pytest.mark.parametrize("amid", ["edl.runtime.lifecycle", "typer", "edl.teacher", "any"])
@pytest.mark.parametrize(
    ("name", "before"), [("edl", "default_int_handler"), ("edl-teacher", "SIG_IGN")]
)
def test_ctrl_c_while_a_command_is_still_imported_is_no_traceback(
    name: str, before: str, amid: str, rng: random.Random
) -> None:
    """Amid the import of that module, or of one of the first hundreds."""
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    module, _, function = scripts[name].partition(":")
    number = rng.randrange(1, 200) if amid == "any" else 0
    code = f"""
        import os, signal, sys
        class Interrupts:
            count = 0
            def find_spec(self, name, *_):
                self.count += 1
                if name == {amid!r} or self.count == {number}:
                    os.kill(os.getpid(), signal.SIGINT)
        signal.signal(signal.SIGINT, signal.{before})
        from {module} import {function}
        sys.argv[1:] = {["teacher"] if name == "edl" else []}
        sys.meta_path.insert(0, Interrupts())
        {function}()
    """
    assert ran(python(code)) == (130, [f"{name}: interrupted"])


@pytest.mark.parametrize("how", ["lost", "replaced"])
def test_ctrl_c_counts_also_if_an_import_in_a_command_swallows_it(how: str) -> None:
    code = """
        import os, signal, typer
        from edl.runtime.interrupts import exit_on_interrupt
        exit_on_interrupt("edl")
        from edl.runtime.lifecycle import run_cli, stop_on_signals
        app = typer.Typer(add_completion=False)

        @app.command()
        def serve(how: str) -> None:
            try:
                os.kill(os.getpid(), signal.SIGINT)
            except KeyboardInterrupt:
                if how == "replaced":
                    raise ImportError("numpy._core.umath failed to import") from None
            with stop_on_signals() as stop:
                stop.wait()

        run_cli(app)
    """
    assert ran(python(code, how)) == (130, ["edl: interrupted"])


def test_a_reader_that_has_enough_is_no_error() -> None:
    script = '"$@" | head -n 1; echo ${PIPESTATUS[0]}'
    argv = ("bash", "-c", script, "x", *python(CLI, "flood").argv)
    code, lines = ran(Command("pipe", argv, guard=True))
    assert (code, lines[1:]) == (0, ["141"])


@pytest.mark.parametrize(
    ("closed", "command", "code"),
    [
        (">&-", "good", 0),
        ("2>&-", "nope", 2),
        ("2>/dev/full", "nope", 2),
        ("<&- >&- 2>&-", "good", 0),
    ],
)
def test_a_closed_output_is_discarded(closed: str, command: str, code: int) -> None:
    script = f'"$@" {closed}; echo $? >&3'
    argv = ("bash", "-c", f"exec 3>&1; {script}", "x", *python(CLI, command).argv)
    assert ran(Command("closed", argv, guard=True)) == (0, [str(code)])


SERVER = """
    import sys, time
    from edl.runtime.lifecycle import stop_on_signals
    with stop_on_signals(second_signal_urgent="hurry" in sys.argv) as stop:
        print("ready")
        stop.wait()
        print("draining")
        while not stop.urgent:
            time.sleep(0.01)
        print("hurry")
        time.sleep(60)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("lines", [("ready", "draining"), ("ready", "draining", "hurry")])
def test_the_last_signal_ends_a_server_at_once(number: int, lines: tuple[str, ...]) -> None:
    process = start(python(SERVER, *lines))
    for line in lines:
        process.expect(line, WAIT_S)
        process.send_signal(number)
    assert process.wait(WAIT_S) == -number


def test_a_server_may_have_as_many_descriptors_as_its_system_lets_it() -> None:
    code = """
        import resource
        from edl.runtime.lifecycle import raise_descriptor_limit
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 200))
        raise_descriptor_limit()
        print(*resource.getrlimit(resource.RLIMIT_NOFILE))
    """
    assert ran(python(code)) == (0, ["200 200"])


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_command_line_prints_whole_lines(stream: str) -> None:
    code = """
        import os, sys, typer
        from edl.runtime.lifecycle import run_cli

        app = typer.Typer(add_completion=False)

        @app.command()
        def show(stream: str) -> None:
            file = getattr(sys, stream)
            print("half", end=" ", file=file)
            os.write(1, b"another's\\n")
            print("a line", file=file)

        run_cli(app)
    """
    assert ran(python(code, stream)) == (0, ["another's", "half a line"])
