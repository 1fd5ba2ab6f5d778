"""What counts as delivered, in order and out of it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from edl.distill_reader.progress import Place, Progress


def place(ordinal: int) -> Place:
    return Place(ordinal, {"behind": ordinal + 1})


@given(st.permutations(range(12)), st.integers(0, 12))
def test_the_mark_stands_behind_what_was_delivered_without_a_gap(
    order: list[int], count: int
) -> None:
    progress = Progress()
    for ordinal in order[:count]:
        progress = progress.delivered(place(ordinal), 2)
    gapless = next(n for n in range(13) if n not in order[:count])
    assert progress.batches == gapless
    assert progress.mark == ({"behind": gapless} if gapless else None)
    assert sorted(progress.ahead) == sorted(n for n in order[:count] if n > gapless)
    assert progress.samples == 2 * count


@given(st.sets(st.integers(1, 11)))
def test_what_a_state_knows_of_as_delivered_counts_once_it_was_read_again(ahead: set[int]) -> None:
    progress = Progress(ahead=dict.fromkeys(ahead))
    for ordinal in range(12):
        assert progress.batches == ordinal
        progress = progress.delivered(place(ordinal), 0 if ordinal in ahead else 1)
    assert (progress.batches, dict(progress.ahead)) == (12, {})
    assert progress.samples == 12 - len(ahead)
