"""What a hostile client sends: random bytes, messages cut and bent, impossible fields."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from hypothesis import strategies as st

from edl.proto import coordinator_pb2 as control
from edl.proto import inference_pb2 as data
from edl.tests.coordinator import calls
from edl.tests.proto.strategies import EDITS, bend
from edl.tests.teacher.fakes import array

#: Above what either server of these tests takes in one message.
TOO_LARGE = bytes((1 << 20) + 1)

_INTEGERS = st.sampled_from([0, 1, 255, 1 << 31, (1 << 32) - 1, (1 << 62) + 1, (1 << 64) - 1])
_DOUBLES = st.sampled_from([-1.0, 0.0, 1e308, float("nan"), float("inf"), -float("inf")])
_TEXTS = st.sampled_from(
    ["", "/", "job/", "/0", "job/0", "a" * 300, "job/0\n", "..", "{s}", "\x00", "é/0", "*", "a 1/0"]
)


@dataclass(frozen=True, slots=True)
class Input:
    method: str
    message: bytes

    def __repr__(self) -> str:
        """What to send again, of what is too large only its size."""
        shown = f"bytes({len(self.message)})" if self.message is TOO_LARGE else repr(self.message)
        return f"Input({self.method!r}, {shown})"


#: As an honest student sends it.
report = partial(
    calls.report, service="stormy", student_id="storm/0", want=2, min=1, teachers=["t1"],
    state="steady", host="here", t_s_seconds=0.01,
)  # fmt: skip

_CONTROL = {
    "Subscribe": report().SerializeToString(),
    "Status": control.StatusRequest(service="stormy", max_members=3).SerializeToString(),
    "Drain": control.DrainRequest(service="stormy", teacher_id="nobody").SerializeToString(),
    "Upgrade": control.UpgradeRequest(service="stormy", content_id="c2").SerializeToString(),
    "Deploy": control.DeployRequest(
        service="stormy", model_url="s3://b/m", content_id="0" * 64, options=["threads=2"], max=2
    ).SerializeToString(),
    "Watch": control.WatchRequest(service="stormy", last=1).SerializeToString(),
}
_MEANT = data.ModelInferRequest(
    model_name="resnet",
    inputs=[{"name": "x", "datatype": "FP32", "shape": [2, 4]}],
    raw_input_contents=[array(2, 4).tobytes()],
)
_DATA = {
    "ModelInfer": _MEANT.SerializeToString(),
    "ModelMetadata": data.ModelMetadataRequest(name="resnet").SerializeToString(),
    "ModelReady": data.ModelReadyRequest(name="resnet", version="1").SerializeToString(),
    "ServerMetadata": b"\x0a\x00",
    "ServerLive": b"",
}


def _of(honest: dict[str, bytes], odd: st.SearchStrategy[Input]) -> st.SearchStrategy[Input]:
    methods = st.sampled_from([*honest, *[next(iter(honest))] * len(honest)])
    bent = st.builds(lambda name, edits: Input(name, bend(honest[name], edits)), methods, EDITS)
    noise = st.builds(Input, methods, st.binary(max_size=64))
    large = st.builds(lambda method: Input(method, TOO_LARGE), methods)
    kinds = [bent] * 8 + [odd] * 6 + [noise] * 4 + [large]
    return st.sampled_from(kinds).flatmap(lambda kind: kind)


@st.composite
def _odd_reports(draw: st.DrawFn) -> Input:
    fields: dict[str, Any] = {}
    descriptors = control.StudentReport.DESCRIPTOR.fields_by_name
    for name in draw(st.lists(st.sampled_from(sorted(descriptors)), min_size=1, max_size=3)):
        kind = descriptors[name].cpp_type
        if descriptors[name].is_repeated:
            fields[name] = draw(st.lists(_TEXTS, max_size=3))
        elif kind == descriptors[name].CPPTYPE_STRING:
            fields[name] = draw(_TEXTS)
        elif kind == descriptors[name].CPPTYPE_DOUBLE:
            fields[name] = draw(_DOUBLES)
        else:
            most = {descriptors[name].CPPTYPE_UINT64: (1 << 64) - 1}.get(kind, (1 << 31) - 1)
            fields[name] = min(draw(_INTEGERS), most)
    return Input("Subscribe", report(**fields).SerializeToString())


@st.composite
def _odd_requests(draw: st.DrawFn) -> Input:
    dims = st.sampled_from([-(1 << 63), -1, 0, 1, 2, 4, 1 << 31, 1 << 40, (1 << 63) - 1])
    tensor = st.fixed_dictionaries(
        {
            "name": st.sampled_from(["x", "x", "y", ""]),
            "datatype": st.sampled_from(["FP32", "FP32", "FP64", "BYTES", "x", ""]),
            "shape": st.lists(dims, max_size=5),
        }
    )
    contents = st.sampled_from([0, 1, 15, 16, 17, 32, 64]).map(bytes)
    message = data.ModelInferRequest(
        model_name=draw(st.sampled_from(["resnet", "resnet", "", "vgg", "x" * 300])),
        model_version=draw(st.sampled_from(["", "", "1", "-1"])),
        inputs=draw(st.lists(tensor, max_size=2)),
        raw_input_contents=draw(st.lists(contents, max_size=2)),
    )
    if draw(st.booleans()):
        name = draw(st.sampled_from(["teacher_id", "incarnation", "shared_memory_region", "x"]))
        message.parameters[name].string_param = draw(_TEXTS)
    return Input("ModelInfer", message.SerializeToString())


#: For the service managers, and for teachers.
CONTROL: st.SearchStrategy[Input] = _of(_CONTROL, _odd_reports())
DATA: st.SearchStrategy[Input] = _of(_DATA, _odd_requests())
