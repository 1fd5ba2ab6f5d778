"""`JobSpec`: a loaded job file. It calls the user's functions and converts their errors.

    spec = load_job("job.py")
    model = spec.model()
    optimizer = spec.optimizer(model.parameters())
    source = spec.feed("train")
    loss = spec.loss(model(image), label)

The calls are independent, so each function can be tested alone. An error of a function is a
`JobError` of one line: file, line, function, what is wrong, and what to do unless that is obvious.
`as_job_error` converts exceptions of user code that runs outside these calls.
"""

from __future__ import annotations

import importlib.util
import inspect
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, Final, Literal, get_args

from ...runtime.errors import EdlError, JobError, UsageError
from ..frameworks import STATED, Framework, framework_of, framework_of_job
from .distill import Distill

Split = Literal["train", "eval"]
#: From (outputs, labels) of a batch to a number, a mean over its rows.
Metric = Callable[[Any, Any], Any]

#: The functions of a job file and their parameters.
NEEDED: Final[Mapping[str, tuple[str, ...]]] = {
    "model": (),
    "loss": ("outputs", "labels"),
    "optimizer": ("parameters",),
    "feed": ("split",),
}
OPTIONAL: Final[Mapping[str, tuple[str, ...]]] = {
    "metrics": (),
    "distill": (),
    "on_scale": ("old", "new"),
}


@dataclass(frozen=True, slots=True)
class JobSpec:
    """A loaded job file that has all required functions.

    Attributes:
        path: absolute path of the file.
        functions: the user's functions by name.
        framework: framework of the model; see `framework_of_job`.
    """

    path: str
    functions: Mapping[str, Callable[..., Any]]
    framework: Framework

    @property
    def name(self) -> str:
        """Name of the file without suffix: the default name of the job."""
        return Path(self.path).stem

    def has(self, name: str) -> bool:
        """Whether the file has this optional function."""
        return name in self.functions

    def model(self) -> Any:
        """Return the student, a new `paddle.nn.Layer` or `torch.nn.Module`."""
        framework = self.framework
        model = self._call("model")
        if framework.is_model(model):
            return model
        kind, other = framework.kinds["model"], None
        with suppress(UsageError):
            other = framework_of(model).name
        if other is None:
            raise self._error("model", f"must return {kind}; it returned {_described(model)}")
        raise self._error(
            "model",
            f"must return {kind}, as the job file imports {framework.name}; it returned a"
            f" {type(model).__name__} of {other}: write {STATED} = {other!r} into the file",
        )

    def loss(self, outputs: Any, labels: Any) -> Any:
        """Return the hard term of a batch: a scalar tensor, the mean over its rows.

        Args:
            outputs: outputs of the model.
            labels: the last field of a batch, or `label`/`labels` of a dict; None: there are none.
        """
        loss = self._call("loss", outputs, labels)
        scalar = self.framework.scalar(loss)
        expected = "a scalar float tensor, the mean over the batch"
        self._expect(scalar is not None, "loss", expected, loss)
        return scalar

    def optimizer(self, parameters: Iterable[Any]) -> Any:
        """Return a new optimizer over these parameters, with its schedule.

        In PyTorch, the job returns a `torch.optim.Optimizer`, or a pair of it and its schedule.
        """
        # A list: the job may read it several times, for several groups of parameters.
        returned = self._call("optimizer", list(parameters))
        optimizer = self.framework.optimizer(returned)
        kind = self.framework.kinds["optimizer"]
        self._expect(optimizer is not None, "optimizer", kind, returned)
        return optimizer

    def feed(self, split: Split) -> Any:
        """Return the batches of "train" or "eval", a source for a `DistilReader`.

        That is a `DataLoader`, a list of batches, a `Batched`, or another iterable that can be
        iterated again; or a map-style data set, from which the caller makes batches.
        """
        if split not in get_args(Split):
            raise ValueError(f"a split is train or eval, not {split!r}")
        source = self._call("feed", split)
        if isinstance(source, Iterator):
            raise self._error(
                "feed",
                f"returned a {type(source).__name__} for {split!r}, which can be read only once;"
                " return an object that can be iterated again: the DataLoader itself, a list, ...",
            )
        fits = isinstance(source, Iterable) or is_dataset(source)
        expected = "batches: a DataLoader, a data set, a list or another iterable"
        self._expect(fits and not isinstance(source, str | bytes), "feed", expected, source)
        return source

    def metrics(self) -> dict[str, Metric | Any]:
        """Return the metrics by name: functions of (outputs, labels), or `paddle.metric.Metric`s.

        Empty if the file has no `metrics()`.
        """
        if not self.has("metrics"):
            return {}
        metrics = self._call("metrics")
        fits = isinstance(metrics, Mapping) and all(
            isinstance(name, str) and (callable(metric) or hasattr(metric, "accumulate"))
            for name, metric in metrics.items()
        )
        expected = "a dict from names to functions of (outputs, labels) or paddle.metric.Metrics"
        self._expect(fits, "metrics", expected, metrics)
        return dict(metrics)

    def distill(self) -> Distill | None:
        """Return how the job distils; None if the file has no `distill()`, or it returns None."""
        if not self.has("distill"):
            return None
        distill = self._call("distill")
        fits = distill is None or isinstance(distill, Distill)
        self._expect(fits, "distill", "a Distill", distill)
        return distill  # type: ignore[no-any-return]  # checked above

    def on_scale(self, old: int, new: int) -> None:
        """Call the job's hook, if it has one, after a change from `old` to `new` ranks."""
        if self.has("on_scale"):
            self._call("on_scale", old, new)

    def job_errors(self, function: str) -> AbstractContextManager[None]:
        """Convert exceptions in the context to a `JobError` with this function and a line.

        For code that uses results of the function, such as the forward pass of a model.
        """
        return converting_errors(*_definition(self.functions[function], self.path), function)

    def _call(self, function: str, *arguments: Any) -> Any:
        with self.job_errors(function):
            return self.functions[function](*arguments)

    def _expect(self, fits: bool, function: str, expected: str, value: Any) -> None:
        if not fits:
            raise self._error(function, f"must return {expected}; it returned {_described(value)}")

    def _error(self, function: str, problem: str) -> JobError:
        file, line = _definition(self.functions[function], self.path)
        return JobError(f"{source_location(file, function, line)}: {problem}")


def load_job(path: str | Path) -> JobSpec:
    """Run a job file, and check that its functions exist and have the right parameters.

    Its folder is appended to `sys.path`, so that it can import modules next to it. Installed
    modules of the same name take precedence.

    Raises:
        JobError: there is no such file, it raises, or a function is missing or has other
            parameters.
        UsageError: the file states an unknown framework.
        ModelError: the framework cannot be imported.
    """
    file = Path(path).expanduser().absolute()
    if not file.is_file():
        raise JobError(
            f"there is no job file {str(file)!r}: give a Python file with {_signatures(NEEDED)}"
        )
    module = _run(file)
    functions = _functions(str(file), module)
    for name, function in functions.items():
        _check_parameters(name, function, str(file))
    return JobSpec(str(file), functions, framework_of_job(module))


def is_dataset(source: Any) -> bool:
    """Whether `source` is a map-style data set, which has samples instead of batches."""
    if isinstance(source, Sequence):
        return False
    is_subclass = any(type_.__name__ == "Dataset" for type_ in type(source).__mro__)
    indexed = hasattr(source, "__getitem__") and hasattr(source, "__len__")
    return indexed and (is_subclass or not hasattr(source, "__iter__"))


def _run(file: Path) -> ModuleType:
    name = "edl_job_" + re.sub(r"\W", "_", file.stem)
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None:
        raise JobError(f"{file} is not a Python file: its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    if str(file.parent) not in sys.path:
        sys.path.append(str(file.parent))
    previous = sys.modules.get(name)
    sys.modules[name] = module  # dataclasses and pickle look a class's module up here
    try:
        with converting_errors(str(file), None, ""):
            # The spec's loader would run a stale compiled file if the source was replaced within a
            # second by a file of the same size.
            exec(compile(file.read_bytes(), file, "exec", dont_inherit=True), module.__dict__)
    except JobError as error:
        sys.modules.pop(name)
        if previous is not None:
            sys.modules[name] = previous
        if isinstance(cause := error.__cause__, SyntaxError):
            location = source_location(cause.filename or str(file), "", cause.lineno)
            raise JobError(f"{location}: {cause.msg} (a syntax error)") from cause
        raise
    return module


def _functions(file: str, module: ModuleType) -> dict[str, Callable[..., Any]]:
    functions: dict[str, Callable[..., Any]] = {}
    for name in (*NEEDED, *OPTIONAL):
        value = getattr(module, name, None)
        if value is None and name in OPTIONAL:
            continue
        if value is None:
            raise JobError(
                f"{file} has no function {name}({', '.join(NEEDED[name])}): a job file has"
                f" {_signatures(NEEDED)}"
            )
        if not callable(value):
            raise JobError(f"{file}: {name} has to be a function, but is {_described(value)}")
        functions[name] = value
    return functions


def _check_parameters(name: str, function: Callable[..., Any], job_file: str) -> None:
    parameters = {**NEEDED, **OPTIONAL}[name]
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # functions written in C have no signature
        return
    try:
        signature.bind(*parameters)
    except TypeError as error:
        file, line = _definition(function, job_file)
        raise JobError(
            f"{source_location(file, name, line)}: it is called as"
            f" {name}({', '.join(parameters)}), but takes {signature}: {error}"
        ) from None


def _definition(function: Callable[..., Any], file: str) -> tuple[str, int | None]:
    """Return file and line of a definition, which may be in a module that the job file imports.

    The line is None if unknown.
    """
    code = getattr(inspect.unwrap(function), "__code__", None)
    return (file, None) if code is None else (str(code.co_filename), int(code.co_firstlineno))


def _signatures(functions: Mapping[str, tuple[str, ...]]) -> str:
    names = [f"{name}({', '.join(parameters)})" for name, parameters in functions.items()]
    return f"{', '.join(names[:-1])} and {names[-1]}"


def _described(value: Any) -> str:
    if value is None:
        return "None (does it lack a return?)"
    shape = getattr(value, "shape", None)
    if shape is not None:
        return f"a {type(value).__name__} of {value.dtype} with shape {list(shape)}"
    text = " ".join(repr(value).split())
    return f"a {type(value).__name__}, {text[:80]}"


def source_location(file: str, function: str, line: int | None) -> str:
    """Return the start of an error message: file, line and function."""
    location = file if line is None else f"{file}, line {line}"
    return f"{location}, in {function}()" if function else location


def as_job_error(error: BaseException, file: str) -> BaseException:
    """Return a `JobError` if the exception passed through the job file, else the exception itself.

    An `EdlError` is always returned itself. This covers code that is not called through `JobSpec`,
    such as a forward pass or a data set.
    """
    frame = None if isinstance(error, EdlError) else _frame_in(file, error.__traceback__)
    if frame is None or not isinstance(error, Exception):
        return error
    location = source_location(file, frame.name, frame.lineno)
    job_error = JobError(f"{location}: {summary_line(error)}")
    job_error.__cause__ = error
    return job_error


def trace_of(error: BaseException, file: str) -> str:
    """Return the traceback of an exception; for a `JobError`, from the job file's frame on."""
    cause = error.__cause__ if isinstance(error, JobError) else None
    if cause is None:
        return "".join(traceback.format_exception(error))
    trace = traceback.TracebackException.from_exception(cause)
    files = [frame.filename for frame in trace.stack]
    del trace.stack[: files.index(file) if file in files else 0]
    return "".join(trace.format(chain=False))


def _frame_in(file: str, trace: TracebackType | None) -> traceback.FrameSummary | None:
    """Return the innermost frame in this file; None: there is none."""
    frames = [frame for frame in traceback.extract_tb(trace) if frame.filename == file]
    return frames[-1] if frames else None


def summary_line(error: BaseException) -> str:
    """Return an exception as one line: its type and at most 400 characters of its text."""
    text = " ".join(str(error).split())
    shown = text if len(text) <= 400 else text[:400] + "…"
    return f"{type(error).__name__}: {shown}" if shown else type(error).__name__


@contextmanager
def converting_errors(file: str, line: int | None, function: str) -> Iterator[None]:
    """Convert exceptions of the user's code to a `JobError`, with the original as its cause.

    Args:
        file: the file of the code.
        line: line to report if the traceback has no line of the file; None: unknown.
        function: name of the running function; empty: the body of the file.
    """
    try:
        yield
    except JobError:
        raise
    except (Exception, SystemExit) as error:
        frame = _frame_in(file, error.__traceback__)
        location = source_location(file, function, line if frame is None else frame.lineno)
        raise JobError(f"{location}: {summary_line(error)}") from error
