"""Orders of operators about deployments, as they are written on the machine board."""

from __future__ import annotations

from typing import Final

from ...errors import RetryableError, UsageError
from ...proto import coordinator_pb2 as pb
from ..registry import keys as registry_keys
from .board import MachineBoard
from .options import parse_options
from .records import Deployment

#: To write what another operator changes at the same time.
_ATTEMPTS: Final = 20


def asked_by(request: pb.DeployRequest) -> Deployment:
    """What a message asks for; raises UsageError where it cannot be carried out."""
    return Deployment(
        request.service,
        request.model_url,
        request.content_id,
        parse_options(request.options),
        request.min,
        request.max,
        request.priority,
        request.price_per_hour,
        request.freeze_seconds,
        request.cost_ceiling_per_hour if request.HasField("cost_ceiling_per_hour") else None,
    )


def deploy(board: MachineBoard, deployment: Deployment) -> str:
    """Say what a service is served by, on the machines that have agents.

    Args:
        board: where it is written.
        deployment: what it is to be.

    Returns:
        In words: what happens now.

    Raises:
        UsageError: the service is deployed with another content.
        RetryableError: others change the same again and again.
        RegistryUnavailable: the registry does not answer.
    """
    name = deployment.service
    for _ in range(_ATTEMPTS):  # again where another operator was quicker
        standing = {one.service: one for one in board.deployments()}.get(name)
        if (
            standing is not None
            and not standing.withdrawn
            and standing.content_id != deployment.content_id
        ):
            raise UsageError(
                f"service {name} is deployed with content {standing.content_id}: students of one "
                f"service are labelled by one content, so undeploy it first ('edl service undeploy "
                f"{name}'), or deploy the other one under another name"
            )
        if board.deploy(deployment, standing):
            break
    else:
        raise _busy(name)
    machines = board.machines()
    number = str(deployment.min)
    if deployment.max != deployment.min:
        number += f" to {deployment.max}"
    noun = "teacher" if number == "1" else "teachers"
    said = f"service {name} is to have {number} {noun} of content {deployment.content_id[:12]}"
    if not machines:
        return f"{said}; no machine is there yet: start 'edl agent' on each"
    waiting = sum(not one.order.service and one.report.state == "idle" for one in machines)
    return f"{said}; machines: {len(machines)}, of which {waiting} wait for work"


def undeploy(board: MachineBoard, service: str) -> str:
    """Take all machines from a service; their teachers finish what they have.

    Returns:
        In words: what happens now.

    Raises:
        UsageError: it is not deployed.
        RetryableError: others change the same again and again.
        RegistryUnavailable: the registry does not answer.
    """
    registry_keys.check_service(service)
    for _ in range(_ATTEMPTS):  # as above
        standing = {one.service: one for one in board.deployments() if not one.withdrawn}
        if service not in standing:
            known = ", ".join(standing) or "none is"
            raise UsageError(f"service {service} is not deployed (deployed: {known})")
        if board.deploy(standing[service].withdrawal, standing[service]):
            break
    else:
        raise _busy(service)
    count = sum(one.order.service == service for one in board.machines())
    return f"service {service} gives its machines back: {count}; their teachers drain"


def _busy(service: str) -> RetryableError:
    return RetryableError(f"others change what service {service} is served by: try again")
