"""Names, times and quantities are those of Kubernetes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.errors import UsageError
from edl.mesh.kubernetes.resources import (
    DEPLOYMENT,
    NODE,
    POD,
    TEACHER_SERVICE,
    is_controlled_by,
    labels_of,
    owner_reference,
    quantity,
    rfc3339,
    rfc3339_s,
    seconds_of,
    selector,
)


def test_paths_are_those_of_the_api() -> None:
    assert POD.path("ns", "a", "log") == "/api/v1/namespaces/ns/pods/a/log"
    assert DEPLOYMENT.path("ns") == "/apis/apps/v1/namespaces/ns/deployments"
    assert TEACHER_SERVICE.path() == "/apis/edl-dist.io/v1alpha1/teacherservices"
    assert NODE.path("ns", "n") == "/api/v1/nodes/n"


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("500m", 0.5), ("2", 2), (3, 3), ("0.1", 0.1), ("2Gi", 2**31), ("1G", 1e9), ("1E3", 1000),
        ("1e3", 1000), ("128974848", 128974848), ("129M", 129e6), ("100n", 1e-7), ("1Ei", 2**60),
        ("1E", 1e18), (" 4 ", 4), ("-1", -1),
    ],
)  # fmt: skip
def test_quantities(text: str | int, number: float) -> None:
    assert quantity(text) == pytest.approx(number)


@pytest.mark.parametrize(
    "text", ["", "much", "1Kb", "1 Gi", "Gi", "--1", "1mm", "nan", "inf", "1_0", "1e9999"]
)
def test_what_is_no_quantity(text: str) -> None:
    with pytest.raises(UsageError, match="no quantity of Kubernetes"):
        quantity(text)


@given(st.floats(0, 4e9))
def test_times_come_back(seconds: float) -> None:
    assert seconds_of(rfc3339(seconds)) == pytest.approx(seconds, abs=2e-6)
    assert seconds_of(rfc3339_s(seconds)) == int(seconds)


def test_what_is_no_time() -> None:
    with pytest.raises(UsageError, match="no time"):
        seconds_of("yesterday")


def test_an_owner_is_known_by_its_uid() -> None:
    owner = {"apiVersion": "v1", "kind": "X", "metadata": {"name": "a", "uid": "1"}}
    found = {"metadata": {"ownerReferences": [owner_reference(owner)]}}
    assert is_controlled_by(found, "1")
    assert not is_controlled_by(found, "2")
    assert not is_controlled_by({"metadata": {}}, "1")


def test_labels_and_their_selector() -> None:
    labels = labels_of("student", job="digits", node="3")
    assert labels["edl-dist.io/job"] == "digits"
    assert labels["app.kubernetes.io/managed-by"] == "edl-operator"
    assert selector({"b": "2", "a": "1"}) == "a=1,b=2"
