"""Permissions of each role in Redis: rules for `users.acl`, built from the key names in use."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Final

from ..job_queue import ANY_QUEUE
from ..jobs.schema import ANY_JOB, JOBS
from ..machines.schema import MACHINES, ORDERS
from ..store.redis_store import WRITE_CHECK
from .schema import MANAGERS, SERVICES, check_service, lease_set

READER: Final = "edl-reader"
STUDENT: Final = "edl-student"
AGENT: Final = "edl-agent"
FLEET: Final = "edl-fleet"
MANAGER: Final = "edl-manager"
#: Stands in place of a password's hash until an operator replaces it.
PLACEHOLDER: Final = "#<sha256-of-the-password>"

#: The rule that refuses clients without a user.
NO_DEFAULT: Final = "user default off"

#: Commands to open and keep a connection; `select` is for a URL with /db.
_CONNECT: Final = "+ping +select +client|setname"
#: Every script reads the clock; a user needs permission for all commands that its scripts call.
_SCRIPTS: Final = "+eval +evalsha +time"
_TEACHER_COMMANDS: Final = (
    "+hget +hmget +hset +del +zadd +zscore +zrem +zrange +zremrangebyscore +pexpire +pttl"
)
_MANAGER_COMMANDS: Final = (
    f"{_TEACHER_COMMANDS} +hdel +hgetall +exists +zincrby +zcard +zmscore +zrangebyscore "
    "+zremrangebyrank +xadd +xrange +xrevrange +info"
)
#: Tests whether Redis accepts writes. RPUSHX creates no list, so nothing is ever written.
_WRITE_CHECK: Final = f"(+rpushx %W~{WRITE_CHECK})"
#: Name of a service that `*` replaces in key patterns for all services.
_ANY_SERVICE: Final = "any-service"
_STUDENT_COMMANDS: Final = (
    "+hget +hset +hdel +hgetall +del +zadd +zscore +zrem +zrange +zrangebyscore "
    "+zremrangebyscore +pexpire +xadd +xrange"
)


def teacher(service: str) -> str:
    """Return the user name of a service's teachers."""
    return f"edl-teacher-{check_service(service)}"


def rules(service: str, secrets: Mapping[str, str] | None = None) -> list[str]:
    """Return lines of a `users.acl`, one for each user that a service needs.

    They need Redis 7 or newer, or Valkey. Each service has its own user for teachers; all services
    share the other users. The roles:

    - A teacher writes the leases and facts of the teachers of its service, and adds names to the
      list of services, but removes none.
    - A reader reads the addresses of managers and writes nothing.
    - A student (a node of a training) also reads and writes the board of every job.
    - An agent writes entries on the machine board, even those of other machines, and only reads the
      orders. Its machine may serve any service, so it has the permissions of every teacher user.
    - A fleet user runs or submits elastic jobs: it has the permissions of a student, and reads and
      writes every queue.
    - A manager reads and writes all keys of the mesh.

    Args:
        service: name of the service.
        secrets: user -> password; only its hash is written. Users without one get a placeholder,
            which Redis refuses to load.

    Raises:
        UsageError: the name of the service is invalid.
    """
    lines = []
    for user, permissions in _permissions(service).items():
        secret = (secrets or {}).get(user)
        digest = PLACEHOLDER
        if secret is not None:
            digest = f"#{hashlib.sha256(secret.encode()).hexdigest()}"
        lines.append(f"user {user} on {digest} resetchannels {permissions} {_WRITE_CHECK}")
    return lines


def _permissions(service: str) -> dict[str, str]:
    """Return key patterns and commands of each user."""
    managers = f"%R~{MANAGERS} %R~{lease_set('managers', '').facts}*"
    student = f"{managers} ~{ANY_JOB} ~{JOBS} {_CONNECT} {_SCRIPTS} {_STUDENT_COMMANDS}"
    machine = f"~{MACHINES.deadlines} ~{MACHINES.facts}* %R~{ORDERS}"
    any_teacher = _teachers(_ANY_SERVICE).replace(_ANY_SERVICE, "*")
    teacher_commands = f"{_CONNECT} {_SCRIPTS} {_TEACHER_COMMANDS}"
    add_service = f"(+zadd %W~{SERVICES})"
    return {
        teacher(service): f"{_teachers(service)} {teacher_commands} {add_service}",
        READER: f"{managers} {_CONNECT} +time +zrange +hgetall",
        STUDENT: student,
        AGENT: f"{machine} {any_teacher} {teacher_commands} {add_service}",
        FLEET: f"{student} ~{ANY_QUEUE}",
        MANAGER: f"~edl:* {_CONNECT} {_SCRIPTS} {_MANAGER_COMMANDS}",
    }


def _teachers(service: str) -> str:
    """Return the patterns of all keys of a service's teachers."""
    teachers = lease_set("teachers", service)
    return f"~{teachers.deadlines} ~{teachers.facts}* ~{teachers.changes}"
