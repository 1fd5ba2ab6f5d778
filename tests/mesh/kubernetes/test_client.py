"""The client of the API server: requests, pages, and the errors of each kind of answer."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from kubernetes.client import Configuration

from edl.mesh.kubernetes import client as client_module
from edl.mesh.kubernetes.client import Client, Connection, connect
from edl.mesh.kubernetes.resources import POD, Kind, quantity, rfc3339, rfc3339_s, seconds_of
from edl.runtime import errors
from edl.tests.deploy.kube_api.cluster import Cluster, cluster_in
from edl.tests.deploy.kube_api.kinds import CONFIG_MAP
from edl.tests.waiting import DEADLINE_S


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with cluster_in(tmp_path) as found:
        yield found


@pytest.fixture
def client(cluster: Cluster) -> Iterator[Client]:
    with Client(cluster.connection) as found:
        yield found


def test_objects_are_created_changed_and_deleted(cluster: Cluster, client: Client) -> None:
    made = client.create(CONFIG_MAP, {"metadata": {"name": "a", "labels": {"x": "1"}}, "data": {}})
    assert made["metadata"]["namespace"] == cluster.namespace
    with pytest.raises(errors.KubernetesObjectExists, match="already exists"):
        client.create(CONFIG_MAP, {"metadata": {"name": "a"}})
    client.patch(CONFIG_MAP, "a", {"data": {"k": "v"}})
    first = made["metadata"]["resourceVersion"]
    with pytest.raises(errors.KubernetesObjectChanged, match="modified"):
        client.patch(CONFIG_MAP, "a", {"data": None}, resource_version=first)
    assert [one["metadata"]["name"] for one in client.list(CONFIG_MAP, "x=1")] == ["a"]
    assert client.list(CONFIG_MAP, "x=2") == []
    with pytest.raises(errors.ManifestRefused, match=r"metadata\.uid.*immutable"):
        client.patch(CONFIG_MAP, "a", {"metadata": {"uid": "another"}, "data": {"k": "w"}})
    assert client.get(CONFIG_MAP, "a")["data"] == {"k": "v"}
    assert client.delete(CONFIG_MAP, "a", uid="another") is False
    assert client.delete(CONFIG_MAP, "a") is True
    assert client.delete(CONFIG_MAP, "a") is False
    with pytest.raises(errors.KubernetesObjectMissing, match="not found") as caught:
        client.get(CONFIG_MAP, "a")
    assert not caught.value.unknown_kind
    with pytest.raises(errors.KubernetesObjectMissing) as caught:
        client.list(Kind("edl-dist.io/v1", "Nothing", "nothings"))
    assert caught.value.unknown_kind


def test_long_lists_come_in_pages(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "_PAGE", 2)
    for number in range(5):
        client.create(CONFIG_MAP, {"metadata": {"name": f"c{number}", "labels": {"p": ""}}})
    found = client.list(CONFIG_MAP, "p")
    assert [one["metadata"]["name"] for one in found] == [f"c{number}" for number in range(5)]
    assert {one["kind"] for one in found} == {"ConfigMap"}


def test_kubeconfigs_that_do_not_work(cluster: Cluster, tmp_path: Path) -> None:
    for part, change, error in (
        ("clusters", {"cluster": {"server": "http://127.0.0.1:1"}}, errors.KubernetesUnavailable),
        ("users", {"user": {"token": "wrong"}}, errors.Unauthenticated),
    ):
        config = yaml.safe_load(cluster.kubeconfig.read_text())
        config[part][0] |= change
        (tmp_path / "changed").write_text(yaml.safe_dump(config))
        with Client(connect(tmp_path / "changed")) as client, pytest.raises(error):
            client.list(POD)


@contextmanager
def silent_after(sent: bytes, timeout_s: float) -> Iterator[Iterator[str]]:
    """A pod's log from a server that sends this and then nothing, but keeps the connection."""
    over = threading.Event()

    def serve() -> None:
        with listening.accept()[0] as one:
            one.recv(1 << 16)
            one.sendall(sent)
            over.wait()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve)
        thread.start()
        configuration = Configuration(host=f"http://127.0.0.1:{listening.getsockname()[1]}")
        with Client(Connection(configuration, "default"), timeout_s=timeout_s) as client:
            yield client.pod_log("a-1")
        over.set()
        thread.join()


def _head(status: str) -> bytes:
    return f"HTTP/1.1 {status}\r\nTransfer-Encoding: chunked\r\n\r\n".encode()


@pytest.mark.system
def test_a_log_whose_server_goes_silent_breaks_off() -> None:
    with silent_after(_head("200 OK") + b"4\r\none\n\r\n", 3.0) as lines:
        assert next(lines) == "one"
        with pytest.raises(errors.KubernetesUnavailable, match="the log of a-1 broke off"):
            next(lines)


def test_an_incomplete_refusal_is_no_answer() -> None:
    refused = pytest.raises(errors.KubernetesUnavailable, match="does not answer")
    with silent_after(_head("404 Not Found") + b"4\r\n", 0.2) as lines, refused:
        next(lines)


def test_a_failure_that_the_server_reports_is_an_answer() -> None:
    failed = pytest.raises(errors.KubernetesUnavailable, match="answered 500")
    with silent_after(_head("500 Internal") + b"0\r\n\r\n", DEADLINE_S) as lines, failed as caught:
        next(lines)
    assert caught.value.answered


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("500m", 0.5), ("2", 2), (3, 3), ("0.1", 0.1), ("2Gi", 2**31), ("1G", 1e9), ("1E3", 1000),
        ("1e3", 1000), ("100n", 1e-7), ("1Ei", 2**60), ("1E", 1e18), (" 4 ", 4), ("-1", -1),
        *((text, None) for text in ("", "much", "1Kb", "1 Gi", "Gi", "--1", "1mm", "nan", "inf")),
        ("1_0", None), ("1e9999", None),
    ],
)  # fmt: skip
def test_quantities(text: str | int, number: float | None) -> None:
    if number is None:
        with pytest.raises(errors.UsageError, match="no quantity of Kubernetes"):
            quantity(text)
    else:
        assert quantity(text) == pytest.approx(number)


@given(st.floats(0, 4e9))
def test_times_come_back(seconds: float) -> None:
    assert seconds_of(rfc3339(seconds)) == pytest.approx(seconds, abs=2e-6)
    assert seconds_of(rfc3339_s(seconds)) == int(seconds)
    with pytest.raises(errors.UsageError, match="is not an RFC 3339 time"):
        seconds_of("yesterday")
