"""A teacher's process that is stopped or killed while it has a request."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from edl.errors import DeadlineExceeded, RetryableError, TeacherLost
from edl.proto import inference_pb2 as pb
from edl.proto.clients import Request, open_client
from edl.proto.clients.oip_grpc import OipGrpcClient
from edl.proto.datatypes import to_bytes
from edl.proto.lent_arena import LentArena
from edl.proto.places import Place
from edl.proto.security import open_channel
from edl.supervise import python_command, start
from edl.tests.teacher.bench import SERVICE, WAIT_S
from edl.tests.teacher.fakes import array
from edl.tests.teacher.segments import Object, placed_request, shared

pytestmark = pytest.mark.system

INPUT, OUTPUT = 64, 1024
X = array(3, 4)


class Teacher:
    """A teacher's process, whose model waits until it is released."""

    def __init__(self, go: Path) -> None:
        self.go = go
        arguments = (str(go), "127.0.0.1:0")
        self.process = start(
            python_command("teacher", "edl.tests.teacher.held_teacher", *arguments)
        )
        port = self.process.expect(r"^port (\d+)$", WAIT_S)[1]
        self.address = f"127.0.0.1:{port}"

    def hold(self) -> None:
        self.go.unlink(missing_ok=True)

    def wait_held(self) -> None:
        self.process.expect("^held$", WAIT_S)

    @contextmanager
    def stopped(self) -> Iterator[None]:
        os.kill(self.process.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self.process.pid, signal.SIGCONT)


@pytest.fixture(scope="module")
def shared_teacher(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Teacher]:
    teacher = Teacher(tmp_path_factory.mktemp("teacher") / "go")
    yield teacher
    teacher.process.stop(grace_s=0.0)


@pytest.fixture
def teacher(shared_teacher: Teacher) -> Teacher:
    shared_teacher.hold()
    return shared_teacher


@pytest.fixture
def arena() -> Iterator[LentArena]:
    with closing(LentArena.create(1 << 20)) as arena:
        yield arena


@pytest.fixture
def owned(teacher: Teacher) -> Iterator[Object]:
    """Memory of ours that the teacher knows as the region "slots"."""
    with shared(4096) as owned:
        region = pb.SystemSharedMemoryRegisterRequest(name="slots", key=owned.key, byte_size=4096)
        with open_channel(teacher.address) as channel:
            prefix = f"/{SERVICE}/SystemSharedMemory"
            data = region.SerializeToString()
            channel.unary_unary(f"{prefix}Register", None, None)(data, timeout=WAIT_S)
            yield owned
            channel.unary_unary(f"{prefix}Unregister", None, None)(b"", timeout=WAIT_S)


Infer = Callable[[int], Any]


@pytest.fixture
def infer(teacher: Teacher) -> Iterator[Infer]:
    """Asks for a batch in our memory, whose labels are written there."""
    with open_channel(teacher.address) as channel:
        serialize = pb.ModelInferRequest.SerializeToString
        parse = pb.ModelInferResponse.FromString
        method = channel.unary_unary(f"/{SERVICE}/ModelInfer", serialize, parse)

        def infer(generation: int) -> Any:
            read, written = (Place("slots", at, X.nbytes, generation) for at in (INPUT, OUTPUT))
            request = placed_request("resnet", X, "double", read, written)
            return method.future(request, timeout=WAIT_S)

        yield infer


def use(owned: Object, generation: int, data: bytes) -> None:
    """Give both places to a batch."""
    for at in (INPUT, OUTPUT):
        assert owned.take_back(generation, at)
    owned.put(data, INPUT)


def is_refused(late: Any) -> bool:
    with pytest.raises(grpc.RpcError):
        late.result(WAIT_S)
    code, words = late.code(), late.details()
    return code is grpc.StatusCode.ABORTED and "its generation is 8, 7 was named" in words


def is_served(teacher: Teacher, owned: Object, infer: Infer) -> bool:
    use(owned, 9, X.tobytes())
    teacher.go.touch()
    assert infer(9).result(WAIT_S).raw_output_contents == [b""]
    return owned.get(X.nbytes, OUTPUT) == (X * 2).tobytes()


def test_stopped_before_it_read_a_batch_it_labels_no_other(
    teacher: Teacher, owned: Object, infer: Infer
) -> None:
    use(owned, 7, X.tobytes())
    with teacher.stopped():
        late = infer(7)
        use(owned, 8, (X + 100).tobytes())
    assert is_refused(late)
    assert owned.get(X.nbytes, OUTPUT) == bytes(X.nbytes)
    assert is_served(teacher, owned, infer)


def test_stopped_while_the_model_works_it_overwrites_no_other_batch(
    teacher: Teacher, owned: Object, infer: Infer
) -> None:
    use(owned, 7, X.tobytes())
    late = infer(7)
    teacher.wait_held()
    with teacher.stopped():
        use(owned, 8, (X + 100).tobytes())
        owned.put(b"labels of another batch", OUTPUT)
        teacher.go.touch()
    assert is_refused(late)
    assert owned.get(23, OUTPUT) == b"labels of another batch"
    assert is_served(teacher, owned, infer)


def test_stopped_it_labels_no_batch_that_was_put_in_the_place_of_another(
    teacher: Teacher, arena: LentArena
) -> None:
    with closing(OipGrpcClient(teacher.address, "resnet")) as client:
        client.register_memory("r", arena.key, arena.size_bytes, WAIT_S)
        record = arena.put([X])
        found = arena.lent(to_bytes(arena.get(record.arrays[0])))
        assert found is not None
        place = Place("r", found[0], X.nbytes, found[1])
        with ThreadPoolExecutor(1) as thread:
            late = thread.submit(client.infer, Request({"x": X}), WAIT_S, {"x": place})
            teacher.wait_held()
            with teacher.stopped():
                arena.free(record.offset)
                arena.put([X + 1000])
                teacher.go.touch()
            with pytest.raises(RetryableError, match="is not this request's any more"):
                late.result(WAIT_S)
        client.unregister_memory("r", WAIT_S)


def test_stopped_it_is_late_and_serves_again_when_it_goes_on(teacher: Teacher) -> None:
    teacher.go.touch()
    with closing(OipGrpcClient(teacher.address, "resnet")) as client:
        client.probe(WAIT_S)
        client.infer(Request({"x": X}), WAIT_S)
        with teacher.stopped(), ThreadPoolExecutor(3) as pool:
            large = Request({"x": array(50_000, 4)})
            waiting = [pool.submit(client.infer, large, 0.3) for _ in range(3)]
            for one in waiting:
                with pytest.raises(DeadlineExceeded):
                    one.result(WAIT_S)
        answer = client.infer(Request({"x": X}), WAIT_S)
        assert answer.outputs["double"].tobytes() == (X * 2).tobytes()


@pytest.mark.parametrize("in_place", [True, False])
def test_killed_it_is_lost_at_once(tmp_path: Path, arena: LentArena, in_place: bool) -> None:
    teacher = Teacher(tmp_path / "go")
    x = arena.get(arena.put([X]).arrays[0]) if in_place else X
    try:
        client = open_client("", teacher.address, "resnet", arena=arena)
        client.probe(WAIT_S)
        with ThreadPoolExecutor(1) as thread:
            asked = thread.submit(client.infer, Request({"x": x}), 2 * WAIT_S)
            teacher.wait_held()
            teacher.process.kill()
            with pytest.raises(TeacherLost) as caught:
                asked.result(WAIT_S)
        assert not isinstance(caught.value, DeadlineExceeded)
        client.close()
    finally:
        teacher.process.stop(grace_s=0.0)
