"""The commands `edl` and `edl-teacher`, and the module of each subcommand.

Modules are imported only when the command that needs them runs.
"""

from __future__ import annotations

import os
import sys

from .runtime.interrupts import exit_on_interrupt

TYPE_CHECKING = False  # importing `typing` takes longer than all other imports here
if TYPE_CHECKING:
    from typing import Final

    import typer

#: Groups of commands: the module whose `app` is the group, and the group's line in `edl --help`.
_GROUPS = {
    "coordinator": (
        "coordinator.cli",
        "Service managers: they watch leases and assign teachers to students.",
    ),
    "teacher": ("teacher.cli", "Serve a model as a teacher."),
    "student": (
        "student.cli",
        "Train a student on nodes that come and go; evaluate, export.",
    ),
    "agent": (
        "mesh.agent.cli",
        "Lend this machine to the mesh: it registers and runs a teacher of a service that needs"
        " one.",
    ),
    "context": (
        "coordinator.ops.cli",
        "Contexts: named meshes and how to reach them, in ~/.config/edl-dist/contexts.yaml.",
    ),
    "store": (
        "distill_reader.store.cli",
        "Label stores, the files in which readers keep soft labels: inspect, export, delete rows.",
    ),
    "checkpoint": (
        "student.checkpoint.cli",
        "Checkpoints of trainings: list, verify, prune.",
    ),
    "operator": (
        "deploy.operator.cli",
        "The operator: reconcile TeacherServices and DistillJobs of a Kubernetes cluster.",
    ),
}
#: Commands of older versions, and what to use instead.
_FORMER_COMMANDS = {
    "context list": "edl get contexts",
    "context remove": "edl delete context NAME",
    "agent resume": "edl agent yield --end",
    "store verify": "edl store inspect PATH --verify",
    "checkpoint verify": "edl checkpoint list PLACE --verify",
    "fleet": "edl agent --local, edl agent jobs",
    "fleet local": "edl agent --local, with options of teachers as --teacher-options '...'",
    "fleet jobs": "edl agent jobs",
    "job": "edl get|describe|logs|scale|delete job",
    "job submit": "edl apply -f JOB.yaml, with `kind: job` in the file",
    "job list": "edl get jobs",
    "job scale": "edl scale job NAME N",
    "job stop": "edl delete job NAME",
    "job logs": "edl logs job NAME",
    "job events": "edl events --jobs",
    "job reserve": "edl reserve",
    "service": "edl get|describe|scale|delete service",
    "service list": "edl get services",
    "service show": "edl describe service NAME",
    "service upgrade": "edl upgrade SERVICE CONTENT",
    "service deploy": "edl apply -f FILE.yaml, with `kind: service` in the file",
    "service undeploy": "edl delete service NAME",
}
_USE_TLS: Final = "it is --tls ca=FILE,cert=FILE,key=FILE now"
_USE_LISTEN: Final = "it is --listen HOST:PORT now"
#: Options of older versions of any command, and what to use instead.
_FORMER_OPTIONS: Final = {
    "--coordinator": "it is --redis now",
    "--host": _USE_LISTEN,
    "--port": _USE_LISTEN,
    "--log-format": "set EDL_LOG_FORMAT=json",
    "--verbose": "set EDL_LOG_LEVEL=debug",
    "--tls-ca": _USE_TLS,
    "--tls-cert": _USE_TLS,
    "--tls-key": _USE_TLS,
}
_ADD_TO_CONTEXT: Final = "it belongs to a context: 'edl context add NAME"
_CONTEXT_OPTIONS: Final = {
    "--tls-ca": f"{_ADD_TO_CONTEXT} --tls ca=FILE ...', or EDL_TLS_CA",
    "--tls-cert": f"{_ADD_TO_CONTEXT} --tls cert=FILE,key=FILE ...', or EDL_TLS_CERT",
    "--tls-key": f"{_ADD_TO_CONTEXT} --tls cert=FILE,key=FILE ...', or EDL_TLS_KEY",
    "--token-file": f"{_ADD_TO_CONTEXT} --token-file FILE ...', or EDL_TOKEN_FILE",
    "--on": f"{_ADD_TO_CONTEXT} --jobs-on ...', or EDL_JOBS_ON",
    "--kubeconfig": f"{_ADD_TO_CONTEXT} --jobs-on kubernetes,kubeconfig=FILE ...'",
    "--queue": f"{_ADD_TO_CONTEXT} --jobs-on queue,queue=NAME ...', or EDL_QUEUE",
}
#: Options of older versions of one command or group, and what to use instead. An option that is now
#: a key of another option, with the same name, needs no entry: `lifecycle.run_cli` finds the key.
MOVED_OF: Final[dict[str, dict[str, str]]] = {
    **dict.fromkeys(("status", "events", "doctor"), _CONTEXT_OPTIONS),
    "drain": {**_CONTEXT_OPTIONS, "--host": "'edl drain machine HOST'"},
    "agent": {
        "--cache-gib": "it is --cache FOLDER,gib=N now",
        "--quiet": "it is --load CORES,quiet=SECONDS now",
        "--no-wait": "it is --wait 0 now",
        "--grace": "it is --wait SECONDS now",
    },
    "operator": {
        "--leader-elect": "leave it out: it is the default",
        "--no-leader-elect": "it is --lease-duration 0 now",
    },
    "store": {
        "--temperature": "it is --form FORM,temperature=T now",
        "--dense": "it is --form FORM,dense=on now",
    },
    "context": {
        "--queue": "it is --jobs-on queue,queue=NAME now",
        "--kubeconfig": "it is --jobs-on kubernetes,kubeconfig=FILE now",
        "--kube-context": "it is --jobs-on kubernetes,kube-context=NAME now",
    },
    "coordinator": {
        "--min-teachers": "it is --autoscale min=N now",
        "--max-teachers": "it is --autoscale max=N now",
        "--teacher-price": "it is --autoscale price=N now",
        "--leader-ttl": "it is --ttl SECONDS,leader=SECONDS now",
        "--probe-ca": "it is --probe ca=FILE now",
        "--probe-token-file": "it is --probe token-file=FILE now",
        **{
            f"--{role}-password-file": f"it is --password-file {role}=FILE now"
            for role in ("teacher", "reader", "student", "agent", "fleet", "manager")
        },
    },
    "teacher": {
        "--batch-max": "it is --batch max=N now",
        "--batch-delay": "it is --batch max=N,delay=SECONDS now",
        "--batch-preferred": "it is --batch max=N,preferred=N,N,... now",
        "--rate": "it is --backend paced,rate=N now",
        "--serving-python": "it is --engine paddle-serving,python=FILE now",
        "--max-message-mib": "it is --limit message-mib=N now",
        "--max-calls": "it is --limit calls=N now",
        "--max-calls-per-peer": "it is --limit calls-per-peer=N now",
        "--request-memory-mib": "it is --limit memory-mib=N now",
        "--beat-relay": "the agent sets EDL_BEAT_RELAY",
        "--output-kind": "it is --output NAME=KIND now",
        "--samples": "it is --canary FILE,samples=FILE.npz now",
        "--tolerance": "it is --canary FILE,tolerance=SHARE now",
        "--seconds": "leave it out: it ends after 60 s",
        "--threads": "it is --device cpu:CORES now",
    },
    "demo": {"--seeds": "it is --students now"},
    "profile": {
        "--student-device": "it is --student-on KIND,device=cpu:CORES now",
        "--teacher-device": "it is --teacher-on KIND,device=DEVICE now",
        "--rate": "it is --backend paced,rate=N now",
    },
    "student": {
        "--host": "it is --advertise now",
        "--shard-rows": "it is --deal dynamic,shard-rows=N now",
        "--save-every-steps": "it is --save steps=N now",
        "--save-every": "it is --save seconds=N now",
        "--save-overhead": "it is --save overhead=SHARE now",
    },
}
#: Commands outside of groups, by module. The module has a function with the name of each command;
#: the first line of its docstring is the command's line in `edl --help`.
_COMMANDS = {
    "mesh.up.cli": ("up", "down"),
    "coordinator.ops.cli": ("status", "doctor"),
    "mesh.resources.cli": (
        *("get", "describe", "logs", "scale", "drain"),
        *("delete", "apply", "upgrade", "reserve", "events"),
    ),
    "mesh.demo.cli": ("demo",),
    "mesh.plan.cli": ("plan",),
    "mesh.profile.cli": ("profile",),
    "mesh.simulate.cli": ("simulate",),
    "mesh.chaos.cli": ("chaos",),
    "benchmarks.cli": ("bench",),
}
#: Module of each command outside of groups.
_MODULES = {name: module for module, names in _COMMANDS.items() for name in names}


def main() -> None:
    """Run the `edl` command line, as the console script and `python -m edl` do."""
    exit_on_interrupt("edl")
    from .runtime.lifecycle import run_cli

    run_cli(_edl, moved=_former_options(sys.argv[1] if len(sys.argv) > 1 else ""))


def teacher() -> None:
    """Run the `edl-teacher` command line, as the console script and `python -m edl.teacher` do."""
    exit_on_interrupt("edl-teacher")
    from .runtime.lifecycle import run_cli

    run_cli(_teacher, name="edl-teacher", moved=_former_options("teacher"))


def command_line(only: str = "") -> typer.Typer:
    """Build the command line.

    Args:
        only: the subcommand that will run. The modules of other subcommands are not imported. If
            there is no such subcommand, all subcommands are included.
    """
    from importlib import import_module

    known = only in _GROUPS or only in _MODULES
    app = _root()
    for name, (module, help_line) in _GROUPS.items():
        if name == only or not known:
            group = import_module(f".{module}", __package__).app
            # `short_help`, because `help` would replace the help text of the group's callback
            app.add_typer(group, name=name, short_help=help_line)
    for name, module in _MODULES.items():
        if name == only or not known:
            app.command(name)(getattr(import_module(f".{module}", __package__), name))
    return app


def overview() -> typer.Typer:
    """Build the command line of `edl --help`, without importing the modules of the commands."""
    app = _root()
    help_lines = {name: _help_line(module, name) for name, module in _MODULES.items()}
    help_lines |= {name: help_line for name, (_, help_line) in _GROUPS.items()}
    for name, help_line in help_lines.items():
        app.command(name, help=help_line)(lambda: None)
    return app


def _help_line(module: str, function: str) -> str:
    """Return the first line of a function's docstring, without importing its module."""
    import re

    path = os.path.join(os.path.dirname(__file__), *module.split("."))
    with open(f"{path}.py", encoding="utf-8") as file:
        found = re.search(rf'^def {function}\(.*?"""([^"\n]+)', file.read(), re.M | re.S)
    return found[1] if found else ""


def _root() -> typer.Typer:
    import typer

    from . import __version__

    def show_version(wanted: bool) -> None:
        if wanted:
            typer.echo(f"edl-dist {__version__}")
            raise typer.Exit

    app = typer.Typer(name="edl", no_args_is_help=True, pretty_exceptions_enable=False)
    version = typer.Option(
        False, "--version", help="Show the version.", is_eager=True, callback=show_version
    )

    @app.callback()
    def edl(version: bool = version) -> None:
        """EDL-Dist: a mesh of teachers that label the batches of your student."""

    return app


def _former_options(command: str) -> dict[str, str]:
    """Return options that `command` had in older versions, and what to use instead."""
    return _FORMER_OPTIONS | MOVED_OF.get(command, {})


def _edl() -> typer.Typer:
    # Called by run_cli, which reports an error of an import in one line instead of a traceback.
    words, completing = sys.argv[1:], "_EDL_COMPLETE" in os.environ
    if completing:  # the completion scripts of typer pass the typed words in these variables
        line = os.environ.get("_TYPER_COMPLETE_ARGS") or os.environ.get("COMP_WORDS") or ""
        words = line.split()[1:]
    known = bool(words) and words[0] in _GROUPS | _MODULES
    former = " ".join(words[:2]) if " ".join(words[:2]) in _FORMER_COMMANDS else "".join(words[:1])
    if former in _FORMER_COMMANDS and not completing:
        from .runtime.errors import UsageError

        raise UsageError(f"'edl {former}' is now: {_FORMER_COMMANDS[former]}")
    if words in ([], ["--help"], ["--version"]) or (completing and not known):
        return overview()
    return command_line(words[0])


def _teacher() -> typer.Typer:
    from .teacher.cli import app  # here, so that run_cli reports errors of the import, as in _edl

    return app
