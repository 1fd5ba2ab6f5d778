"""The command `edl bench`: run a benchmark, print and write its figures, check its goals."""

from __future__ import annotations

import ast
import contextlib
import importlib
import inspect
import json
import logging
import os
import pkgutil
import signal
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

from ..runtime.errors import UsageError
from ..runtime.files import check_writable
from ..runtime.structured_option import Given, Key, StructuredOption
from .report import BenchmarkReport

if TYPE_CHECKING:
    from rich.console import Console

#: Options of only some benchmarks that are not keys of `--set`.
_FLAGS: Final = ("simulate", "measure", "device")
#: Columns of output that goes to a file or a pipe: tables are not folded there.
_FILE_WIDTH: Final = 1000
#: Devices of PyTorch, by its names.
BenchDevice = Literal["cpu", "cuda"]
_PAPER = "Options of `paper.NAME`, which reproduces an experiment of a paper"


@dataclass(frozen=True, slots=True)
class SetKeys:
    """Keys of `--set`; a benchmark refuses keys that it does not use."""

    teachers: Annotated[
        int | None, Key("simulated teachers (coordinator, assignment).", at_least=10)
    ] = None
    students: Annotated[
        int | None, Key("simulated students (coordinator, assignment).", at_least=1)
    ] = None
    seconds: Annotated[
        float | None, Key("seconds of each phase (coordinator, hostile).", at_least=5)
    ] = None
    data: Annotated[
        Path | None,
        Key(
            "folder with MNIST's IDX files, and reviews in pos.txt and neg.txt (accuracy).",
            metavar="FOLDER",
        ),
    ] = None
    download: Annotated[bool, Key("let Paddle fetch MNIST (accuracy).")] = False
    seeds: Annotated[
        int | None, Key("students for each way of training (accuracy).", at_least=2)
    ] = None
    task: Annotated[str | None, Key("only this task: digits, mnist or reviews (accuracy).")] = None
    framework: Annotated[
        Literal["paddle", "torch"] | None, Key("framework of the students (accuracy).")
    ] = None
    picture: Annotated[Path | None, Key("draw the results to this file, as PNG (accuracy).")] = None


SET: Final = StructuredOption("--set", SetKeys)


def bench(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Name of the benchmark. Default: list all.")
    ] = "",
    json_file: Annotated[
        Path | None,
        typer.Option(
            "--json",
            metavar="FILE",
            help="Write the figures and a description of the machine to FILE.",
        ),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Do less work in each round: faster, less precise.")
    ] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Exit with 1 if a goal does not hold.")
    ] = False,
    set_: Annotated[
        list[Given] | None,
        SET.option("Settings of the benchmarks in parentheses, as in teachers=1000,students=100."),
    ] = None,
    simulate: Annotated[
        bool,
        typer.Option(
            "--simulate",
            help="Simulate the paper's devices in virtual time.",
            rich_help_panel=_PAPER,
        ),
    ] = False,
    measure: Annotated[
        bool, typer.Option("--measure", help="Measure on this machine.", rich_help_panel=_PAPER)
    ] = False,
    device: Annotated[
        BenchDevice | None,
        typer.Option(
            help="Device of the teacher (`teacher`, `paper.table1 --measure`).",
        ),
    ] = None,
) -> None:
    """Run a benchmark, and print its figures and goals; without a name, list all.

    A benchmark compares figures of one run; figures of another day or machine are no baseline.
    Limits for CPU time, and for rates of one core, hold for a reference machine. A slower machine
    has limits that are wider in proportion; the report shows both limits.
    """
    from rich.console import Console

    if not name:
        listed = benchmarks()
        width = max(map(len, listed))
        for known, about in listed.items():
            typer.echo(f"{known:{width}} {about}")
        return
    if json_file is not None:  # before minutes of work
        check_writable(json_file)
    options = asdict(SET.read(set_))
    options |= {
        "download": options["download"] or None,
        "simulate": simulate or None,
        "measure": measure or None,
        "device": device,
    }
    given = {option: value for option, value in options.items() if value is not None}
    signal.signal(signal.SIGTERM, _end)
    with _progress(Console(stderr=True)):
        report = run(name, quick=quick, **given)
    output = Console()
    if not output.is_terminal and "COLUMNS" not in os.environ:
        output.width = _FILE_WIDTH
    report.show(output)
    if json_file is not None:
        _write(report, json_file)
    if check and not report.holds:
        raise typer.Exit(1)


def _end(number: int, _: object) -> None:
    """End this process after removing temporary files; a second signal ends it at once."""
    signal.signal(number, signal.SIG_DFL)
    raise SystemExit(128 + number)


def run(name: str, *, quick: bool = False, **options: Any) -> BenchmarkReport:
    """Run the benchmark `name`.

    Args:
        name: a name from `benchmarks()`.
        quick: do less work in each round.
        options: options that differ from the defaults of the benchmark.

    Raises:
        UsageError: the benchmark does not exist, or it has no such option.
    """
    known = benchmarks()
    if name not in known:
        raise UsageError(f"there is no benchmark {name!r}; there are: {', '.join(known)}")
    folder, _, experiment = name.rpartition(".")
    measure: Callable[..., BenchmarkReport] = (
        partial(_reproduce, experiment)
        if folder
        else importlib.import_module(f".{name}", __package__).run
    )
    accepted = inspect.signature(measure).parameters.keys() - {"quick"}
    for option in options.keys() - accepted:
        flags = ", ".join(map(_flag, sorted(accepted))) or "none"
        raise UsageError(f"the benchmark {name!r} has no {_flag(option)}; it has: {flags}")
    return measure(quick=quick, **options)


def _flag(option: str) -> str:
    return f"--{option}" if option in _FLAGS else f"--set {option}="


def _reproduce(
    name: str,
    *,
    quick: bool,
    simulate: bool = False,
    measure: bool = False,
    device: str | None = None,
) -> BenchmarkReport:
    """Run the experiment of the module `name`.

    Args:
        name: name of the module, as "table1".
        quick: less work, coarser figures.
        simulate: run it with the paper's devices, in virtual time.
        measure: run it on this machine. Exactly one of `simulate` and `measure` must be true.
        device: "cuda" or "cpu", for a measured teacher; None: the experiment's default.

    Raises:
        UsageError: both or none of `simulate` and `measure` are true, or the experiment cannot be
            measured, or it does not accept `device`.
    """
    if simulate == measure:
        raise UsageError(
            f"paper.{name} is run with --simulate (the paper's devices, in virtual time) or with"
            " --measure (this machine): choose one of the two"
        )
    from .paper.tables import run_simulation

    module = importlib.import_module(f".paper.{name}", __package__)
    if simulate:
        if device is not None:
            raise UsageError("--simulate uses the paper's devices: omit --device")
        return run_simulation(module, quick=quick)
    if not hasattr(module, "measure"):
        raise UsageError(f"paper.{name} needs devices of the paper: run it with --simulate")
    options = {} if device is None else {"device": device}
    if options.keys() - inspect.signature(module.measure).parameters.keys():
        raise UsageError(f"paper.{name} has no --device")
    report: BenchmarkReport = module.measure(quick=quick, **options)
    return report


def benchmarks() -> dict[str, str]:
    """Map each benchmark to the first line of its docstring, without importing it.

    An experiment of a paper is called `paper.NAME`, after its module in `paper/`.
    """
    own = _with_function(Path(__file__).parent, "run")
    del own["cli"]
    return {**own, **{f"paper.{name}": about for name, about in experiments().items()}}


def experiments() -> dict[str, str]:
    """Map the experiments of papers, without `paper.`, to the first line of their docstring."""
    return _with_function(Path(__file__).parent / "paper", "simulate")


def _with_function(folder: Path, function: str) -> dict[str, str]:
    """Map the modules of `folder` that define `function` to the first line of their docstring."""
    first_lines = {}
    for module in pkgutil.iter_modules([str(folder)]):
        if module.ispkg:
            continue
        tree = ast.parse((folder / f"{module.name}.py").read_text("utf-8"))
        if any(isinstance(node, ast.FunctionDef) and node.name == function for node in tree.body):
            first_lines[module.name] = (ast.get_docstring(tree) or "").partition("\n")[0]
    return first_lines


@contextlib.contextmanager
def _progress(console: Console) -> Iterator[None]:
    """Show the log messages of a benchmark while it runs; a terminal shows only the latest."""
    from rich.markup import escape

    with console.status("measuring ...") as status:

        class ProgressHandler(logging.Handler):
            def emit(self, record: logging.LogRecord) -> None:
                text = record.getMessage()
                if console.is_terminal:
                    status.update(escape(text))
                else:
                    console.print(escape(text), highlight=False, soft_wrap=True)

        log, handler = logging.getLogger(__package__), ProgressHandler()
        level, propagate = log.level, log.propagate
        log.setLevel(logging.INFO)
        log.propagate = False  # frameworks add their own handlers to the root logger
        log.addHandler(handler)
        try:
            yield
        finally:
            log.removeHandler(handler)
            log.setLevel(level)
            log.propagate = propagate


def _write(report: BenchmarkReport, path: Path) -> None:
    try:
        path.write_text(json.dumps(report.to_json(), indent=2, allow_nan=False) + "\n", "utf-8")
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from error


# With blank lines, as the help joins adjacent lines.
bench.__doc__ = f"{inspect.cleandoc(bench.__doc__ or '')}\n\n" + "\n\n".join(
    f"{name}: {line}" for name, line in benchmarks().items()
)
