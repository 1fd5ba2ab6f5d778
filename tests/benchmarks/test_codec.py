"""`edl bench codec`: both ways carry the same batch, and the table has the figures it names."""

from __future__ import annotations

import math

import numpy as np
import pytest

from edl.benchmarks import codec


@pytest.mark.parametrize("dtype", codec.DTYPES)
def test_both_ways_carry_the_batch(dtype: str) -> None:
    array = np.arange(24).astype(dtype).reshape(2, 3, 4)
    for way in (codec.with_codec, codec.with_protobuf):
        got = way(array)
        assert got.dtype == array.dtype
        np.testing.assert_array_equal(got, array)


def test_a_quick_run_fills_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "SHAPE", (8, 3, 224, 224))
    report = codec.run(quick=True)
    assert [row["dtype"] for row in report.rows] == list(codec.DTYPES)
    assert not report.goals
    for row in report.rows:
        assert float(row["codec_ms"]) > 0
        assert float(row["protobuf_ms"]) > 0
        low, faster, high = (float(row[name]) for name in ("low", "times_faster", "high"))
        assert 0 < low <= faster <= high < math.inf
