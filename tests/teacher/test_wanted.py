"""Outputs on their way out: in the order asked for, each under names of its own."""

from __future__ import annotations

import numpy as np
import pytest

from edl.errors import RequestRefused
from edl.proto.forms import Form
from edl.teacher.wanted import Wanted, in_their_forms
from edl.tests.teacher.fakes import array

OUTPUTS = {"y": array(2, 5), "y.values": array(2, 2), "z": array(2, 3)}


def test_outputs_travel_in_the_order_asked_for_each_in_its_form() -> None:
    wanted = [Wanted("z"), Wanted("y", Form(None, 2))]
    travel = in_their_forms(OUTPUTS, wanted)
    assert list(travel) == ["z", "y.values", "y.indices", "y.tail"]
    np.testing.assert_array_equal(travel["z"], OUTPUTS["z"])
    np.testing.assert_array_equal(travel["y.indices"], [[4, 3], [4, 3]])


@pytest.mark.parametrize("names", [("y", "y.values"), ("y.values", "y")])
def test_a_part_never_covers_another_output(names: tuple[str, str]) -> None:
    wanted = [Wanted(name, Form(None, 2) if name == "y" else None) for name in names]
    with pytest.raises(RequestRefused, match=r"two outputs would travel as 'y\.values'"):
        in_their_forms(OUTPUTS, wanted)
