"""The trainers that tests start do not outlive a test run that is killed."""

from __future__ import annotations

from pathlib import Path

import psutil

from edl.supervise import start
from edl.tests.ground.programs import python, wait_gone
from edl.tests.scripted_teacher import ScriptedTeacher

#: A test run that starts a trainer, and is killed before it can stop it.
RUN = """
    import sys
    from edl.supervise import python_command, start
    trainer = start(python_command("trainer", *sys.argv[1:]))
    trainer.expect("^trains$", 60)
    print("trainer", trainer.pid, flush=True)
    trainer.wait()
"""


def test_a_trainer_and_its_engine_end_with_the_run_that_started_them(tmp_path: Path) -> None:
    teacher = ScriptedTeacher()
    program = "edl.tests.distill_reader.traced_program"
    run = start(python(RUN, program, teacher.address, tmp_path / "trace.json"))
    try:
        trainer = psutil.Process(int(run.expect(r"^trainer (\d+)", 60)[1]))
        family = [trainer.pid, *(child.pid for child in trainer.children(recursive=True))]
        assert len(family) >= 2, "an engine"
        run.kill()
        wait_gone(family)
    finally:
        run.stop()
        teacher.stop()


def test_every_program_ends_with_its_parent() -> None:
    """Those that `supervise` starts; the others end with their input, or look who it is."""
    programs = Path(__file__).parent.glob("*_program.py")
    without = [path.name for path in programs if "end_with_parent()" not in path.read_text()]
    assert not without
