"""Demo from start to end: trains all modes, and writes the outputs."""

from __future__ import annotations

import contextlib
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from ...runtime.errors import UsageError
from ...runtime.files import check_writable
from ..cores import available_cores, on_cores, pin_process
from ..local import LocalMesh, TeacherSpec
from . import modes
from .cpu_cores import CoreAssignment
from .digits import DigitDataset, load_digits
from .edl_dist import SERVICE, EdlDistResult, run_edl_dist
from .models import Predictor, TeacherModel, load_paddle, obtain_teacher
from .online_all_cores import MODE as ALL_CORES
from .online_all_cores import run_online_on_all_cores
from .picture import draw
from .progress_display import ProgressDisplay, ProgressStage, open_display
from .report import DemoReport, as_json, results_table, summary_lines
from .settings import DemoSettings

INTRODUCTION = (
    "Trains the same student without a teacher (N-training), with the teacher in its process"
    " (Online: on one core; on a CPU with more cores, also on all of them), and with teachers in"
    " other processes (EDL-Dist)."
)
#: TTL of leases in seconds. A reader notices the death of a teacher earlier, by its connection.
TTL_S = 3.0
#: Batches between updates of the bar: an update costs as much as a small step.
SHOW_EVERY_BATCHES = 10


def run_demo(
    settings: DemoSettings,
    picture: Path,
    json_file: Path | None,
    cache: Path,
    console: Console,
    *,
    fresh: bool,
    check: Callable[[], None],
) -> None:
    """Run all modes, print the table, and write picture and JSON.

    Args:
        settings: settings of the run.
        picture: file of the picture (PNG).
        json_file: file of the report; None: no report is written.
        cache: folder of the trained teacher.
        console: console for progress and the table.
        fresh: train the teacher even if it is cached.
        check: called after each step, and every 0.1 s while waiting; an exception from it ends the
            demo cleanly.

    Raises:
        UsageError: a file cannot be written; raised before the work if possible.
    """
    for path in (picture, json_file):
        if path is not None:
            check_writable(path)
    console.print(INTRODUCTION, soft_wrap=True, highlight=False)
    began = time.monotonic()
    cores = CoreAssignment.divide(available_cores())
    pin_process(cores.student)
    with open_display(console, check) as display:
        settings, digits = _load(settings, display)
        run = _DemoRun(settings, cores, display, digits)
        with usable_cache(cache, display.say) as folder:
            teacher = run.obtain_teacher(folder, fresh=fresh)
            results, edl_dist = run.train(teacher)
    report = DemoReport(settings, cores, teacher, results, edl_dist, time.monotonic() - began)
    console.print(results_table(report))
    for line in summary_lines(report):
        console.print(line, soft_wrap=True, highlight=False)
    write_outputs(report, picture, json_file)
    console.print(f"Picture: {picture.resolve()}", soft_wrap=True, highlight=False)


def _load(settings: DemoSettings, display: ProgressDisplay) -> tuple[DemoSettings, DigitDataset]:
    """Load Paddle and the data set; return the settings for the available device."""
    with display.stage("Load Paddle and the digits", 2) as stage:
        paddle = load_paddle()
        if paddle.device.cuda.device_count():
            settings = replace(settings, device="gpu:0")
        paddle.set_device(settings.device)
        stage.reach(1)
        digits = load_digits(settings.size)
        stage.reach(2)
    return settings, digits


@dataclass(frozen=True, slots=True)
class _DemoRun:
    """One run of the demo."""

    settings: DemoSettings
    cores: CoreAssignment
    display: ProgressDisplay
    digits: DigitDataset

    def obtain_teacher(self, cache: Path, *, fresh: bool) -> TeacherModel:
        """Return the teacher from `cache`, or train it."""
        with self.display.stage("Teacher (a CNN trained on all labels)", 1) as stage:
            teacher = obtain_teacher(
                self.digits, self.settings, cache, fresh=fresh, on_step=stage.reach
            )
            stage.reach(1, 1)
        origin = "from the cache" if teacher.cached else "trained and exported"
        self.display.say(f"  {origin}: {teacher.accuracy:.1%} accuracy on test digits")
        return teacher

    def train(
        self, teacher: TeacherModel
    ) -> tuple[dict[modes.Mode, modes.ModeResult], EdlDistResult]:
        """Train all modes, one after another.

        About half of the students of Online and N-training are trained before EDL-Dist, the others
        after it, as the speed of a shared machine may change within a minute.
        """
        settings = self.settings
        results: dict[modes.Mode, modes.ModeResult] = {}
        if settings.device == "cpu" and self.cores.student != self.cores.others:
            # Half a training of one student is enough to measure the throughput.
            short_settings = replace(settings, students=1, steps=settings.steps // 2)
            with self._training_stage(ALL_CORES, short_settings.batches) as stage:
                results[ALL_CORES] = run_online_on_all_cores(
                    short_settings, teacher.path, self.cores, stage.reach
                )
        predictor = Predictor(
            teacher.path, micro_batch=settings.micro_batch, device=settings.device
        )
        online = modes.online_training(self.digits, settings, predictor)
        n_training = modes.n_training(self.digits, settings)
        spec = TeacherSpec(
            SERVICE,
            str(teacher.path),
            micro_batch=settings.micro_batch,
            ttl_s=TTL_S,
            options=() if settings.device == "cpu" else ("--devices", settings.device),
        )
        students_after = settings.students // 2
        students_before = settings.students - students_after
        with self._mesh(spec) as mesh:  # idle teachers take hardly any CPU
            self._train(online, students_before)
            self._train(n_training, students_before)
            with self._training_stage("edl_dist", settings.batches) as stage:
                edl_dist = run_edl_dist(
                    mesh, spec, self.digits, settings, self.cores, self.display, stage
                )
        self._train(n_training, students_after)
        self._train(online, students_after)
        for result in (online.result, n_training.result, edl_dist.result):
            results[result.mode] = result
        return {mode: results[mode] for mode in modes.TITLES if mode in results}, edl_dist

    def _train(self, training: modes.StudentTraining, count: int) -> None:
        if count:
            with self._training_stage(training.mode, count * self.settings.steps) as stage:
                training.run(count, stage.reach)

    @contextlib.contextmanager
    def _mesh(self, spec: TeacherSpec) -> Iterator[LocalMesh]:
        """Start coordinator and teachers on the mesh's cores, and wait until they are ready."""
        names = [f"teacher-{number + 1}" for number in range(self.settings.teachers)]
        with contextlib.ExitStack() as stack:
            title = f"Mesh: coordinator and {len(names)} teacher processes"
            with self.display.stage(title, 1 + len(names)) as stage:
                with on_cores(self.cores.others):
                    mesh = stack.enter_context(LocalMesh(check=self.display.check))
                    for name in names:
                        mesh.start_teacher(name, spec)
                stage.reach(1)
                for ready, name in enumerate(names, start=2):
                    mesh.wait_ready(name)
                    stage.reach(ready)
            yield mesh

    def _training_stage(
        self, mode: modes.Mode, batches: int
    ) -> AbstractContextManager[ProgressStage]:
        title = f"Train: {modes.TITLES[mode]}"
        return self.display.stage(title, batches, every=SHOW_EVERY_BATCHES)


@contextlib.contextmanager
def usable_cache(preferred: Path, say: Callable[[str], None]) -> Iterator[Path]:
    """Yield `preferred` if it is writable, otherwise a temporary folder, deleted at the end."""
    try:
        preferred.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=preferred):
            pass
    except OSError as error:
        say(f"  the teacher is not cached: {preferred} is not writable ({error.strerror})")
        with tempfile.TemporaryDirectory(prefix="edl-demo-") as folder:
            yield Path(folder)
    else:
        yield preferred


def write_outputs(report: DemoReport, picture: Path, json_file: Path | None) -> None:
    """Write the JSON and the picture, each even if the other fails. Raises UsageError."""
    writers: dict[Path, Callable[[Path], object]] = {}
    if json_file is not None:
        text = json.dumps(as_json(report), indent=2) + "\n"
        writers[json_file] = lambda path: path.write_text(text)
    writers[picture] = lambda path: draw(report, path)
    failures: list[str] = []
    for path, write in writers.items():
        try:
            write(path)
        except OSError as error:
            failures.append(f"cannot write {path}: {error.strerror or error}")
    if failures:
        raise UsageError("; ".join(failures))
