"""`tests/kubernetes/real_apiserver.sh` says what it lacks, and is then no pass."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "kubernetes" / "real_apiserver.sh"


def test_without_the_programs_it_says_which_are_missing() -> None:
    run = subprocess.run(
        [SCRIPT],
        env={"PATH": "/usr/bin:/bin", "ETCD": "no-etcd", "KUBE_APISERVER": "no-apiserver",
             "PYTHON": sys.executable},
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert run.returncode == 77
    for words in ("NOT RUN", "etcd (ETCD=no-etcd)", "KUBE_APISERVER=no-apiserver"):
        assert words in run.stderr
    assert run.stdout == ""
