"""`examples/ctr.py` as a user runs it: log, teacher, mesh, two ranks with sparse embeddings."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from edl.mesh.local import LocalMesh, TeacherSpec
from edl.student import load_job
from edl.supervise import Command, start
from edl.teacher.backends.paddle_runtime import import_paddle
from edl.tests.examples.test_job_files import EXAMPLES

END_S = 100.0


@pytest.mark.timeout(240)
def test_two_ranks_learn_from_a_larger_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import_paddle()
    monkeypatch.setenv("CLICKS", str(tmp_path))
    module = load_job(EXAMPLES / "ctr.py").functions["model"].__globals__
    module["generate"](tmp_path, 1000)
    module["train_teacher"](tmp_path / "teacher")
    with LocalMesh() as mesh:
        mesh.add_teacher("t", TeacherSpec("ctr", str(tmp_path / "teacher")))
        argv = ["-P", "-m", "edl", "student", "train", str(EXAMPLES / "ctr.py"), "--steps", "6"]
        argv += ["--coordinator", mesh.url, "--ranks-per-node", "2", "--total-batch", "200"]
        node = start(
            Command("node", (sys.executable, *argv), env={"CLICKS": str(tmp_path)}, log=None)
        )
        try:
            told = node.expect(r"finished at step 6  log loss ([0-9.]+)", END_S)
            assert node.wait(END_S) == 0
        finally:
            node.stop()
    assert 0.1 < float(told[1]) < 1.0  # 0.69 knows nothing
