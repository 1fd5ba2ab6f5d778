"""Conversions between the engine and the core: settings, errors and log messages."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from ...proto.arena import Array
from ...runtime import errors
from ...scheduler.flow import FlowConfig
from ...scheduler.reader_core import CoreConfig
from ...scheduler.reader_core import instructions as do
from ...scheduler.reader_core.windows import WindowConfig
from ..config import ReaderConfig
from .answers import greatest_difference

log = logging.getLogger(__name__)


def log_message(news: do.LogMessage) -> None:
    """Log a message of the core."""
    level = logging.INFO if news.level == "info" else logging.WARNING
    log.log(level, news.text, extra={"teacher": news.teacher} if news.teacher else {})


def dispute_message(
    disputed: do.Disputed, answers: Mapping[str, Mapping[str, Array]], service: str
) -> str:
    """Describe the difference between the labels of two teachers, from their answers by name."""
    first, second = (answers[name] for name in disputed.pair)
    output, apart = greatest_difference(first, second)
    return (
        f"teachers {', '.join(disputed.teachers)} of {service!r} disagree by {apart} on output"
        f" {output!r}; a third teacher is needed to tell which one is wrong"
    )


def core_config(config: ReaderConfig) -> CoreConfig:
    """Convert the reader's settings to those of the core."""
    most = config.window if config.deterministic else max(config.window, config.window_max)
    return CoreConfig(
        config.service,
        FlowConfig(
            upper_bytes=config.upper_bytes,
            lower_bytes=config.lower_bytes,
            buffer_bytes=config.buffer_bytes,
            teachers_min=config.teachers_min,
            teachers_max=config.teachers_max,
        ),
        WindowConfig(config.window, most),
        config.request_rows,
        ordered=config.ordered,
        deterministic=config.deterministic,
        canaries=None if config.canaries is None else config.canaries.rule(),
        stored=config.store is not None,
    )


def room_in_s(error: errors.EdlError) -> float | None:
    """Return the seconds until a full teacher expects to have room; None: unknown."""
    return error.retry_after_s if isinstance(error, errors.RateLimited) else None
