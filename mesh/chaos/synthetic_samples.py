"""Samples and labels that are functions of sample ids, and the models of the teachers."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ...proto.arena import Array
from ...runtime.errors import RequestRefused

SERVICE = "chaos"
#: Values for `edl teacher serve --model`.
MODEL = f"{__name__}:teacher"
PROBABILITIES_MODEL = f"{__name__}:probabilities_teacher"
FEATURES = 1024
CLASSES = 256
INPUT, OUTPUT = "x", "soft"
#: Environment variable that makes a teacher refuse every sample.
REFUSES = "EDL_CHAOS_REFUSES"
_HASH_MULTIPLIERS = (0x9E3779B1, 0x85EBCA6B, 0xC2B2AE35)


def samples_of(ids: Array) -> Array:
    """Return the samples of these ids: (n,) uint64 to (n, FEATURES) float32.

    Values are integers of 12 bits, so that float32 holds every sum of a row exactly.
    """
    columns = np.arange(FEATURES, dtype=np.uint32) * np.uint32(_HASH_MULTIPLIERS[1])
    mixed = (ids.astype(np.uint32)[:, None] + np.uint32(1)) * np.uint32(
        _HASH_MULTIPLIERS[0]
    ) + columns
    mixed ^= mixed >> np.uint32(15)
    mixed *= np.uint32(_HASH_MULTIPLIERS[2])
    return (mixed >> np.uint32(20)).astype(np.float32)


def labels_of(x: Array) -> Array:
    """Return the soft labels of samples: (n, FEATURES) to (n, CLASSES), float32.

    Each label depends on all features of its row, and is exact, as FEATURES is a power of two.
    """
    means = x.sum(axis=1, dtype=np.float32) / np.float32(FEATURES)
    return np.asarray(means[:, None] + x[:, :CLASSES], np.float32)


def digests_of(x: Array, labels: Array) -> Array:
    """Return a hash of each sample with its labels: (n,) uint64."""
    rows = zip(np.ascontiguousarray(x), np.ascontiguousarray(labels), strict=True)
    joined = b"".join(
        hashlib.blake2b(b"".join((sample.data, label.data)), digest_size=8).digest()
        for sample, label in rows
    )
    return np.frombuffer(joined, np.uint64)


def digest_of_call(x: Array, labels: Array) -> int:
    """Return a hash of the samples of a call with their labels; never 0."""
    return int(np.bitwise_xor.reduce(digests_of(x, labels))) or 1


def expected_digest_of_call(first: int, rows: int) -> int:
    """Return `digest_of_call` of samples with consecutive ids and correct labels."""
    x = samples_of(np.arange(first, first + rows, dtype=np.uint64))
    return digest_of_call(x, labels_of(x))


def expected_digests(ids: Array) -> Array:
    """Return `digests_of` the samples of these ids with correct labels."""
    x = samples_of(ids)
    return digests_of(x, labels_of(x))


#: Function that labels a batch, specs of its inputs, and specs of its outputs.
Network = tuple[Callable[[Mapping[str, Array]], dict[str, Any]], list[str], list[str]]


def teacher() -> Network:
    """Make the model of the teachers, for `--backend paced`.

    It refuses every sample if the environment variable `REFUSES` is set. Its content_id is the same
    in both cases, as that depends on the source code only.
    """
    refuses = bool(os.environ.get(REFUSES))

    def label(inputs: Mapping[str, Array]) -> dict[str, Any]:
        x = inputs[INPUT]
        if refuses and x.any() and (x == np.rint(x)).all():  # other inputs are from the self-test
            raise RequestRefused("this teacher was started with wrong settings")
        return {OUTPUT: labels_of(x)}

    return _network(label)


def probabilities_teacher() -> Network:
    """Make a different model: the same labels after a softmax."""
    return _network(lambda inputs: {OUTPUT: _softmax(labels_of(inputs[INPUT]))})


def _network(label: Callable[[Mapping[str, Array]], dict[str, Any]]) -> Network:
    return label, [f"{INPUT}:FP32:-1,{FEATURES}"], [f"{OUTPUT}:FP32:-1,{CLASSES}"]


def _softmax(labels: Array) -> Array:
    powers = np.exp(labels - labels.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True), np.float32)
