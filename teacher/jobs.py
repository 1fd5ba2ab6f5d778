"""The messages between the socket side and the predictor process, over `proto.channel`.

```
to the predictor    job   id, inputs {name: ref}, outputs [name]   label one batch
                    free  record                                   the answer has been sent
from it             progress  text                                 for the operator
                    ready     spec, t_t_s                          it takes jobs from now on
                    refused   error, message                       it cannot serve this model
                    done      id, record, outputs {name: ref}, device_seconds
                    failed    id, error, message                   this job only
```

A ref says where an array lies in shared memory (`proto.arena`). The socket side owns the memory of
the inputs, the predictor that of the outputs: each frees what it allocated, when told that it may.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import (
    BadAnswer,
    EdlError,
    ModelError,
    RequestRefused,
    RetryableError,
    UsageError,
)
from ..proto.arena import Arena, Array, ArrayRef

_BY_NAME: dict[str, type[EdlError]] = {
    kind.__name__: kind
    for kind in (BadAnswer, ModelError, RequestRefused, RetryableError, UsageError)
}


def error_fields(error: Exception) -> dict[str, str]:
    """`error` as fields of a message; the nearest class that both sides know."""
    known = (kind.__name__ for kind in type(error).__mro__ if kind.__name__ in _BY_NAME)
    return {"error": next(known, RetryableError.__name__), "message": str(error)}


def error_of(message: Mapping[str, Any]) -> EdlError:
    """The error that a message carries."""
    return _BY_NAME[message["error"]](message["message"])


def refs_to_json(names: Mapping[str, Any], refs: tuple[ArrayRef, ...]) -> dict[str, Any]:
    """Names and the places of their arrays, in the same order."""
    return {name: ref.to_json() for name, ref in zip(names, refs, strict=True)}


def arrays_at(refs: Mapping[str, Any], arena: Arena) -> dict[str, Array]:
    """The arrays that a message names, as views of shared memory."""
    return {name: arena.get(ArrayRef.from_json(ref)) for name, ref in refs.items()}
