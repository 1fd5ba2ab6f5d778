"""Samples that can be made again from their ids, and the teacher's model, which everyone knows."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ...proto.arena import Array

#: What `edl teacher serve --model` is given.
MODEL = f"{__name__}:teacher"
FEATURES = 1024
CLASSES = 256
INPUT, OUTPUT = "x", "soft"
_MIX = (0x9E3779B1, 0x85EBCA6B, 0xC2B2AE35)


def samples_of(ids: Array) -> Array:
    """What the samples of these ids are: (n,) uint64 to (n, FEATURES) float32.

    Values are whole and have 12 bits, so that float32 holds every sum of a row exactly.
    """
    columns = np.arange(FEATURES, dtype=np.uint32) * np.uint32(_MIX[1])
    mixed = (ids.astype(np.uint32)[:, None] + np.uint32(1)) * np.uint32(_MIX[0]) + columns
    mixed ^= mixed >> np.uint32(15)
    mixed *= np.uint32(_MIX[2])
    return (mixed >> np.uint32(20)).astype(np.float32)


def labels_of(x: Array) -> Array:
    """The soft labels of samples: (n, FEATURES) to (n, CLASSES), float32.

    Every feature has its part in every label, exactly, as there is a power of two of them.
    """
    means = x.sum(axis=1, dtype=np.float32) / np.float32(FEATURES)
    return np.asarray(means[:, None] + x[:, :CLASSES], np.float32)


def digests_of(x: Array, labels: Array) -> Array:
    """One number for each sample with its labels, byte for byte: (n,) uint64."""
    rows = zip(np.ascontiguousarray(x), np.ascontiguousarray(labels), strict=True)
    joined = b"".join(
        hashlib.blake2b(b"".join((one.data, label.data)), digest_size=8).digest()
        for one, label in rows
    )
    return np.frombuffer(joined, np.uint64)


def expected_digests(ids: Array) -> Array:
    """What `digests_of` gives for samples that nobody has spoilt."""
    x = samples_of(ids)
    return digests_of(x, labels_of(x))


def teacher() -> tuple[Callable[[Mapping[str, Array]], dict[str, Any]], list[str], list[str]]:
    """The factory of the teacher's model, which a `--backend paced` runs."""

    def label(inputs: Mapping[str, Array]) -> dict[str, Any]:
        return {OUTPUT: labels_of(inputs[INPUT])}

    return label, [f"{INPUT}:FP32:-1,{FEATURES}"], [f"{OUTPUT}:FP32:-1,{CLASSES}"]
