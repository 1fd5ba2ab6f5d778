"""Describes a Paddle model: `python describe.py PROGRAM` prints one line of JSON.

It runs in the environment of Paddle Serving, because the Paddle there must be able to read the
model. That environment does not have the package `edl`, so this module imports nothing of it.
"""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Any


def describe(program: Path) -> dict[str, Any]:
    """Return the version of Paddle, and [name, dtype, shape] of each input and output.

    Raises:
        ValueError: it is not a program in the format of Paddle 2.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import paddle
    desc = paddle.base.core.ProgramDesc(program.read_bytes())  # must outlive the objects below
    block = desc.block(0)
    operations = [block.op(index) for index in range(block.op_size())]
    feeds = [op.output("Out")[0] for op in operations if op.type() == "feed"]
    fetches = [op.input("X")[0] for op in operations if op.type() == "fetch"]
    return {
        "paddle": paddle.__version__,
        "inputs": [tensor(block, name) for name in feeds],
        "outputs": [tensor(block, name) for name in fetches],
    }


def tensor(block: Any, name: str) -> list[Any]:
    """Return [name, dtype, shape] of a variable of a program.

    Newer versions of Paddle name dtypes as numpy does, older versions as the Open Inference
    Protocol does.
    """
    variable = block.find_var(name.encode())
    dtype = str(variable.dtype()).rpartition(".")[2]
    return [name, dtype, [int(size) for size in variable.shape()]]


if __name__ == "__main__":
    sys.stdout.write(json.dumps(describe(Path(sys.argv[1]))) + "\n")
