"""`edl checkpoint verify` as a process: what it prints where, and its exit codes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from edl.student.checkpoint import Repository
from edl.tests.student.checkpoint.samples import contents_of

LIMIT_S = 60


def edl(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-m", "edl", "checkpoint", *map(str, arguments)]
    environment = {**os.environ, "COLUMNS": "200"}
    return subprocess.run(
        command, capture_output=True, text=True, timeout=LIMIT_S, check=False, env=environment
    )


def test_a_damaged_checkpoint_is_named_with_exit_code_65(tmp_path: Path) -> None:
    repository = Repository(str(tmp_path))
    for step in (1, 2):
        repository.save(contents_of(step))
    assert edl("verify", tmp_path).returncode == 0
    file = tmp_path / "step-000000000002" / "optimizer.safetensors"
    file.write_bytes(b"x" * file.stat().st_size)
    done = edl("verify", tmp_path)
    assert done.returncode == 65
    assert "step-000000000002 is damaged: optimizer.safetensors" in done.stdout
    assert done.stderr == "edl: 1 of 2 checkpoints are damaged\n"
