"""How large requests to a teacher are, by what its model takes."""

from __future__ import annotations

from edl.scheduler.reader_core.request_pacing import RequestPacing
from edl.scheduler.reader_core.windows import WindowConfig


def test_a_model_that_takes_few_rows_is_never_asked_for_more() -> None:
    """As its server says; where it says nothing, sizes are tried."""
    pace = RequestPacing(WindowConfig(), "auto")
    pace.record_batch(32)
    assert pace.joined("small", 0.0, 6).most_rows == 6
    assert pace.joined("large", 0.0, None).most_rows == 32
    assert pace.joined("large", 1.0, 4).most_rows == 4, "it serves another model now"
    fixed = RequestPacing(WindowConfig(), 12)
    assert fixed.joined("small", 0.0, 6).most_rows == 12, "the user's word counts"
