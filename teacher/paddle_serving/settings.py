"""Which settings of a teacher mean something to Paddle Serving; the others are refused by name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any, Final

from ...errors import UsageError
from ..config import PredictorConfig, TeacherConfig

#: Settings that are heeded; every other one has to be what it is by default.
_HEEDED: Final = frozenset(
    {"service", "coordinator", "teacher_id", "advertise", "ttl_s", "grace_s", "insecure", "devices"}
    | {"model", "threads", "micro_batch", "inputs", "canary"}
    | {"host", "port", "slots"}
)
_PARTS: Final = ("predictor", "server")
#: Flags whose name is not that of the setting.
_FLAGS: Final = {
    "security": "--tls-* and --tokens",
    "self_test": "--no-self-test",
    "batching": "--batch-*",
    "outputs": "--output",
    "max_message_bytes": "--max-message-mib",
    "receive_s": "--receive-timeout",
}


def check(config: TeacherConfig) -> None:
    """Raise UsageError where a setting would not be heeded, or one that is needed is missing."""
    if config.coordinator is None:
        raise UsageError("Paddle Serving is registered at a coordinator: name it by --coordinator")
    if len(config.devices) > 1:
        raise UsageError("a Paddle Serving teacher has one device: start another for each other")
    if config.devices[0].cores:
        raise UsageError("Paddle Serving is not bound to cores: say --devices cpu, and --threads")
    if config.predictor.micro_batch is None:
        raise UsageError("Paddle Serving does not measure its micro-batch: name a number")
    plain = TeacherConfig("", PredictorConfig(""))
    unheeded = [
        *_changed(config, plain, _PARTS),
        *_changed(config.predictor, plain.predictor),
        *_changed(config.server, plain.server),
    ]
    if unheeded:
        flags = ", ".join(_FLAGS.get(name, f"--{name.replace('_', '-')}") for name in unheeded)
        raise UsageError(f"with --engine paddle-serving there is no {flags}: leave it out")


def _changed(settings: Any, plain: Any, parts: Sequence[str] = ()) -> list[str]:
    """Names of the settings that are not heeded, and not what they are by default."""
    return [
        field.name
        for field in fields(settings)
        if field.name not in _HEEDED
        and field.name not in parts
        and getattr(settings, field.name) != getattr(plain, field.name)
    ]
