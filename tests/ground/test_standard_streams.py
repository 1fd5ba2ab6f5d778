"""What a program prints comes in whole lines, whoever writes to the same pipe."""

from __future__ import annotations

import pytest

from edl.supervise import start

from .programs import WAIT_S, python

PRINTING = """
    import os, sys
    from edl.standard_streams import write_whole_lines

    if "whole" in sys.argv:
        write_whole_lines()
    file = {"1": sys.stdout, "2": sys.stderr}[sys.argv[1]]
    print("half", end=" ", file=file)
    os.write(1, b"another's\\n")
    print("a line", file=file)
    os._exit(0)
"""


@pytest.mark.parametrize("stream", [1, 2])
def test_a_line_goes_out_at_once_and_in_one_piece(stream: int) -> None:
    process = start(python(PRINTING, stream, "whole"))
    assert process.wait(WAIT_S) == 0
    assert process.tail() == ["another's", "half a line"]


def test_without_that_it_goes_out_word_by_word() -> None:
    process = start(python(PRINTING, 1))
    assert process.wait(WAIT_S) == 0
    assert process.tail() == ["half another's", "a line"]


def test_a_command_line_prints_whole_lines() -> None:
    process = start(
        python(
            """
            import os, typer
            from edl.lifecycle import run_cli

            app = typer.Typer(add_completion=False)

            @app.command()
            def show() -> None:
                print("half", end=" ")
                os.write(1, b"another's\\n")
                print("a line")

            run_cli(app)
            """
        )
    )
    assert process.wait(WAIT_S) == 0
    assert process.tail() == ["another's", "half a line"]
