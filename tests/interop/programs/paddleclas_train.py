"""Trains one step of a DistillationModel of PaddleClas whose teacher is a service.

    python paddleclas_train.py

Checks that the output of `Teacher` has the labels of the service.
"""

from __future__ import annotations

import numpy as np
import paddle
from ppcls.arch import build_model

from edl.tests.scripted_teacher import CLASSES, ScriptedTeacher, logits_of

MEAN, STD = (
    np.array(each, np.float32).reshape(1, 3, 1, 1)
    for each in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
)


def main() -> None:
    """Train one step."""
    teacher = ScriptedTeacher()
    teacher.datatype = "UINT8"
    arch = {
        "name": "DistillationModel",
        "freeze_params_list": [True, False],
        "models": [
            {"Teacher": {"name": "ServiceTeacher", "service": "s", "teachers": [teacher.address]}},
            {"Student": {"name": "PPLCNet_x0_25", "class_num": CLASSES}},
        ],
    }
    model = build_model({"Arch": arch})
    optimizer = paddle.optimizer.SGD(0.01, parameters=model.parameters())
    colours = np.random.default_rng(0).integers(0, 256, (4, 3, 32, 32), dtype=np.uint8)
    outputs = model(paddle.to_tensor((colours.astype(np.float32) / 255 - MEAN) / STD))
    np.testing.assert_array_equal(outputs["Teacher"].numpy(), logits_of(colours))
    soft = paddle.nn.functional.softmax(outputs["Teacher"] / 1e6)
    loss = paddle.nn.functional.cross_entropy(outputs["Student"], soft, soft_label=True)
    loss.backward()
    optimizer.step()
    teacher.stop()
    print("trained one step")


if __name__ == "__main__":
    main()
