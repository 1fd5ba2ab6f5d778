"""What users get wrong when they train: one clear message each, at once, and nothing is lost."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from edl.supervise import Process
from edl.tests.system.redis_servers import redis_server
from edl.tests.system.student_nodes import END_S, JOB_FILE, START_S, Nodes

RAISES = 'def {function}({given}):\n    raise ValueError("not today")\n'
#: What is wrong -> lines behind those of a job file that works, and what the message has to say.
WRONG = {
    "model": (RAISES.format(function="model", given=""), "in model(): ValueError: not today"),
    "loss": (
        RAISES.format(function="loss", given="outputs, labels"),
        "in loss(): ValueError: not today",
    ),
    "optimizer": ("def optimizer(parameters):\n    pass\n", "must return a paddle.optimizer"),
    "feed": (RAISES.format(function="feed", given="split"), "in feed(): ValueError: not today"),
    "service": (
        "def distill():\n"
        "    from edl.student import Distill\n"
        '    return Distill(service="nobody")\n',
        "asks the service 'nobody' for soft labels, and nothing says where",
    ),
    "iterable": (
        "def feed(split):\n"
        "    return [(np.zeros((4, FEATURES), 'float32'), np.zeros((4, 1), 'float32'))] * 9\n",
        "--nodes 1:4 lets ranks come and go, but a list of finished batches cannot be dealt out",
    ),
}


def job_file(folder: Path, name: str, lines: str) -> Path:
    file = folder / f"job_{name}.py"
    file.write_text(f"{JOB_FILE.read_text()}\n\n{lines}")
    return file


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    nodes = Nodes(tmp_path, ("--epochs", 1))
    yield nodes
    nodes.close()


def message(process: Process) -> str:
    """The last line of a command that ended with exit code 2; it is the command's own."""
    assert process.wait(END_S) == 2, "\n".join(process.tail(50))
    last = process.tail(1)[0]
    assert last.startswith("edl: ")
    return last


def test_one_message_for_each_mistake(nodes: Nodes, tmp_path: Path) -> None:
    started: dict[str, Process] = {}
    with redis_server() as (_, port):
        elastic = ("--nodes", "1:4", "--coordinator", f"redis://127.0.0.1:{port}")
        for name, (lines, _) in WRONG.items():
            nodes.job_file = job_file(tmp_path, name, lines)
            started[name] = nodes.start(*(elastic if name == "iterable" else ()))
        nodes.job_file = tmp_path / "job_service.py"
        waits = nodes.start(*elastic[2:])
        found = {name: message(process) for name, process in started.items()}
        # Teachers may come: that is waited for, with a reason, and can be ended.
        waits.expect(r"waiting for rank 0: soft labels: 0 of 0 teachers live", START_S)
        waits.send_signal(signal.SIGINT)
        assert waits.wait(END_S) == 128 + signal.SIGINT
    for name, (_, expected) in WRONG.items():
        assert expected in found[name]
    for name in ("model", "loss", "feed"):  # and where to look
        assert f"job_{name}.py, line " in found[name]
