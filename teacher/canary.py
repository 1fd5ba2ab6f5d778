"""What a model answered when it was known to be good: kept in a file, and compared before serving.

The file is a numpy archive (`.npz`) without pickled objects: the arrays of a few samples, those of
the answer, and a header in JSON. Only floats are compared, unless the model gives none: a class
that is chosen among two nearly equal ones may be another on another machine.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import numpy as np

from ..errors import EdlError, ModelError, UsageError
from ..proto.arena import Array
from ..proto.tensors import datatype_of, dtype_of

_VERSION: Final = 1


@dataclass(frozen=True, slots=True, eq=False)
class Canary:
    """A few samples and their labels.

    Attributes:
        content_id: of the model that labelled them.
        tolerance: greatest difference of an output that counts as agreement, as a share of the
            greatest value of that output here.
        inputs: arrays [N, ...] by input.
        outputs: arrays [N, ...] by output.

    Raises:
        UsageError: a tolerance that is none.
    """

    content_id: str
    tolerance: float
    inputs: Mapping[str, Array]
    outputs: Mapping[str, Array]

    def __post_init__(self) -> None:
        if not 0 <= self.tolerance < 1:
            raise UsageError(f"a tolerance is a share from 0 to 1, not {self.tolerance:g}")

    @classmethod
    def of(
        cls,
        content_id: str,
        tolerance: float,
        inputs: Mapping[str, Array],
        outputs: Mapping[str, Array],
    ) -> Self:
        """From a whole answer, of which it keeps what is to be compared."""
        floats = {name: array for name, array in outputs.items() if array.dtype.kind in "fV"}
        return cls(content_id, tolerance, inputs, floats or outputs)

    def check_content(self, content_id: str) -> None:
        """Raise ModelError unless the canary is of this content."""
        if content_id != self.content_id:
            raise ModelError(
                f"the canary is of content {self.content_id[:12]}, the model is {content_id[:12]}:"
                " write one of this model by 'edl teacher fingerprint MODEL --canary FILE', or"
                " serve the model that it was written of"
            )

    def differences(self, outputs: Mapping[str, Array]) -> dict[str, float]:
        """How far each output is from what was kept, as a share of its greatest value here.

        Raises:
            ModelError: an output is missing, or has another shape.
        """
        found: dict[str, float] = {}
        for name, kept in self.outputs.items():
            array = outputs.get(name)
            if array is None or array.shape != kept.shape:
                came = "is missing" if array is None else f"has shape {list(array.shape)}"
                raise ModelError(
                    f"the canary has an output {name!r} of shape {list(kept.shape)}, which {came}"
                )
            expected = kept.astype(np.float64)
            most = np.abs(array.astype(np.float64) - expected).max(initial=0.0)
            found[name] = float(most / (np.abs(expected).max(initial=0.0) or 1.0))
        return found

    def check(self, outputs: Mapping[str, Array]) -> None:
        """Raise ModelError where `outputs`, for `inputs`, do not agree within the tolerance."""
        for name, difference in self.differences(outputs).items():
            if not difference <= self.tolerance:  # NaN is no agreement
                raise ModelError(
                    f"output {name!r} differs from the canary by {difference:.2g} of its greatest"
                    f" value, and {self.tolerance:g} is tolerated: this machine, device or"
                    " framework computes something else"
                )

    def save(self, path: Path) -> None:
        """Write the file, whole or not at all: one that was there stays until then.

        Raises:
            UsageError: it cannot be written.
            ModelError: an array is of BYTES, which the format has no place for.
        """
        header = {
            "version": _VERSION,
            "content_id": self.content_id,
            "tolerance": self.tolerance,
            "inputs": _described(self.inputs),
            "outputs": _described(self.outputs),
        }
        arrays = [*self.inputs.values(), *self.outputs.values()]
        plain: dict[str, Any] = {f"array{n}": _plain(array) for n, array in enumerate(arrays)}
        text = np.frombuffer(json.dumps(header).encode(), np.uint8)
        beside = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            with beside.open("wb") as file:  # np.savez would add a suffix to a path
                np.savez_compressed(file, header=text, **plain)
            beside.replace(path)
        except OSError as error:
            raise UsageError(f"cannot write {path}: {error.strerror or error}") from error
        finally:
            with contextlib.suppress(OSError):  # there is none, or no way to it
                beside.unlink()

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read the file; raises ModelError where it is none."""
        what = "is no canary: write one by 'edl teacher fingerprint MODEL --canary FILE'"
        with _opened(path, ModelError, what) as archive:
            header = json.loads(archive["header"].tobytes())
            if header["version"] != _VERSION:
                raise ModelError(f"{path} is a canary of another version: write it anew")
            named = [*header["inputs"], *header["outputs"]]
            arrays = [
                archive[f"array{number}"].view(dtype_of(datatype))
                for number, (_, datatype) in enumerate(named)
            ]
            names = [str(name) for name, _ in named]
            first = len(header["inputs"])
            return cls(
                str(header["content_id"]),
                float(header["tolerance"]),
                dict(zip(names[:first], arrays[:first], strict=True)),
                dict(zip(names[first:], arrays[first:], strict=True)),
            )


def _described(arrays: Mapping[str, Array]) -> list[list[Any]]:
    return [[name, datatype_of(array.dtype)] for name, array in arrays.items()]


def _plain(array: Array) -> Array:
    """The array as the archive can hold it: it knows no bfloat16, and no objects."""
    if array.dtype.hasobject:
        raise ModelError("a canary holds numbers only: this model takes or gives BYTES")
    whole = np.ascontiguousarray(array)
    return whole.view(np.uint16) if array.dtype.kind == "V" else whole


def load_samples(path: Path, names: Iterable[str]) -> dict[str, Array]:
    """Samples of the user's own from an `.npz` file: an array for each input, by its name.

    Raises:
        UsageError: it cannot be read, or lacks an input.
    """
    wanted = list(names)
    with _opened(path, UsageError, f"does not hold an array for each of {wanted}") as archive:
        return {name: archive[name] for name in wanted}


@contextmanager
def _opened(path: Path, kind: type[EdlError], what: str) -> Iterator[Any]:
    """The archive at `path`; whatever is wrong with it is a `kind` that says `what` it is not."""
    try:
        file = path.open("rb")
    except OSError as error:
        raise kind(f"cannot read {path}: {error.strerror}") from None
    try:
        with file, np.load(file, allow_pickle=False) as archive:
            yield archive
    except kind:
        raise
    except Exception as error:  # what numpy, zipfile and zlib raise at damage is no closed set
        raise kind(f"{path} {what}") from error
