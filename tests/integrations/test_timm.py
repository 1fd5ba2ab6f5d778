"""The arguments of timm's model of a service; timm itself is not needed (see tests/interop)."""

from __future__ import annotations

import runpy
import sys
from types import ModuleType
from typing import Any

import pytest

pytestmark = pytest.mark.system

URL, OTHER_URL, ADDRESSES = "redis://head:6379", "redis://other:6379", "a:1,b:2"


@pytest.mark.parametrize(
    ("options", "coordinator", "teachers"),
    [
        ((), URL, ()),
        (("--kd-coordinator", OTHER_URL), OTHER_URL, ()),
        (("--kd-teachers", ADDRESSES), None, ["a:1", "b:2"]),
    ],
)
def test_options_replace_the_coordinator_of_the_environment(
    monkeypatch: pytest.MonkeyPatch,
    options: tuple[str, ...],
    coordinator: str | None,
    teachers: object,
) -> None:
    models = ModuleType("timm.models")
    models.register_model = lambda function: function  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "timm", ModuleType("timm"))
    monkeypatch.setitem(sys.modules, "timm.models", models)
    for variable, value in (("EDL_SERVICE", ""), ("EDL_TEACHERS", ""), ("EDL_COORDINATOR", URL)):
        monkeypatch.setenv(variable, value)
    module, created = runpy.run_module("edl.integrations.timm", run_name="timm"), list[Any]()
    module["ServiceTeacher"] = dict
    module["run_script"] = lambda *_: created.append(module["edl_teacher"]())
    module["main"](["train.py", "--kd-service", "s", *options])
    assert created == [{"service": "s", "coordinator": coordinator, "teachers": teachers}]
    with pytest.raises(SystemExit):
        module["main"](
            ["t.py", "--kd-service", "s", "--kd-teachers", "a:1", "--kd-coordinator", URL]
        )
