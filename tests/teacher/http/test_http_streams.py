"""Whatever requests follow one another on a connection, and wherever its bytes are cut."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edl.tests.teacher.bench import Bench
from edl.tests.teacher.bench_http import rows
from edl.tests.teacher.http.talk import Talk, batch, head
from edl.tests.teacher.http.test_http_plain import GET, numbers

_SAID = json.dumps(rows(3)).encode()
_CHUNKED = head(0, **{"Transfer-Encoding": "chunked"}).replace(b"Content-Length: 0\r\n", b"")
#: What may be asked, and the status of the answer.
_KINDS = [
    (batch(numbers(3)), 200),
    (batch(numbers(5000)), 200),
    (head(len(_SAID)) + _SAID, 200),
    (GET, 200),
    (_CHUNKED + b"%x\r\n%s\r\n0\r\n\r\n" % (len(_SAID), _SAID), 200),
    (head(7) + b"nothing", 400),
    (head(0), 400),
    (head((1 << 20) + 1) + bytes((1 << 20) + 1), 413),
    (batch(numbers(40), Origin="http://page"), 403),
    (head(4, "/v2/models/resnet/nothing") + b"1234", 404),
]
_ANSWER = re.compile(
    rb"HTTP/1\.1 (\d+) [^\r]+\r\n(?:[^\r]+\r\n)*?content-length: (\d+)\r\n(?:[^\r]+\r\n)*\r\n"
)


@pytest.fixture(scope="module")
def web() -> Iterator[Bench]:
    bench = Bench(http="0", slots=64)
    yield bench
    bench.close()


@settings(max_examples=40, deadline=None)
@given(
    asked=st.lists(st.sampled_from(_KINDS), min_size=1, max_size=8),
    cuts=st.lists(st.floats(0, 1), max_size=12),
)
def test_each_request_has_its_answer_in_its_turn(
    web: Bench, asked: list[tuple[bytes, int]], cuts: list[float]
) -> None:
    said = b"".join(request for request, _ in asked)
    at = [0, *sorted(int(cut * len(said)) for cut in cuts), len(said)]
    with Talk(web) as talk:
        talk.say(*(said[begin:end] for begin, end in pairwise(at)))
        got, statuses = b"", list[int]()
        while len(statuses) < len(asked):
            more = talk.socket.recv(1 << 20)
            assert more, (statuses, got[-300:])
            got += more
            while (answer := _ANSWER.match(got)) and len(got) >= answer.end() + int(answer[2]):
                statuses.append(int(answer[1]))
                got = got[answer.end() + int(answer[2]) :]
    assert (statuses, got) == ([status for _, status in asked], b"")
