"""Third-party model servers with the tiny model, each in its own environment, and sidecars."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import psutil

from edl.proto.clients import LabelRequest, open_client
from edl.runtime.supervise import Process, python_command, start
from edl.tests.interop.environments import KSERVE, MLSERVER, TRITON, Environment
from edl.tests.interop.programs.network import CLASSES, FEATURES, INPUT, MODEL, OUTPUT, labels_of
from edl.tests.interop.running import HOST, PROGRAMS, Ports, kill, listens, running, status
from edl.tests.system.conftest import FOR_EVER, Batches

ANSWER_S = 30.0
#: The factory of the tiny model, as our own teachers are told of it.
FACTORY = "edl.tests.interop.programs.network:teacher"
START_S = 60.0
TTL_S = 2.0
#: As in `programs/triton_server.py`.
TRITON_MAX_BATCH = 64


def known_batches(count: int = FOR_EVER) -> Batches:
    return Batches(count, (8, FEATURES), labels_of)


@dataclass(frozen=True, slots=True)
class Server:
    """A server of the Open Inference Protocol that is ready, and its addresses, host:port."""

    process: Process
    grpc: str
    http: str
    binary: bool = True  # whether it takes tensors as bytes over HTTP

    def kill(self) -> None:
        """KILL to all of its processes, as when a machine is lost."""
        kill(self.process)


@contextmanager
def triton(folder: Path) -> Iterator[Server]:
    """NVIDIA Triton; it needs no `folder`."""
    TRITON.make()
    argv = partial(_script, TRITON, "triton_server.py")
    # In the folder of a test with a long name the paths of its sockets would be too long.
    with TemporaryDirectory(prefix="triton-") as home, ExitStack() as afterwards:
        # Its model process loads whichever libpython the loader finds first.
        env = {"LD_LIBRARY_PATH": _library_folder(TRITON), "PYTRITON_HOME": home}
        with running("triton", argv, 3, _is_ready, env) as (process, ports):
            server = _server(process, ports)
            _warm_up(server)
            copy = _copied_model(process)  # which it leaves when it is killed
            afterwards.callback(shutil.rmtree, copy, ignore_errors=True)
            yield server


@contextmanager
def kserve(folder: Path) -> Iterator[Server]:
    """KServe's model server; it needs no `folder`."""
    KSERVE.make()
    argv = partial(_script, KSERVE, "kserve_server.py")
    with running("kserve", argv, 2, _is_ready) as (process, ports):
        yield _server(process, ports)


@contextmanager
def mlserver(folder: Path, *, declared: bool = True) -> Iterator[Server]:
    """MLServer, which describes a model only where its settings do; `folder` is for these."""
    MLSERVER.make()
    model: dict[str, Any] = {"name": MODEL, "implementation": "mlserver_model.Net"}
    if declared:
        model["inputs"] = [{"name": INPUT, "datatype": "FP32", "shape": [-1, FEATURES]}]
        model["outputs"] = [{"name": OUTPUT, "datatype": "FP32", "shape": [-1, CLASSES]}]
    (folder / "model-settings.json").write_text(json.dumps(model))

    def argv(ports: Ports) -> tuple[str, ...]:
        names = ("grpc_port", "http_port", "metrics_port")
        settings = {"host": HOST, "parallel_workers": 0, **dict(zip(names, ports, strict=True))}
        (folder / "settings.json").write_text(json.dumps(settings))
        return (str(MLSERVER.program("mlserver")), "start", str(folder))

    with running("mlserver", argv, 3, _is_ready) as (process, ports):
        yield _server(process, ports, binary=False)


Starts = Callable[[Path], AbstractContextManager[Server]]
STARTS: dict[str, Starts] = {"triton": triton, "kserve": kserve, "mlserver": mlserver}


@contextmanager
def registered(
    name: str, address: str, redis: str, canary: Path, *options: str
) -> Iterator[Process]:
    """A sidecar that has registered the server at `address` as the teacher `name`."""
    server = ("--service", MODEL, "--endpoint", address, "--model", MODEL, "--canary", canary)
    mesh = ("--redis", redis, "--teacher-id", name, "--ttl", TTL_S, "--probe", "every=0.2")
    words = ("teacher", "register", *server, *mesh, *options)
    sidecar = start(python_command(f"sidecar of {name}", "edl", *words))
    try:
        sidecar.expect(rf"^teacher registered: {name} {MODEL} at .*canary", START_S)
        yield sidecar
    finally:
        sidecar.stop()


def write_canary(file: Path) -> Path:
    """What the model answers where it is known to be good: here."""
    command = python_command("canary", "edl", "teacher", "fingerprint", FACTORY, "--canary", file)
    process = start(command)
    assert process.wait(START_S) == 0, process.tail()
    return file


def _script(environment: Environment, name: str, ports: Ports) -> tuple[str, ...]:
    """The command line of one of `programs/`, which takes its ports as arguments."""
    return (str(environment.program("python")), str(PROGRAMS / name), *map(str, ports))


def _server(process: Process, ports: Ports, *, binary: bool = True) -> Server:
    return Server(process, f"{HOST}:{ports[0]}", f"{HOST}:{ports[1]}", binary)


def _is_ready(ports: Ports) -> bool:
    """Whether it serves the model on its ports, of which gRPC's is the first, HTTP's the next."""
    path = f"/v2/models/{MODEL}/ready"
    return listens(f"{HOST}:{ports[0]}") and status(f"{HOST}:{ports[1]}", path) == 200


def _warm_up(server: Server) -> None:
    """Have its largest batch labelled: the shared memory that this takes is kept for later ones."""
    with closing(open_client("oip", server.grpc, MODEL)) as client:
        x = np.zeros((TRITON_MAX_BATCH, FEATURES), np.float32)
        client.infer(LabelRequest({INPUT: x}), ANSWER_S)


def _copied_model(process: Process) -> Path:
    """Where Triton has put its copy of the model: in a folder of its own choice."""
    (stub,) = (
        child
        for child in psutil.Process(process.pid).children(recursive=True)
        if child.cmdline()[0].endswith("/triton_python_backend_stub")
    )
    return Path(stub.cmdline()[1]).parents[1]


def _library_folder(environment: Environment) -> str:
    """Where the shared library of its interpreter lies."""
    code = "import sysconfig; print(sysconfig.get_config_var('LIBDIR'))"
    argv = [str(environment.program("python")), "-c", code]
    run = subprocess.run(argv, check=True, capture_output=True, text=True)
    return run.stdout.strip()
