"""A real pipeline server of Paddle Serving as a teacher: `edl-teacher serve --engine`."""

from __future__ import annotations

import ast
import io
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pool import DescriptorPool

from edl.coordinator.registry import connect
from edl.distill_reader import DistilReader
from edl.mesh.local import LocalMesh, TeacherSpec
from edl.proto.clients import LabelRequest, open_client, paddle_serving
from edl.proto.paddle_serving import general_model_pb2, pipeline_pb2
from edl.proto.protocols import PADDLE_SERVING
from edl.runtime.errors import RequestRefused
from edl.runtime.supervise import Command, Process, python_command, start
from edl.tests.interop.environments import serving_python
from edl.tests.interop.running import PROGRAMS
from edl.tests.proto.test_stubs import fields
from edl.tests.runtime.programs import wait_gone
from edl.tests.waiting import DEADLINE_S

pytestmark = [pytest.mark.interop, pytest.mark.timeout(900)]

SERVICE, ROWS, START_S, READER_S = "net", 8, 120.0, 60.0


@dataclass(frozen=True, slots=True)
class Network:
    """A model in the format that Paddle Serving reads, and what it makes of images, by Paddle."""

    folder: Path
    images: Any
    logits: Any

    def rows(self, number: int) -> Any:
        """Which images a batch holds: of no two batches the same ones in one order."""
        return (np.arange(ROWS) * 7 + number) % len(self.images)

    def check(self, batches: list[tuple[Any, Any, Any]], count: int) -> None:
        assert [int(numbers[0]) for _, numbers, _ in batches] == list(range(count))
        for images, numbers, soft in batches:
            rows = self.rows(int(numbers[0]))
            np.testing.assert_array_equal(images, self.images[rows])
            np.testing.assert_allclose(soft, self.logits[rows], rtol=0, atol=1e-5)


@dataclass(frozen=True, slots=True)
class Source:
    """`count` numbered batches of images; `before` is called with the number of each."""

    network: Network
    count: int
    before: Callable[[int], None]

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        for number in range(self.count):
            self.before(number)
            yield self.network.images[self.network.rows(number)], np.full(ROWS, number)


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Network:
    """The tiny network of `paddle_export.py`, in the format of Paddle 2."""
    folder = tmp_path_factory.mktemp("former")
    argv = (sys.executable, "-P", str(PROGRAMS / "paddle_export.py"), str(folder))
    env = {"FLAGS_enable_pir_api": "0"}  # read when Paddle is imported
    process = start(Command("export", argv, env=env, guard=True))
    assert process.wait(START_S) == 0, process.tail()
    return Network(folder, np.load(folder / "x.npy"), np.load(folder / "y.npy"))


@pytest.fixture
def mesh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalMesh]:
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # a teacher that is killed leaves files there
    with LocalMesh(start_timeout_s=START_S) as mesh:
        yield mesh


def spec(model: Path, *options: str) -> TeacherSpec:
    engine = ("--engine", f"paddle-serving,python={serving_python()}")
    return TeacherSpec(SERVICE, str(model), ttl_s=2.0, options=(*engine, *options))


def running(teacher: Process) -> psutil.Process:
    """The pipeline server that this teacher keeps."""
    for child in psutil.Process(teacher.pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if any(word.endswith("service.py") for word in child.cmdline()[:4]):
                return child
    raise AssertionError("no server runs")


def reader(source: Source, mesh: LocalMesh) -> DistilReader:
    return DistilReader(source, service=SERVICE, coordinator=mesh.url)


def test_it_labels_epochs_through_a_kill_and_a_drain(
    network: Network, mesh: LocalMesh, tmp_path: Path
) -> None:
    """Its canary comes from our own backend, which reads the same files."""
    canary = str(tmp_path / "net.canary")
    words = ("teacher", "fingerprint", str(network.folder), "--canary", canary)
    kept = start(python_command("fingerprint", "edl", *words))
    assert kept.wait(START_S) == 0, kept.tail()
    mesh.add_teacher("theirs", spec(network.folder, "--canary", canary))
    with closing(connect(mesh.url, timeout_s=DEADLINE_S)) as registry:
        (member,) = registry.members("teachers", SERVICE)
    assert (member.facts["protocol"], member.facts["verified"]) == (PADDLE_SERVING, "canary")
    teacher = mesh.teachers["theirs"]
    first = running(teacher)
    listening = [at.laddr.ip for at in first.net_connections() if at.status == "LISTEN"]
    assert listening
    assert {ip.removeprefix("::ffff:") for ip in listening} == {"127.0.0.1"}
    with closing(open_client(PADDLE_SERVING, member.facts["address"], SERVICE)) as client:
        for rows in (1, 29, 64):  # less than a micro-batch, and several of them
            asked = LabelRequest({"image": network.images[:rows]})
            (labels,) = client.infer(asked, READER_S).outputs.values()
            np.testing.assert_allclose(labels, network.logits[:rows], rtol=0, atol=1e-5)

    def kill_in_the_middle(number: int) -> None:
        if number == 30:  # no later batch can have been labelled before
            first.kill()
            first.wait(READER_S)

    with closing(reader(Source(network, 60, kill_in_the_middle), mesh)) as labelled:
        network.check(list(labelled), 60)
    second = running(teacher)
    assert second.pid != first.pid
    assert teacher.alive
    whole = [child.pid for child in psutil.Process(teacher.pid).children(recursive=True)]
    folder = Path(second.cwd())

    def drain_in_the_middle(number: int) -> None:
        if number == 30:  # a teacher of ours serves the same files, and so the same content
            mesh.add_teacher("ours", TeacherSpec(SERVICE, str(network.folder)))
            mesh.drain("theirs")
        if number == 60:
            assert teacher.wait(READER_S) == 0, teacher.tail()

    with closing(reader(Source(network, 90, drain_in_the_middle), mesh)) as labelled:
        network.check(list(labelled), 90)
        assert labelled.stats.resends == 0
        assert labelled.stats.teachers == ("ours",)
    wait_gone(whole)
    assert not folder.exists()


def test_what_is_pickled_is_not_unpickled(
    network: Network, mesh: LocalMesh, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    address = mesh.add_teacher("t", spec(network.folder))
    bomb = tmp_path / "unpickled"

    class Bomb:
        def __reduce__(self) -> tuple[Any, tuple[Path]]:
            return (Path.touch, (bomb,))

    def pickled(array: Any) -> bytes:
        file = io.BytesIO()
        np.save(file, np.array([Bomb()], object), allow_pickle=True)
        return file.getvalue()

    with closing(open_client(PADDLE_SERVING, address, SERVICE)) as client:
        asked = LabelRequest({"image": network.images[:2]})
        assert client.infer(asked, READER_S).outputs
        with monkeypatch.context() as patch:
            patch.setattr(paddle_serving, "write_npy", pickled)
            with pytest.raises(Exception, match="Object arrays cannot be loaded"):
                client.infer(asked, READER_S)
        assert not bomb.exists()
        assert client.infer(asked, READER_S).outputs
        with pytest.raises(RequestRefused, match="err_no"):
            client.infer(LabelRequest({"image": network.images[:2, :, :5]}), READER_S)
    teacher = mesh.teachers["t"]
    whole = [child.pid for child in psutil.Process(teacher.pid).children(recursive=True)]
    mesh.kill("t")  # its server dies with it
    teacher.wait()
    wait_gone(whole)


def shipped(path: str) -> Any:
    """The descriptors in a file of generated code, read without importing it."""
    site = next((serving_python().parent.parent / "lib").glob("python3*/site-packages"))
    for node in ast.walk(ast.parse((site / path).read_text())):
        if isinstance(node, ast.keyword) and node.arg == "serialized_pb":
            return DescriptorPool().AddSerializedFile(ast.literal_eval(node.value))
    raise AssertionError(f"{path} holds no descriptors")


@pytest.mark.parametrize(
    ("path", "ours"),
    [
        ("paddle_serving_server/pipeline/proto/pipeline_service_pb2.py", pipeline_pb2.DESCRIPTOR),
        ("paddle_serving_server/proto/general_model_service_pb2.py", general_model_pb2.DESCRIPTOR),
    ],
)
def test_messages_and_methods_are_those_that_are_shipped(path: str, ours: FileDescriptor) -> None:
    theirs = shipped(path)
    assert ours.package == theirs.package
    assert set(ours.message_types_by_name) == set(theirs.message_types_by_name)
    for name, message in ours.message_types_by_name.items():
        assert fields(message) == fields(theirs.message_types_by_name[name]), name
    for name, service in ours.services_by_name.items():
        others = theirs.services_by_name[name].methods
        assert [(m.name, m.input_type.full_name, m.output_type.full_name) for m in others] == [
            (m.name, m.input_type.full_name, m.output_type.full_name) for m in service.methods
        ]
