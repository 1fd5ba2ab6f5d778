"""Through Envoy, which hides who serves: one of two backends dies, and nobody notices."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edl.distill_reader import DistilReader
from edl.proto.clients import Request, open_client
from edl.tests.interop.envoy import Proxy, envoy
from edl.tests.interop.known_batches import KnownBatches
from edl.tests.interop.programs.network import INPUT, MODEL, OUTPUT, PACE_VARIABLE, labels_of
from edl.tests.interop.servers import Server, kserve, triton

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

BATCHES = 300
KILLED_AT = 100
AT_ONCE = 4
BATCH_S = 0.01
ANSWER_S = 30.0


@pytest.fixture
def backends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Server, Server]]:
    monkeypatch.setenv(PACE_VARIABLE, str(BATCH_S))
    with triton(tmp_path) as one, kserve(tmp_path) as other:
        yield one, other


@pytest.fixture
def proxy(backends: tuple[Server, Server], tmp_path: Path) -> Iterator[Proxy]:
    with envoy(tmp_path, [server.grpc for server in backends]) as proxy:
        yield proxy


def test_no_request_fails_when_a_backend_is_killed(
    backends: tuple[Server, Server], proxy: Proxy
) -> None:
    survivor, victim = backends
    with closing(open_client("oip", proxy.grpc, MODEL)) as client:

        def ask(number: int) -> None:
            if number == KILLED_AT:
                victim.kill()
            x = KnownBatches.at(number)
            answer = client.infer(Request({INPUT: x}), ANSWER_S)
            np.testing.assert_array_equal(answer.outputs[OUTPUT], labels_of(x))

        with ThreadPoolExecutor(AT_ONCE) as threads:
            list(threads.map(ask, range(BATCHES)))  # raises what a request raised
    answered = proxy.answered()
    assert min(answered.values()) > 0, "both have served"
    assert answered[survivor.grpc] >= BATCHES - KILLED_AT - AT_ONCE


def test_a_reader_loses_nothing_when_a_backend_is_killed(
    backends: tuple[Server, Server], proxy: Proxy
) -> None:
    source = KnownBatches(BATCHES)
    options: dict[str, Any] = {"window": AT_ONCE, "upper_bytes": 20_000}
    with DistilReader(source, service=MODEL, teachers=[proxy.grpc], **options) as reader:
        batches = []
        for batch in reader:
            batches.append(batch)
            if len(batches) == KILLED_AT:
                assert min(proxy.answered().values()) > 0, "both serve"
                backends[1].kill()
        source.check(batches)
        assert reader.stats.resends == 0, "the proxy has sent each again by itself"
