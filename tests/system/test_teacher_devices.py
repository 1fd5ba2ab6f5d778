"""`edl-teacher serve --devices`: one teacher with two predictors, of which one is killed."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import psutil

from edl.coordinator.embedded import start_embedded
from edl.tests.ground.programs import wait_for
from edl.tests.system.teacher_process import START_S, members, serving

MODEL = "edl.tests.teacher.functions:steered"


def test_it_registers_its_lanes_and_serves_while_one_predictor_restarts() -> None:
    process, redis_url = start_embedded()
    arguments = ("--devices", "cpu,cpu", "--batch-max", "16", "--coordinator", redis_url)
    try:
        with serving(*arguments, model=MODEL) as teacher, ThreadPoolExecutor(4) as threads:
            facts = members(redis_url)[0].facts
            assert (facts["lanes"], facts["slots"], facts["device"]) == ("2", "8", "cpu,cpu")
            assert float(facts["t_t_seconds"]) > 0
            first, second = psutil.Process(teacher.process.pid).children()
            list(threads.map(lambda _: teacher.ask(), range(20)))

            first.kill()
            teacher.process.expect("SIGKILL; it is started again", START_S)
            for _ in range(20):
                answer = teacher.ask(7.0)
                np.testing.assert_array_equal(answer.outputs["twice"][0], [14, 1, 1, 1])
                assert teacher.ready
            wait_for(lambda: len(psutil.Process(teacher.process.pid).children()) == 2, START_S)
            assert second.is_running()
    finally:
        process.stop()
