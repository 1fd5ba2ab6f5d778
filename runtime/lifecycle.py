"""Start and end of EDL-Dist's programs: signals, periodic work, exit codes."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import queue
import resource
import select
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from importlib.util import find_spec
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

from .errors import EdlError
from .extras import EXTRA_BY_PACKAGE, install_command
from .interrupts import EXIT_INTERRUPTED, interrupt_came, restore_interrupt
from .standard_streams import escape_control_characters, open_standard_streams, write_whole_lines

if TYPE_CHECKING:
    import typer

log = logging.getLogger(__name__)

#: Longest wait of a main thread in seconds. Python runs signal handlers only in the main thread. If
#: the kernel delivers a signal to another thread, a waiting main thread runs the handler only after
#: its wait.
SIGNAL_CHECK_S = 0.25

_MAX_DESCRIPTORS = 1 << 16

EXIT_FAILURE = 1
EXIT_USAGE = 2
EXIT_BROKEN_PIPE = 128 + signal.SIGPIPE


def raise_descriptor_limit() -> None:
    """Raise the soft limit of descriptors to the hard limit, or to 65536 if there is no hard limit.

    Only commands with many connections or children call this: each needs a descriptor. The usual
    soft limit, 1024, protects programs that call `select`.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = _MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else hard
    if soft == resource.RLIM_INFINITY or soft >= limit:
        return
    with contextlib.suppress(OSError, ValueError):  # the system has another, lower limit
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))


class Stop:
    """A request to stop, by a signal or by the program. It is never withdrawn.

    Attributes:
        requested: whether the request was made.
        urgent: whether a second signal came; see `stop_on_signals`.
        signal: number of the signal that made the request; None if the program made it, or there
            is no request yet.
    """

    def __init__(self) -> None:
        self.requested = False
        self.urgent = False
        self.signal: int | None = None
        # Not an Event: a signal handler may interrupt a thread that holds the Event's own lock.
        # SimpleQueue.put is reentrant. The request puts one token into the queue; each waiting
        # thread that gets the token puts it back.
        self._token: queue.SimpleQueue[None] = queue.SimpleQueue()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for the request; return whether it was made. Any number of threads may wait."""
        deadline = math.inf if timeout_s is None else time.monotonic() + timeout_s
        while not self.requested:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                break
            with contextlib.suppress(queue.Empty):
                self._token.get(timeout=min(left_s, SIGNAL_CHECK_S))
                self._token.put(None)  # for the next waiting thread
        return self.requested

    def request(self, number: int | None = None) -> None:
        """Request to stop; safe in a signal handler and in any thread."""
        if not self.requested:
            self.signal, self.requested = number, True
            self._token.put(None)

    def check(self) -> None:
        """Raise KeyboardInterrupt if SIGINT made the request, SystemExit if anything else did.

        Without a request, return.
        """
        if self.requested:
            interrupted = self.signal == signal.SIGINT
            raise KeyboardInterrupt if interrupted else SystemExit(128 + signal.SIGTERM)


def wait_until(
    condition: Callable[[], object],
    timeout_s: float,
    poll_s: float,
    check: Callable[[], object] = lambda: None,
) -> bool:
    """Poll a condition until it is true; return whether it became true in time.

    Args:
        condition: called repeatedly, at least once.
        timeout_s: seconds to wait at most.
        poll_s: seconds between two calls.
        check: called before each pause; an exception from it ends the wait.
    """
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline_s:
            return False
        check()
        time.sleep(poll_s)
    return True


@contextlib.contextmanager
def stop_on_signals(
    *,
    reraise: Iterable[int] = (signal.SIGINT,),
    second_signal_urgent: bool = False,
    ignore_sigterm_after: bool = False,
) -> Iterator[Stop]:
    """Turn SIGINT and SIGTERM into a `Stop`, so that the body can end in order.

    The first signal requests the stop. A second signal ends the process at once, as if there were
    no handlers. The previous handlers are restored at the end.

    Args:
        reraise: signals that are sent again after the body if one of them requested the stop, so
            that the exit code names the signal. SIGTERM is not included by default: an ordered end
            after SIGTERM is a success.
        second_signal_urgent: the second signal sets `Stop.urgent`, which the body checks; the third
            signal ends the process.
        ignore_sigterm_after: ignore SIGTERM after the body, as the process exits then anyway.

    Raises:
        ValueError: called outside the main thread.
    """
    stop = Stop()
    signalled = False

    def handle(number: int, _: FrameType | None) -> None:
        nonlocal signalled
        if signalled and second_signal_urgent and not stop.urgent:
            stop.urgent = True
            return
        if signalled:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            os._exit(128 + number)  # PID 1 of a container survives a signal from itself
        signalled = True
        stop.request(number)

    former = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    if interrupt_came():
        handle(signal.SIGINT, None)
    try:
        yield stop
    finally:
        if ignore_sigterm_after:
            former[signal.SIGTERM] = signal.SIG_IGN
        for number, handler in former.items():
            # None: a C library had installed the handler, and Python cannot restore it.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
    if stop.signal in tuple(reraise):
        signal.raise_signal(stop.signal)
        # raise_signal has no effect if the signal was ignored before, or in PID 1 of a container.
        if signal.getsignal(stop.signal) is signal.SIG_IGN or os.getpid() == 1:
            raise SystemExit(128 + stop.signal)


class Periodic:
    """Calls `action` every `interval_s` seconds in a daemon thread, without drift.

    The first call comes after one interval. Calls that become due during a slow call are skipped.
    An exception is logged, and the next call comes on schedule.
    """

    def __init__(self, name: str, interval_s: float, action: Callable[[], None]) -> None:
        if not interval_s > 0:
            raise ValueError(f"interval_s must be positive, not {interval_s}")
        self._interval_s = interval_s
        self._action = action
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread; only once."""
        self._thread.start()

    def stop(self, timeout_s: float = 5.0) -> None:
        """Stop the calls; wait up to `timeout_s` seconds for one in progress."""
        self._stopping.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(timeout_s)
            if self._thread.is_alive():
                log.warning("%s still runs after %g s", self._thread.name, timeout_s)

    def _run(self) -> None:
        due = time.monotonic() + self._interval_s
        while not self._stopping.wait(max(0.0, due - time.monotonic())):
            try:
                self._action()
            except Exception:
                log.exception("%s failed; it will run again", self._thread.name)
            missed = max(0.0, time.monotonic() - due) // self._interval_s
            due += (missed + 1) * self._interval_s


def run_cli(
    app: typer.Typer | Callable[[], typer.Typer],
    *,
    name: str = "edl",
    moved: Mapping[str, str] | None = None,
) -> NoReturn:
    """Run a command line and end the process with an exit code that fits the result.

    An error is reported in one line on stderr. Exit codes: `exit_code` of an EdlError; 2 for a
    misuse of the command line or a missing optional package; 130 for Ctrl-C; 141, without a line,
    if the reader of stdout has ended; 1 for other errors. With EDL_DEBUG set, or
    EDL_LOG_LEVEL=debug, the traceback is shown as well.

    Args:
        app: the command line, or a function that creates it. Errors in that function, such as
            those of imports, are reported in the same way. Until the function returns, Ctrl-C is
            handled as `exit_on_interrupt` has set it.
        name: start of each error line.
        moved: options of older versions, and their replacements. An option that has become a key
            of another option needs no entry if the key has its name.
    """
    open_standard_streams()
    write_whole_lines()
    level = os.environ.get("EDL_LOG_LEVEL", "").lower()
    debug = bool(os.environ.get("EDL_DEBUG")) or level == "debug"
    try:
        sys.exit(_invoke(app, name))
    except (Exception, KeyboardInterrupt) as error:
        if isinstance(error, BrokenPipeError) and _nobody_reads_stdout():
            sys.exit(EXIT_BROKEN_PIPE)
        code, line = _describe(error)
        if type(error).__name__ == "NoSuchOption":  # of Typer or click, see `_describe`
            line += _replacement_of(error, moved or {})
        try:
            if debug:
                traceback.print_exception(error)
            print(
                f"{name}: {escape_control_characters(' '.join(line.splitlines()))}",
                file=sys.stderr,
                flush=True,
            )
        except OSError:  # stderr is closed or its disk is full: only the exit code tells the error
            discard_output(sys.stderr)
        sys.exit(code)


def _invoke(app: typer.Typer | Callable[[], typer.Typer], name: str) -> int:
    import typer

    command = typer.main.get_command(app if isinstance(app, typer.Typer) else app())
    _refuse_infinite_numbers(command)
    restore_interrupt()
    program = os.path.basename(sys.argv[0])
    if program in ("__main__.py", "-c"):
        program = name
    if f"_{program.replace('-', '_').upper()}_COMPLETE" in os.environ:  # completions for a shell
        command.main(prog_name=program)
    try:  # not command.main(), which reports errors itself
        with command.make_context(program, sys.argv[1:]) as context:
            command.invoke(context)
        sys.stdout.flush()
    except typer.Exit as exit_:
        return exit_.exit_code
    except Exception as error:
        if type(error).__name__ != "NoArgsIsHelpError":
            raise
        show: Callable[[], None] = getattr(error, "show")  # noqa: B009
        show()  # prints the help, not an error
        return EXIT_USAGE
    return 0


def _refuse_infinite_numbers(command: Any) -> None:
    """Make parameters of a command and its subcommands refuse nan and inf, which float accepts."""
    for parameter in command.params:
        parameter.callback = partial(_checked, parameter.callback)
    for subcommand in getattr(command, "commands", {}).values():
        _refuse_infinite_numbers(subcommand)


def _checked(callback: Callable[..., Any] | None, context: Any, parameter: Any, value: Any) -> Any:
    """Call the callback of a parameter; raises BadParameter for infinite numbers and nan."""
    if isinstance(value, float) and not math.isfinite(value):
        import typer

        raise typer.BadParameter(f"{value} is not a finite number.", context, parameter)
    return value if callback is None else callback(context, parameter, value)


def _replacement_of(error: Any, moved: Mapping[str, str]) -> str:
    """Return ": " and the replacement of an unknown option; empty if none is known."""
    from .structured_option import spelling_among

    spelling = spelling_among(error.ctx.command.params, error.option_name)
    replacement = moved.get(error.option_name) or (spelling and f"it is {spelling} now")
    return f": {replacement}" if replacement else ""


def _nobody_reads_stdout() -> bool:
    """Return whether the reader of our stdout, such as `head`, has ended; if so, discard stdout."""
    poller = select.poll()
    poller.register(sys.stdout.fileno(), 0)  # poll always reports errors
    if not poller.poll(0):
        return False
    discard_output(sys.stdout)
    return True


def discard_output(stream: TextIO) -> None:
    """Discard what is written to a stream from now on, also by the flush at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _describe(error: BaseException) -> tuple[int, str]:
    """Return the exit code and the message for an error of a command line."""
    kind = type(error).__name__
    if isinstance(error, EdlError):
        return error.exit_code, str(error)
    if isinstance(error, KeyboardInterrupt) or kind == "Abort" or interrupt_came():
        return EXIT_INTERRUPTED, "interrupted"
    # Errors of Typer, found by their attributes: not all versions of Typer depend on click.
    message = getattr(error, "format_message", None)
    if message is not None:
        return int(getattr(error, "exit_code", EXIT_USAGE)), str(message())
    if isinstance(error, ModuleNotFoundError):
        package = (error.name or "").partition(".")[0]
        if package in EXTRA_BY_PACKAGE and find_spec(package) is None:
            command = install_command(EXTRA_BY_PACKAGE[package])
            return EXIT_USAGE, f"{package} is not installed: {command}"
    return EXIT_FAILURE, f"{kind}: {error} (EDL_DEBUG=1 shows where)"
