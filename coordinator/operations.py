"""Operations that people request: drain teachers, upgrade a service, deploy or withdraw it."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final

from ..proto import coordinator_pb2 as pb
from ..runtime.errors import RetryableError, UsageError
from .machines.board import MachineBoard
from .machines.schema import Deployment, is_content_id, parse_options
from .registry import Registry, StoredContentPlan
from .registry.schema import check_member, check_service
from .store.records import Member, WrongKeyType

_MAX_SIMILAR = 3
_AT = ("epoch", "now")
#: Attempts to write while other people or programs write, too.
_ATTEMPTS: Final = 20


def drain(
    registry: Registry, *, service: str = "", teacher_id: str = "", host: str = ""
) -> list[str]:
    """Ask teachers to finish their requests and leave.

    Args:
        registry: the registry.
        service: service of the teachers; empty: all.
        teacher_id: id of the teacher. Give this or `host`, not both.
        host: machine whose teachers to drain: its host name, or its address as students use it.

    Returns:
        "service/teacher_id" of each teacher that drains now.

    Raises:
        UsageError: neither or both of `teacher_id` and `host` are given, or no such service or
            teacher is registered; the message has similar names.
        RedisUnavailable: the registry does not answer. WrongKeyType: the teachers of a service
            cannot be read, and no other teacher was asked to drain.
    """
    if bool(teacher_id) is bool(host):
        raise UsageError("name either a teacher or a host whose teachers are to drain")
    services = _services(registry, service)
    if teacher_id:
        check_member("teachers", teacher_id)
    wanted = teacher_id or host
    teachers: list[tuple[str, str, set[str]]] = []
    unreadable: WrongKeyType | None = None
    for name in services:
        try:
            for member in registry.members("teachers", name):
                names = {member.member} if teacher_id else _hosts(member)
                teachers.append((name, member.member, names))
        except WrongKeyType as error:  # the keys of other services may be readable
            unreadable = error
    draining = [
        f"{name}/{teacher}"
        for name, teacher, names in teachers
        if wanted in names and registry.request_drain(name, teacher)
    ]
    if not draining and unreadable is not None:
        raise unreadable
    if not draining:
        where = f" of service {service}" if service else ""
        hint = _similar(wanted, {known for *_, names in teachers for known in names})
        if teacher_id:
            raise UsageError(f"there is no teacher {teacher_id}{where}{hint}")
        raise UsageError(f"no teacher{where} runs on host {host!r:.140}{hint}")
    return draining


def upgrade(registry: Registry, service: str, content_id: str, at: str) -> str:
    """Move a service to another model content, or back to the previous one.

    Args:
        registry: the registry, which keeps the plan.
        service: name of the service.
        content_id: the new content: a whole content id, or a unique prefix of one that a teacher, a
            student or the plan of the service has.
        at: "epoch": each student when it begins its next epoch; "now": at once.

    Returns:
        Text: what happens now, and what is still missing.

    Raises:
        UsageError: there is no such service; `at` is invalid; no content or several contents match;
            the service has this content already; it moves to this content already at the same `at`;
            or it moves between two other contents.
        RetryableError: others keep changing the plan.
        RedisUnavailable: the registry does not answer.
    """
    if at not in _AT:
        raise UsageError(f"an upgrade happens at 'epoch' or 'now', not at {at!r:.40}")
    _services(registry, check_service(service))
    for _ in range(_ATTEMPTS):
        teachers = registry.members("teachers", service)
        students = registry.members("students", service)
        present = registry.content_plan(service)
        current = present.content_id or _prevailing(students, teachers)
        known = {present.content_id, present.next_content_id}
        known |= {member.facts.get("content_id", "") for member in (*students, *teachers)}
        content = _full_content_id(content_id, known - {""}, service)
        plan = _next_plan(replace(present, content_id=current), service, content, at)
        if registry.set_content_plan(service, plan, present.version):
            return _summary(registry, service, plan, teachers)
    raise RetryableError(f"others change the plan of service {service} as well: try again")


def _next_plan(
    present: StoredContentPlan, service: str, content_id: str, at: str
) -> StoredContentPlan:
    target = present.next_content_id
    if not target and present.content_id == content_id:
        raise UsageError(f"service {service} has content {content_id} already")
    if target == content_id and present.at == at:
        raise UsageError(f"service {service} is on its way to content {content_id} already")
    if target and content_id not in (target, present.content_id):
        raise UsageError(
            f"service {service} is on its way from content {present.content_id} to {target}: "
            "wait until all its students have moved, or move it back first"
        )
    origin = target if content_id == present.content_id else present.content_id
    return StoredContentPlan(content_id=origin, next_content_id=content_id, at=at)


def _summary(
    registry: Registry, service: str, plan: StoredContentPlan, teachers: Iterable[Member]
) -> str:
    registered = sum(
        member.facts.get("content_id") == plan.next_content_id and not member.draining
        for member in teachers
    )
    students = len(registry.names("students", service))
    when = "when it begins its next epoch" if plan.at == "epoch" else "at once"
    origin = f" from {plan.content_id}" if plan.content_id else ""
    moves = {0: "it has no student now", 1: f"its one student {when}"}
    move = moves.get(students, f"each of its {students} students {when}")
    summary = f"service {service} moves{origin} to content {plan.next_content_id}: {move}"
    if registered:
        return f"{summary}; teachers registered to serve it: {registered}"
    return (
        f"{summary}. No teacher of content {plan.next_content_id} serves yet: students stay until "
        "one does"
    )


def _full_content_id(content_id: str, known: Iterable[str], service: str) -> str:
    """Return the known content id that begins with `content_id`, or a whole new one."""
    matches = sorted(
        known_id for known_id in known if content_id and known_id.startswith(content_id)
    )
    if content_id in matches:
        return content_id
    if len(matches) > 1:
        raise UsageError(
            f"{content_id} is the beginning of several contents: {', '.join(matches)}; give "
            "more of the id"
        )
    if not matches and not is_content_id(content_id):
        raise UsageError(
            f"no teacher or student of service {service} has a content whose id is or begins with"
            f" {content_id!r:.80}: 'edl describe service NAME' shows their contents. The id of a"
            " new content is 64 hexadecimal digits, as 'edl teacher fingerprint MODEL' prints them"
        )
    return matches[0] if matches else content_id


def _services(registry: Registry, service: str) -> list[str]:
    """Return the named service, or all if none is named. Raises UsageError if it is unknown."""
    known = registry.services()
    if service and service not in known:
        raise UsageError(f"there is no service {service!r:.140}{_similar(service, known)}")
    return [service] if service else known


def _prevailing(students: Iterable[Member], teachers: Iterable[Member]) -> str:
    """Return the most frequent content of the students, or, if they have none, of the teachers.

    It is used while no content is declared.
    """
    for members in (students, teachers):
        contents = Counter(c for member in members if (c := member.facts.get("content_id", "")))
        if contents:
            return max(sorted(contents), key=contents.__getitem__)
    return ""


def _hosts(member: Member) -> set[str]:
    reached = member.facts.get("address", "").rpartition(":")[0]
    return {member.facts.get("host", ""), reached, reached.strip("[]")} - {""}


def _similar(name: str, known: Iterable[str]) -> str:
    matches = difflib.get_close_matches(name, sorted(known), n=_MAX_SIMILAR, cutoff=0.5)
    return f": did you mean {' or '.join(matches)}?" if matches else ""


def parse_deploy_request(request: pb.DeployRequest) -> Deployment:
    """Return the deployment that a message describes. Raises UsageError if it is invalid."""
    return Deployment(
        service=request.service,
        model_url=request.model_url,
        content_id=request.content_id,
        options=parse_options(request.options),
        min=request.min,
        max=request.max,
        priority=request.priority,
        price_per_hour=request.price_per_hour,
        freeze_s=request.freeze_seconds,
        cost_ceiling_per_hour=(
            request.cost_ceiling_per_hour if request.HasField("cost_ceiling_per_hour") else None
        ),
    )


def deploy(board: MachineBoard, deployment: Deployment) -> str:
    """Deploy a service on machines, or change its deployment.

    Args:
        board: the machine board.
        deployment: the deployment.

    Returns:
        Text: what happens now.

    Raises:
        UsageError: the service is deployed with another content.
        RetryableError: others keep changing the deployment.
        RedisUnavailable: the registry does not answer.
    """
    name = deployment.service

    def checked(present: Deployment | None) -> Deployment:
        if present and not present.withdrawn and present.content_id != deployment.content_id:
            raise UsageError(
                f"service {name} is deployed with content {present.content_id}, which a deployment "
                f"cannot change: delete the service first ('edl delete service {name}'), or deploy "
                "the other content under another name"
            )
        return deployment

    return _deployment_summary(board, _change_deployment(board, name, checked))


def scale(board: MachineBoard, service: str, least: int, most: int) -> str:
    """Change the number of teachers of a deployed service, and nothing else.

    Args:
        board: the machine board.
        service: name of the service.
        least: least number of its teachers.
        most: greatest number of its teachers.

    Returns:
        Text: what happens now.

    Raises:
        UsageError: it is not deployed, or cannot have these numbers.
        RetryableError: others keep changing the deployment.
        RedisUnavailable: the registry does not answer.
    """

    def scaled(present: Deployment | None) -> Deployment:
        return replace(_check_deployed(board, service, present), min=least, max=most)

    return _deployment_summary(board, _change_deployment(board, service, scaled))


def _deployment_summary(board: MachineBoard, deployment: Deployment) -> str:
    machines = board.machines()
    number = str(deployment.min)
    if deployment.max != deployment.min:
        number += f" to {deployment.max}"
    noun = "teacher" if number == "1" else "teachers"
    summary = (
        f"service {deployment.service} is to have {number} {noun} of content"
        f" {deployment.content_id[:12]}"
    )
    if not machines:
        return f"{summary}; no machine is there yet: start 'edl agent' on each machine"
    waiting = sum(
        not machine.order.service and machine.report.state == "idle" for machine in machines
    )
    return f"{summary}; machines: {len(machines)}, of which {waiting} wait for work"


def undeploy(board: MachineBoard, service: str) -> str:
    """Withdraw the deployment of a service; its teachers finish their requests.

    Returns:
        Text: what happens now.

    Raises:
        UsageError: it is not deployed.
        RetryableError: others keep changing the deployment.
        RedisUnavailable: the registry does not answer.
    """

    def withdrawn(present: Deployment | None) -> Deployment:
        return _check_deployed(board, service, present).withdrawal

    _change_deployment(board, service, withdrawn)
    count = sum(machine.order.service == service for machine in board.machines())
    return f"service {service} gives its machines back: {count}; their teachers drain"


def _check_deployed(board: MachineBoard, service: str, present: Deployment | None) -> Deployment:
    """Return the present deployment. Raises UsageError if there is none."""
    if present is not None and not present.withdrawn:
        return present
    deployed = ", ".join(known.service for known in board.deployments() if not known.withdrawn)
    raise UsageError(
        f"service {service} is not deployed on machines (deployed: {deployed or 'none is'}):"
        " 'edl apply -f FILE' deploys a service; teachers that were started by hand are started and"
        " drained by hand"
    )


def _change_deployment(
    board: MachineBoard, service: str, change: Callable[[Deployment | None], Deployment]
) -> Deployment:
    """Write and return `change(present)`; repeat if the present deployment changed meanwhile."""
    check_service(service)
    for _ in range(_ATTEMPTS):
        deployments = (known for known in board.deployments() if known.service == service)
        present = next(deployments, None)
        if board.deploy(changed := change(present), present):
            return changed
    raise RetryableError(f"others are changing the deployment of service {service}: try again")
