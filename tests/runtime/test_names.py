"""`tests/check_names.py` finds each kind of fault, and only these."""

from __future__ import annotations

from pathlib import Path

from edl.tests.check_names import faults


def _package(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_names_twice_and_replaced_names_are_found(tmp_path: Path) -> None:
    files = {
        "mesh/a.py": "class Twice: ...\nclass Vigil: ...",
        "student/b.py": "class Twice: ...",
        "teacher/telling.py": "",
        "benchmarks/lanes/__init__.py": "",
    }
    found = faults(_package(tmp_path, files))
    assert [line.partition(";")[0] for line in found] == [
        "benchmarks/lanes/__init__.py: lanes was replaced",
        "mesh/a.py:Vigil: Vigil was replaced",
        "teacher/telling.py: telling was replaced",
        "mesh/a.py:1 and student/b.py:1: classes of one name, Twice",
    ]


def test_what_may_repeat(tmp_path: Path) -> None:
    own = "class _Vigil: ...\nclass Outer:\n    class Twice: ..."
    files = {
        "mesh/cli.py": own + "\nclass Twice: ...",
        "student/cli.py": "class _Vigil: ...",
        "proto/x_pb2.py": "class Twice: ...",
        "tests/cli.py": "class Twice: ...",
        "mesh/kubernetes/resources.py": "class Kind: ...",
    }
    assert faults(_package(tmp_path, files)) == []
