"""One teacher, from its start to its leave, for the command line."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, suppress

from ..coordinator.registry import Registry, connect
from ..coordinator.registry.keys import check_member, check_service
from ..errors import StartCancelled
from ..lifecycle import Stop
from .backends.open import check_model
from .config import TeacherConfig, check_cores
from .life import Teacher
from .registration import advertised


def serve(
    config: TeacherConfig,
    stop: Stop,
    *,
    on_ready: Callable[[str], None],
    on_progress: Callable[[str], None],
) -> None:
    """Serve until `stop` is requested, then drain.

    What cannot work is found out in the order of its cost: the model's path, the names, the
    registry, the port, and only then the model itself.

    Args:
        config: the teacher.
        stop: the wish to end.
        on_ready: told once, in one line, when students can be served.
        on_progress: told in words what is being done until then.

    Raises:
        ModelError: the model cannot be served.
        UsageError: there is no such backend or preprocessing, the service or the teacher's id
            cannot be registered, the host or a core is not ours, or a file of credentials cannot be
            used.
        RegistryUnavailable: Redis does not answer.
        AccessError: Redis does not let this teacher in.
        AddressInUse: another process listens on the port.
        LeaseSuperseded: a newer teacher has taken this one's id.
        ProcessFailed: the predictor process keeps dying.
    """
    predictor = config.predictor
    check_model(predictor.model, predictor.backend, predictor.preprocess)
    check_cores(config.devices)
    with ExitStack() as leaving:
        registry = _registry(config, leaving)
        leaving.enter_context(suppress(StartCancelled))
        teacher = Teacher(config, stop, registry, on_progress)
        leaving.callback(teacher.close)
        if teacher.load():
            on_ready(teacher.enter())
            stop.wait()
            teacher.leave()


def _registry(config: TeacherConfig, leaving: ExitStack) -> Registry | None:
    """Where the teacher will register; names that cannot be registered show at once."""
    if config.coordinator is None:
        return None
    check_service(config.service)
    address = advertised(config, bound_port=1)  # whichever it will be, the host is known
    check_member("teachers", config.teacher_id or address)
    registry = connect(config.coordinator)
    leaving.callback(registry.close)
    return registry
