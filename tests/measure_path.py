"""Count files and calls of our own Python on a path: of a batch, of a heartbeat, of a step.

    python tests/measure_path.py [--of batch|heartbeat|step] [--functions | --cpu] [CHECKOUT ...]

- batch: to a teacher and back. Trainer, engine and teacher run as processes, with batches of 4.8 MB
  and an instant model.
- heartbeat: of a teacher that begins or ends to drain, until a student has its new assignment. Both
  are threads of one process; Redis and a service manager are others.
- step: of `edl student train` with one rank and a small model, without teachers.

All calls of functions of the package are counted in all processes, between two moments of a steady
stream. A file counts if it is called at least once for every two batches or steps, or if a function
of it is called for each heartbeat. Each CHECKOUT is the root of a working copy; none: this one.

With `--cpu` no calls are counted, as that slows all down: the engine's CPU time is measured, and a
profiler samples its thread. Time in the system, in numpy and in other libraries counts as that of
the function of the package that called them.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
ROWS = 32
WARM_UP = 200  # batches before counting begins
COUNTED, COUNTED_CPU = 400, 5000
BEATS, STEPS = 40, 200  # that are counted
#: What is counted -> the ways that it is counted on.
WAYS = {"batch": ("remote", "same host"), "heartbeat": ("heartbeat",), "step": ("step",)}
OFTEN = 0.5  # least calls per batch or step for which a file or function counts
EACH = 0.9  # least calls of a function per heartbeat: the periodic work of a manager has fewer
READY_S = 60.0
WRITTEN_WITHIN_S = 10.0  # most seconds to wait until all live processes have written their counts
#: Part of a command line -> name of the process; without any of them it is the driver.
PROCESSES = {
    ".predictor": "predictor", ".engine": "engine", " teacher ": "teacher",
    " coordinator ": "manager", "student.rank": "rank", " student ": "node",
}  # fmt: skip
DRIVERS = {"heartbeat": "teacher and student", "step": "test"}
#: (file, function) -> calls per batch, heartbeat or step.
Calls = Counter[tuple[str, str]]
#: Beginning of a file's path -> use of the engine's CPU time; the first match applies.
GROUPS = {
    "proto/clients/transport.py": "sending and receiving: the socket, frames",
    "proto/frames.py": "sending and receiving: the socket, frames",
    "proto/channel.py": "messages from and to the trainer, waiting for sockets",
    "distill_reader/engine/inbox.py": "messages from and to the trainer, waiting for sockets",
    "scheduler/ledger/": "decisions: ledger",
    "scheduler/": "decisions: all else",
    "distill_reader/engine/answers.py": "arrays: checked, copied",
    "distill_reader/engine/label_comparison.py": "arrays: checked, copied",
    "distill_reader/engine/label_records.py": "arrays: checked, copied",
    "proto/": "arrays: checked, copied",
    "": "the rest of the engine",
}
#: Variables for the program below: its folder, that of the package, whether to measure CPU time.
FOLDER, PACKAGE, CPU = "EDL_PATH_FOLDER", "EDL_PATH_PACKAGE", "EDL_PATH_CPU"

#: sitecustomize.py, which each Python process with the folder on its path imports at its start.
COUNTING = """
import json, os, signal, sys, threading, time
from collections import Counter
folder, package = os.environ["EDL_PATH_FOLDER"], os.environ["EDL_PATH_PACKAGE"]
measures_cpu = os.environ["EDL_PATH_CPU"] == "1"
counts = Counter()
counting = False
def called(frame, event, argument):
    if counting and event == "call":
        code = frame.f_code
        counts[code.co_filename, code.co_qualname] += 1
def sampled(number, frame):
    while frame is not None and not frame.f_code.co_filename.startswith(package):
        frame = frame.f_back
    if frame is not None:
        counts[frame.f_code.co_filename, frame.f_code.co_qualname] += 1
def watch():
    global counting
    while not os.path.exists(f"{folder}/on"):
        time.sleep(0.02)
    counting, began_s = True, time.process_time()
    if measures_cpu:
        signal.setitimer(signal.ITIMER_PROF, 0.001, 0.001)
    while not os.path.exists(f"{folder}/off"):
        time.sleep(0.02)
    counting, cpu_s = False, time.process_time() - began_s
    signal.setitimer(signal.ITIMER_PROF, 0.0)
    own = [
        (file[len(package):], function, count)
        for (file, function), count in counts.items() if file.startswith(package)
    ]
    with open("/proc/self/cmdline") as file:
        command = file.read().split("\\0")
    written = f"{folder}/{os.getpid()}.tmp"
    with open(written, "w") as file:
        json.dump({"command": command, "counts": own, "cpu_s": cpu_s}, file)
    os.rename(written, f"{folder}/{os.getpid()}.json")
def begin():
    if measures_cpu:
        with open("/proc/self/cmdline") as file:
            if ".engine" not in file.read():
                return
        signal.signal(signal.SIGPROF, sampled)
    else:
        sys.setprofile(called)
        threading.setprofile(called)
    open(f"{folder}/{os.getpid()}.begun", "w").close()
    threading.Thread(target=watch, daemon=True).start()
begin()
os.register_at_fork(after_in_child=begin)
"""
#: A model that takes hardly any time, as a factory.
MODEL = """
import numpy
def instant():
    matrix = numpy.random.default_rng(0).standard_normal((48, 1000), numpy.float32)
    def forward(inputs):
        pixels = inputs["x"][:, :, ::56, ::56].reshape(len(inputs["x"]), -1)
        return {"logits": pixels.astype(numpy.float32) @ matrix}
    return forward, ["x:UINT8:-1,3,224,224"]
"""
#: A training that tells all processes when to count.
JOB = f"""
import os, numpy, paddle
from pathlib import Path
folder, steps = Path(os.environ["EDL_PATH_FOLDER"]), 0
class Samples(paddle.io.Dataset):
    def __len__(self):
        return 16 * {STEPS}
    def __getitem__(self, index):
        return numpy.full(8, index, "float32"), numpy.array([index], "float32")
def model():
    return paddle.nn.Linear(8, 1)
def loss(outputs, labels):
    global steps
    steps += 1
    if steps == {STEPS}:
        (folder / "on").touch()
    if steps == 2 * {STEPS}:
        (folder / "off").touch()
    return paddle.nn.functional.mse_loss(outputs, labels)
def optimizer(parameters):
    return paddle.optimizer.SGD(1e-9, parameters=parameters)
def feed(split):
    return paddle.io.DataLoader(Samples(), batch_size=4)
"""


def main(argv: list[str]) -> int:
    """Print a table: a line for each process and way, two columns for each checkout."""
    parser = argparse.ArgumentParser(prog="tests/measure_path.py", description=__doc__)
    parser.add_argument("--of", choices=list(WAYS), default="batch", help="default: batch")
    parser.add_argument("--functions", action="store_true", help="list all functions as well")
    parser.add_argument("--cpu", action="store_true", help="measure the engine's CPU time instead")
    parser.add_argument("checkouts", nargs="*", type=Path, help="none: this one")
    options = parser.parse_args(argv)
    checkouts = [path.resolve() for path in options.checkouts or [ROOT]]
    names = [path.name if path != ROOT else "this checkout" for path in checkouts]
    if options.cpu:
        for way in WAYS["batch"]:
            for name, checkout in zip(names, checkouts, strict=True):
                engine = counts_of(checkout, way, cpu=True)
                print("\n".join(_cpu_lines(f"{way}, {name}", *engine)))
        return 0
    print(f"| way | process |{' |'.join(f' {name}: files | calls' for name in names)} |")
    print("|---" * (2 + 2 * len(names)) + "|")
    for way in WAYS[options.of]:
        found = [measure(checkout, way) for checkout in checkouts]
        for process in dict.fromkeys(name for one in found for name in one):
            print(_line(way, process, [one.get(process, Counter()) for one in found]))
        together = [sum(one.values(), Calls()) for one in found]
        print(_line(way, "together", together))
        if options.functions:
            for name, one in zip(names, found, strict=True):
                print(f"\n{name}, {way}:")
                for process, calls in one.items():
                    for (file, function), count in calls.most_common():
                        if count >= OFTEN:
                            print(f"{count:8.1f} {process} {file} {function}")
    return 0


def measure(checkout: Path, way: str) -> dict[str, Calls]:
    """Return the calls of each process per batch, heartbeat or step of a checkout."""
    calls: dict[str, Calls] = {}
    counted = {"heartbeat": BEATS, "step": STEPS}.get(way, COUNTED)
    for process in counts_of(checkout, way, cpu=False):
        counts = {(file, function): n / counted for file, function, n in process["counts"]}
        if way == "heartbeat":
            counts = {function: n for function, n in counts.items() if n >= EACH}
        calls.setdefault(_name(process["command"], way), Counter()).update(counts)
    return {name: calls[name] for name in sorted(calls) if sum(calls[name].values()) >= 1}


def counts_of(checkout: Path, way: str, *, cpu: bool) -> list[dict[str, Any]]:
    """Run the processes of a checkout; return the counts of each.

    Args:
        checkout: root of a working copy.
        way: one of `WAYS`; on "same host" the reader uses shared memory.
        cpu: sample CPU time instead of counting calls.
    """
    with tempfile.TemporaryDirectory(prefix="edl-path-") as name:
        folder = Path(name)
        (folder / "sitecustomize.py").write_text(COUNTING)
        (folder / "path_model.py").write_text(MODEL)
        (folder / "path_job.py").write_text(JOB)
        package = f"{(checkout / 'src' / 'edl')}/"
        environment = {
            **os.environ, FOLDER: name, PACKAGE: package, CPU: str(int(cpu)),
            "PYTHONPATH": f"{name}{os.pathsep}{checkout / 'src'}",
        }  # fmt: skip
        words = [sys.executable, "-P", str(Path(__file__).resolve()), "--drive", way]
        subprocess.run(words, env=environment, check=True, timeout=600)
        return [json.loads(file.read_text()) for file in folder.glob("*.json")]


def drive(same_host: bool) -> None:
    """Run the trainer: start a teacher, and tell all processes when to count."""
    import numpy as np

    from edl.distill_reader import DistilReader
    from edl.mesh.local import TEACHER_READY
    from edl.runtime.supervise import python_command, start

    class Source:
        def __iter__(self):  # type: ignore[no-untyped-def]
            return iter([(np.zeros((ROWS, 3, 224, 224), np.uint8),)] * (WARM_UP + counted + 100))

    counted = COUNTED_CPU if os.environ[CPU] == "1" else COUNTED
    folder = Path(os.environ[FOLDER])
    words = ("teacher", "serve", "--service", "path", "--model", "path_model:instant")
    teacher = start(python_command("teacher", "edl", *words, "--micro-batch", ROWS))
    try:
        address = teacher.expect(TEACHER_READY, READY_S)[3]
        with DistilReader(
            Source(), service="path", teachers=[address], shared_memory=same_host
        ) as reader:
            for number, _ in enumerate(reader):
                if number == WARM_UP:
                    (folder / "on").touch()
                if number == WARM_UP + counted:
                    (folder / "off").touch()
                    break
            _wait_for_counts(folder)
    finally:
        teacher.stop()


def drive_heartbeats() -> None:
    """Run two teachers and a student; tell all processes when to count."""
    from edl.coordinator import Heartbeat, Subscription, connect
    from edl.proto import coordinator_pb2 as pb
    from edl.runtime.supervise import python_command, start

    folder, ttl_s = Path(os.environ[FOLDER]), 2.0
    words = ("coordinator", "serve", "--no-admission", "--ttl", ttl_s)
    manager = start(python_command("coordinator", "edl", *words))
    try:
        url = manager.expect(r"^coordinator ready: (\S+) manager (\S+)$", READY_S)[1]
        facts = {"incarnation": "1", "address": "127.0.0.1:1", "state": "serving"}
        beats = [
            Heartbeat(connect(url), "teachers", "s", name, told.copy, ttl_s)
            for name, told in (("changing", facts), ("other", dict(facts)))
        ]
        for beat in beats:
            beat.start()
        assigned: queue.SimpleQueue[int] = queue.SimpleQueue()
        student = Subscription(url, "s", "job/0")
        student.start(lambda assignment: assigned.put(len(assignment.teachers)))
        student.report(pb.StudentReport(want=2, state="steady"))
        time.sleep(4 * ttl_s)  # the manager's recovery is over
        (folder / "on").touch()
        time.sleep(0.1)
        for number in range(BEATS):
            facts["state"], want = ("serving", 2) if number % 2 else ("draining", 1)
            beats[0].update()
            while assigned.get(timeout=READY_S) != want:
                pass
        (folder / "off").touch()
        _wait_for_counts(folder)
        student.stop()
        for beat in beats:
            beat.stop()
    finally:
        manager.stop()


def drive_steps() -> None:
    """Run a training that tells all processes when to count."""
    from edl.runtime.supervise import python_command, start

    folder = Path(os.environ[FOLDER])
    words = ("student", "train", folder / "path_job.py", "--checkpoint", folder / "ckpt")
    node = start(python_command("node", "edl", *words, "--steps", 100 * STEPS))
    try:
        while not (folder / "off").exists():
            assert node.wait(0.1) is None, node.tail()
        _wait_for_counts(folder)
    finally:
        node.stop()


def _wait_for_counts(folder: Path) -> None:
    deadline = time.monotonic() + WRITTEN_WITHIN_S  # an old checkout has no helper for this
    while _silent(folder) and time.monotonic() < deadline:
        time.sleep(0.02)


def _silent(folder: Path) -> list[str]:
    """Return ids of live processes that have not written their counts yet."""
    begun = [file.stem for file in folder.glob("*.begun") if Path(f"/proc/{file.stem}").exists()]
    return [pid for pid in begun if not (folder / f"{pid}.json").exists()]


def _name(command: list[str], way: str) -> str:
    words, driver = " ".join(command), DRIVERS.get(way, "trainer")
    return next((name for sign, name in PROCESSES.items() if sign in words), driver)


def _cpu_lines(what: str, engine: Mapping[str, Any]) -> list[str]:
    """Return the lines of a table of the engine's CPU time per batch, by use."""
    of_groups: Counter[str] = Counter()
    for file, _, samples in engine["counts"]:
        group = next(group for begin, group in GROUPS.items() if file.startswith(begin))
        of_groups[group] += samples
    all_ms, samples = engine["cpu_s"] / COUNTED_CPU * 1e3, of_groups.total()
    return [
        f"| {what}: {all_ms:.2f} ms per batch, {samples} samples | share | ms |",
        "|---|---|---|",
        *(
            f"| {group} | {n / samples:.0%} | {all_ms * n / samples:.2f} |"
            for group, n in of_groups.most_common()
        ),
        "",
    ]


def _line(way: str, process: str, of_each: list[Calls]) -> str:
    cells = (f" {_files(calls)} | {sum(calls.values()):.0f}" for calls in of_each)
    return f"| {way} | {process} |{' |'.join(cells)} |"


def _files(calls: Calls) -> int:
    of_files: Counter[str] = Counter()
    for (file, _), count in calls.items():
        of_files[file] += count
    return sum(count >= OFTEN for count in of_files.values())


if __name__ == "__main__":
    if sys.argv[1:2] == ["--drive"]:
        drivers = {"heartbeat": drive_heartbeats, "step": drive_steps}
        drivers.get(sys.argv[2], lambda: drive(sys.argv[2] == "same host"))()
        sys.exit(0)
    sys.exit(main(sys.argv[1:]))
