"""A job file for tests."""

GOOD = """\
import paddle
import numpy as np


def model():
    return paddle.nn.Linear(4, 3)


def loss(outputs, labels):
    return paddle.nn.functional.cross_entropy(outputs, labels)


def optimizer(parameters):
    return paddle.optimizer.SGD(0.1, parameters=parameters)


def feed(split):
    rows = 6 if split == "train" else 2
    return [(np.ones((rows, 4), "float32"), np.zeros(rows, "int64"))]
"""
