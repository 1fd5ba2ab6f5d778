"""The messages between the socket side and the predictor process, over `proto.channel`.

```
to the predictor    job   id, inputs {name: ref}, parts [part]     label these requests in one go
                    free  record                                   the answer has been sent
from it             progress  text                                 for the operator
                    ready     spec, t_t_s, micro_batch             it takes jobs from now on; again
                                                                   when its micro-batch is smaller
                    refused   error, message                       it cannot serve this model
                    done      id, results [result]                 one for each part, in order
a result            record, outputs {name: ref}, device_seconds
                    or error, message
```

What a part is stands in `parts`. A ref says where an array lies in shared memory (`proto.arena`).
The socket side owns the memory of the inputs, the predictor that of the outputs: each frees what it
allocated, when told that it may.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import (
    BadAnswer,
    DeadlineExceeded,
    DeviceOutOfMemory,
    EdlError,
    ModelError,
    RequestRefused,
    RetryableError,
    UsageError,
)
from ..proto.arena import Arena, Array, ArrayRef

_BY_NAME: dict[str, type[EdlError]] = {
    kind.__name__: kind
    for kind in (
        BadAnswer,
        DeadlineExceeded,
        DeviceOutOfMemory,
        ModelError,
        RequestRefused,
        RetryableError,
        UsageError,
    )
}


def error_fields(error: Exception) -> dict[str, str]:
    """`error` as fields of a message; the nearest class that both sides know."""
    known = (kind.__name__ for kind in type(error).__mro__ if kind.__name__ in _BY_NAME)
    output = {"output": error.output} if isinstance(error, BadAnswer) else {}
    return {"error": next(known, RetryableError.__name__), "message": str(error), **output}


def error_of(message: Mapping[str, Any]) -> EdlError:
    """The error that a message carries."""
    kind, text = _BY_NAME[message["error"]], message["message"]
    return BadAnswer(text, message["output"]) if kind is BadAnswer else kind(text)


def refs_to_json(names: Mapping[str, Any], refs: tuple[ArrayRef, ...]) -> dict[str, Any]:
    """Names and the places of their arrays, in the same order."""
    return {name: ref.to_json() for name, ref in zip(names, refs, strict=True)}


def arrays_at(refs: Mapping[str, Any], arena: Arena) -> dict[str, Array]:
    """The arrays that a message names, as views of shared memory."""
    return {name: arena.get(ArrayRef.from_json(ref)) for name, ref in refs.items()}
