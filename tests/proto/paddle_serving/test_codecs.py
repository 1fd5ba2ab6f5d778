"""Messages of Paddle Serving and .npy files: arrays come back, and nothing is unpickled."""

from __future__ import annotations

import contextlib
import io
import pickle
import struct
from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from edl.proto.arena import Array
from edl.proto.clients import paddle_serving
from edl.proto.clients.paddle_serving import ELEM_TYPES, NPY, TYPES, read_npy, write_npy
from edl.proto.datatypes import datatype_of
from edl.proto.paddle_serving import general_model_pb2 as cpp
from edl.proto.paddle_serving import pipeline_pb2 as pb
from edl.runtime import errors

X = np.arange(24, dtype=np.float32).reshape(4, 6)


def numbers_of(array: Array) -> list[float | int | bool]:
    bits = array.view(np.uint16) if array.dtype.kind == "V" else array
    return list(bits.ravel().tolist())


def samples() -> list[Array]:
    plain = [
        np.array([[1, 0, 3]]).astype(n) for n in ("i8", "f4", "i4", "f8", "i2", "f2", "u1", "i1")
    ]
    return [*plain, np.array([[1.5, -2, 0]], ml_dtypes.bfloat16), np.array([[True, False, True]])]


def test_a_request_to_a_pipeline_holds_npy_files() -> None:
    message = pb.Request.FromString(paddle_serving.pipeline_request("net", {"x": X, "n": X[0]}, 7))
    assert (message.name, message.logid) == ("net", 7)
    assert [tensor.name for tensor in message.tensors] == ["x", "n"]
    assert [list(tensor.shape) for tensor in message.tensors] == [[4, 6], [6]]
    assert {tensor.elem_type for tensor in message.tensors} == {NPY}
    assert not message.key
    assert not message.value
    loaded = np.load(io.BytesIO(message.tensors[0].byte_data), allow_pickle=False)
    assert loaded.tobytes() == X.tobytes()


def check_read(read: Array, array: Array) -> None:
    assert (read.dtype, read.shape) == (array.dtype, array.shape)
    assert read.tobytes() == array.tobytes()
    assert not read.flags.writeable


@pytest.mark.parametrize("array", samples(), ids=lambda array: array.dtype.name)
def test_every_type_of_elements_is_read(array: Array) -> None:
    number = ELEM_TYPES[datatype_of(array.dtype)]
    tensor = pb.Tensor(name="y", elem_type=number, shape=array.shape)
    getattr(tensor, TYPES[number].field).extend(numbers_of(array))
    answer = pb.Response(tensors=[tensor]).SerializeToString()
    check_read(paddle_serving.pipeline_outputs(answer)["y"], array)
    # ... and goes to a server in C++, and comes back.
    message = cpp.Request.FromString(paddle_serving.general_model_request({"x": array}, ("y",), 5))
    assert (list(message.fetch_var_names), message.log_id) == (["y"], 5)
    sent = message.tensor[0]
    assert (sent.name, sent.alias_name, list(sent.shape)) == ("x", "x", list(array.shape))
    check_read(paddle_serving.general_model_outputs(cpp_answer(sent))["x"], array)


def tensor(**fields: object) -> bytes:
    whole = {"name": "y", "elem_type": 1, "shape": [2], "float_data": [1, 2], **fields}
    return pb.Response(tensors=[pb.Tensor(**whole)]).SerializeToString()  # type: ignore[arg-type]


TEXT = pb.Response(key=["y"], value=["__import__('os').abort()"]).SerializeToString()


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"\xff\xff", "not an answer of a pipeline server"),
        (pb.Response().SerializeToString(), "holds no tensors"),
        (TEXT, "answers with text, which is never evaluated"),
        (tensor(shape=[3]), "needs 3 elements"),
        (tensor(shape=[-2]), "negative"),
        (tensor(shape=[2] + [1] * 40), "dimensions"),
        (tensor(shape=[2, 0]), "needs 0 elements"),
        (tensor(elem_type=12), "elem_type 12 is not known"),
        (tensor(elem_type=4, int_data=[1, 70_000]), "not within -32768..32767"),
        (tensor(elem_type=6, uint32_data=[1, 70_000]), "not within 0..65535"),
        (tensor(elem_type=13, byte_data=b"text"), "not a .npy file"),
        (tensor(lod=[0, 1]), "varying length"),
        (tensor(name=""), "nameless"),
        (tensor() + tensor(), "comes twice"),
    ],
)
def test_an_answer_that_cannot_be_read_is_refused(answer: bytes, words: str) -> None:
    with pytest.raises(errors.WireError, match=words):
        paddle_serving.pipeline_outputs(answer)


ERROR_NUMBERS: dict[type[errors.EdlError], tuple[int, ...]] = {
    errors.RetryableError: (-3, 7, 100, 4000, 6000, 8000),
    errors.RequestRefused: (50, 99, 3002, 5000, 7000, 9000, 10000),
    errors.TeacherLost: (3001,),
}


@pytest.mark.parametrize("kind", ERROR_NUMBERS)
def test_every_error_number_is_an_error_of_ours(kind: type[errors.EdlError]) -> None:
    for number in ERROR_NUMBERS[kind]:
        with pytest.raises(errors.EdlError, match=f"err_no {number}: no such thing") as caught:
            paddle_serving.check_error(number, "no\n such   thing")
        assert type(caught.value) is kind
        with pytest.raises(kind, match="no message"):  # outputs beside it do not count
            paddle_serving.pipeline_outputs(
                tensor() + pb.Response(err_no=number).SerializeToString()
            )
        with pytest.raises(kind, match="no message"):
            paddle_serving.general_model_outputs(cpp.Response(err_no=number).SerializeToString())
    with pytest.raises(errors.RetryableError, match="Out of memory"):  # it may have some later
        paddle_serving.check_error(10000, "(ResourceExhausted) Out of memory error on GPU 0")


@given(st.data())
def test_no_damage_does_more_than_be_refused(data: st.DataObject) -> None:
    whole = cpp.Tensor(name="y", elem_type=7, shape=[4], tensor_content=b"abcd")
    answers: list[tuple[Callable[[bytes], object], bytes]] = [
        (paddle_serving.pipeline_outputs, tensor(elem_type=NPY, byte_data=write_npy(X))),
        (paddle_serving.pipeline_outputs, tensor()),
        (paddle_serving.general_model_outputs, cpp_answer(whole)),
    ]
    decode, answer = data.draw(st.sampled_from(answers))
    damaged = bytearray(answer)
    for at in data.draw(st.lists(st.integers(0, len(answer) - 1), min_size=1, max_size=4)):
        damaged[at] = data.draw(st.integers(0, 255))
    with contextlib.suppress(errors.WireError, errors.TeacherError):
        decode(bytes(damaged))


def cpp_answer(*tensors: cpp.Tensor) -> bytes:
    return cpp.Response(outputs=[cpp.ModelOutput(tensor=tensors)]).SerializeToString()


def test_bytes_do_not_go_to_a_cpp_server() -> None:
    with pytest.raises(errors.WireError, match="BYTES cannot be sent"):
        paddle_serving.general_model_request({"x": np.array([b"a"], object)})


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"\xff\xff", "not an answer of a general model service"),
        (cpp.Response().SerializeToString(), "outputs of 0 models"),
        (cpp_answer(), "outputs of 1 models"),
        (cpp_answer(cpp.Tensor(elem_type=1, shape=[0])), "nameless"),
    ],
)
def test_an_answer_of_a_cpp_server_that_is_none_is_refused(answer: bytes, words: str) -> None:
    with pytest.raises(errors.WireError, match=words):
        paddle_serving.general_model_outputs(answer)


PLAIN_DTYPES = [np.dtype(name) for name in ("<f2", "<f4", "<f8", "<i1", "<i8", "<u1", "<u4", "?")]


@given(
    st.sampled_from(PLAIN_DTYPES).flatmap(
        lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, max_dims=4, min_side=0))
    ),
    st.booleans(),
)
def test_what_is_written_is_read(array: Array, by_columns: bool) -> None:
    given = np.asfortranarray(array) if by_columns else array
    check_read(read_npy(write_npy(given)), given)
    file = io.BytesIO()
    np.save(file, given)
    check_read(read_npy(file.getvalue()), given)


class Bomb:
    """Raises as soon as somebody unpickles it."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (pytest.fail, ("it was unpickled",))


def test_pickled_objects_are_refused_unread() -> None:
    file = io.BytesIO()
    np.save(file, np.array([Bomb()], dtype=object), allow_pickle=True)
    with pytest.raises(errors.WireError, match="nothing is ever unpickled"):
        read_npy(file.getvalue())
    with pytest.raises(errors.WireError, match=r"not a \.npy file"):
        read_npy(pickle.dumps(Bomb()))


WHOLE = write_npy(np.arange(6, dtype=np.float32).reshape(2, 3))


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        WHOLE[:9],
        WHOLE[:60],
        b"\x93NUMPY\x09\x00" + WHOLE[8:],
        WHOLE.replace(b"(2, 3)", b"(2,-3)"),
        WHOLE.replace(b"(2, 3)", b"('a',)"),
        WHOLE.replace(b"'<f4'", b"'|O8'"),
        WHOLE.replace(b"'<f4'", b"'>f4'"),
        b"\x93NUMPY\x02\x00" + struct.pack("<I", 1 << 31) + WHOLE[10:],
        WHOLE[:-1],
        WHOLE + b"\0",
        WHOLE.replace(b"(2, 3)", b"(2, 9)"),
    ],
)
def test_what_is_no_file_of_numbers_is_refused(raw: bytes) -> None:
    with pytest.raises(errors.WireError):
        read_npy(raw)


@given(st.binary(max_size=200), st.integers(0, len(WHOLE)))
def test_no_bytes_do_more_than_be_refused(noise: bytes, at: int) -> None:
    with contextlib.suppress(errors.WireError):
        read_npy(WHOLE[:at] + noise + WHOLE[at + len(noise) :])


@pytest.mark.parametrize(
    "array", [np.array([b"a"], object), np.array(["a"]), np.zeros(2, ml_dtypes.bfloat16)]
)
def test_what_is_no_number_there_is_not_sent(array: Array) -> None:
    with pytest.raises(errors.WireError, match="cannot be sent to Paddle Serving"):
        write_npy(array)
