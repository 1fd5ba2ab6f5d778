"""Users of a real server: each can do all of its job, and nothing beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import redis as raw
import trustme
from redis.exceptions import NoPermissionError

from edl.coordinator import Heartbeat
from edl.coordinator.calling.discovery import live_managers
from edl.coordinator.jobs.redis_board import RedisBoard
from edl.coordinator.machines import Deployment, Order, Report
from edl.coordinator.machines.redis_board import RedisMachines
from edl.coordinator.queue import Progress, Wish
from edl.coordinator.queue.redis_board import RedisQueue
from edl.coordinator.registry import LogEntry, MemberBeat, Plan, Registry, Row, acl, connect, keys
from edl.coordinator.registry.redis_registry import RedisRegistry
from edl.errors import EdlError, Forbidden, RegistryUnavailable, Unauthenticated, UsageError
from edl.scheduler.students.shards import Shard
from edl.tests.system.redis_servers import TlsProxy, Watched, redis_server, watched_redis
from edl.tests.waiting import wait_until

PASSWORDS = {
    "edl-teacher-s": "for-teachers",
    "edl-reader": "for-readers",
    "edl-student": "for-students",
    "edl-agent": "for-agents",
    "edl-fleet": "for-fleets",
    "edl-manager": "m/:@",
}
TTL_S = 5.0
FACTS = {"incarnation": "1", "address": "h:1", "state": "serving"}


@dataclass
class Users:
    """The registry of each user, on one server."""

    port: int
    teacher: RedisRegistry
    reader: RedisRegistry
    student: RedisRegistry
    agent: RedisRegistry
    fleet: RedisRegistry
    manager: RedisRegistry

    def client(self, user: str) -> Any:
        """A plain client, logged in as a user."""
        return raw.Redis(port=self.port, username=user, password=PASSWORDS[user], protocol=2)


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    file = tmp_path_factory.mktemp("acl") / "users.acl"
    file.write_text("\n".join(["user default off", *acl.rules("s", PASSWORDS), ""]))
    with redis_server("--aclfile", str(file)) as (_, port):
        yield port


@pytest.fixture
def users(port: int, tmp_path: Path) -> Iterator[Users]:
    registries = []
    for user in acl.users("s"):
        secret = tmp_path / user
        secret.touch(mode=0o600)
        secret.write_text(PASSWORDS[user] + "\n")
        registries.append(
            RedisRegistry(f"redis://{user}@127.0.0.1:{port}/0?password_file={secret}")
        )
    found = Users(port, *registries)
    yield found
    for kind in ("teachers", "students"):
        for name in found.manager.names(kind, "s"):
            found.manager.leave(kind, "s", name)
    for registry in registries:
        registry.close()


def test_a_teacher_lives_drains_and_leaves(users: Users) -> None:
    facts, drained = dict(FACTS), []
    heart = Heartbeat(
        users.teacher, "teachers", "s", "t", lambda: facts, TTL_S,
        on_drain=lambda: drained.append(True),
    )  # fmt: skip
    heart.start()
    facts["in_flight"] = "3"
    wait_until(lambda: users.manager.members("teachers", "s")[0].facts.get("in_flight") == "3")
    facts["in_flight"] = "4"  # another beat
    wait_until(lambda: users.manager.members("teachers", "s")[0].facts.get("in_flight") == "4")
    assert heart.answering
    assert users.manager.request_drain("s", "t")
    wait_until(lambda: bool(drained))
    heart.stop()
    assert users.manager.names("teachers", "s") == set()
    assert users.manager.changes("teachers", "s", 1).left == ("t",)


def test_a_reader_finds_managers(users: Users) -> None:
    users.manager.register("managers", "", "127.0.0.1:5", {"incarnation": "1"}, 30.0)
    assert live_managers(users.reader) == ["127.0.0.1:5"]
    users.manager.leave("managers", "", "127.0.0.1:5")


def test_a_node_of_a_training_keeps_its_board_and_finds_managers(users: Users) -> None:
    users.manager.register("managers", "", "127.0.0.1:5", {"incarnation": "1"}, 30.0)
    assert live_managers(users.student) == ["127.0.0.1:5"]
    users.manager.leave("managers", "", "127.0.0.1:5")
    board = RedisBoard(f"redis://edl-student:for-students@127.0.0.1:{users.port}")
    board.join("j", "a", {"n": 1}, 30.0)
    assert board.beat("j", "a", {"n": 2})
    assert [node.facts for node in board.nodes("j")] == [{"n": 2}]
    assert board.lead("j", "a", 30.0)
    assert board.publish("j", "a", 1, {})
    assert board.generation("j") is not None
    assert board.fill("j", 1, 0, [Shard(0, 2), Shard(2, 4)])
    assert board.lease("j", 1, 0, 0) == (0, 2)
    assert board.done("j", 1, 0, 0, 0, 2)
    assert board.lease("j", 1, 0, 0) == (2, 4)
    assert board.report("j", 1, 0, {})
    board.note("j", {})
    for reader in (board, RedisBoard(f"redis://edl-manager:m%2F%3A%40@127.0.0.1:{users.port}")):
        assert reader.jobs() == ["j"]
        assert len(reader.nodes("j")) == len(reader.reports("j")) == len(reader.events("j")) == 1
        assert reader.outcome("j") is None
    assert board.finish("j", {})
    board.resign("j", "a")
    board.leave("j", "a")
    reader.close()
    board.close()


def test_a_fleet_keeps_queues_and_the_boards_of_trainings(users: Users) -> None:
    url = f"redis://edl-fleet:for-fleets@127.0.0.1:{users.port}"
    queue, board = RedisQueue(url), RedisBoard(url)
    for number in (1, 2):
        assert queue.submit("a", {}) == number
        assert queue.take("r", {}, 30.0)
        assert queue.wish("a", Wish(nodes=1))
        assert queue.log("r", "a", ["x"])
        assert queue.tell("r", "a", number, Progress("failed"))
    queue.note({})
    queue.reserve("web", 1, 30.0)
    assert len(queue.jobs()) == len(queue.lines("a")) == len(queue.events()) == 1
    assert len(queue.reservations()) == 1
    assert queue.runner() is not None
    queue.unreserve("web")
    queue.resign("r")
    board.join("j", "a", {}, 30.0)
    assert len(board.nodes("j")) == 1
    board.leave("j", "a")
    queue.close()
    board.close()
    with_less = RedisQueue(f"redis://edl-student:for-students@127.0.0.1:{users.port}")
    with pytest.raises(Forbidden):
        with_less.submit("b", {})
    with pytest.raises(Forbidden):
        users.fleet.register("teachers", "s", "t", FACTS, TTL_S)
    with_less.close()


def test_an_agent_keeps_its_machine_reads_its_order_and_serves_any_service(users: Users) -> None:
    agent = RedisMachines(f"redis://edl-agent:for-agents@127.0.0.1:{users.port}")
    manager = RedisMachines(f"redis://edl-manager:m%2F%3A%40@127.0.0.1:{users.port}")
    deployment = Deployment("s", "s3://b/m", "ab" * 32)
    agent.join("m", 1, Report(), 30.0)
    manager.deploy(deployment)
    assert manager.lead("x#1", 30.0)
    assert manager.order("x#1", {"m": Order(1, deployment)})
    assert agent.beat("m", 1, Report(state="serving")).order.service == "s"
    assert manager.machines()[0].report.state == "serving"
    for service in ("s", "another"):
        users.agent.register("teachers", service, "m", FACTS, 30.0)
        users.agent.beat("teachers", service, "m", 30.0, incarnation=1)
        assert users.agent.leave("teachers", service, "m", 1)
    forbidden: list[Callable[[], object]] = [
        agent.machines, agent.deployments,
        lambda: agent.deploy(deployment),
        lambda: agent.lead("evil", 30.0),
        lambda: agent.order("x#1", {"m": None}),
        lambda: agent.forget("x#1", "s"),
        lambda: agent.note("s", [LogEntry("a", "b", "c")]),
        lambda: agent.noted("s"),
    ]  # fmt: skip
    for deed in forbidden:
        with pytest.raises(Forbidden):
            deed()
    agent.leave("m", 1)
    manager.note("s", [LogEntry("a", "b", "c")])
    manager.deploy(deployment.withdrawal)
    assert manager.forget("x#1", "s")
    manager.resign("x#1")
    with users.client("edl-manager") as client:
        client.delete(keys.events("s"))
    agent.close()
    manager.close()


def test_a_manager_does_all_that_managers_do(users: Users) -> None:
    manager = users.manager
    users.teacher.register("teachers", "s", "t", FACTS, TTL_S)
    assert manager.services() == ["s"]
    manager.register_many("students", "s", {"j/0": {"incarnation": "1"}}, 30.0)
    manager.beat_many("students", "s", [MemberBeat("j/0", 1, {"want": "2"})], 30.0)
    assert manager.read("students", "s", ["j/0"])[0].facts["want"] == "2"
    assert manager.lead("s", "m#1", 30.0).leader == "m#1"
    rows = {"j/0": Row(("t",))}
    assert manager.write("s", "m#1", (0, 0), (5, 1), rows, [LogEntry("a", "b", "c")], {"t": 1})
    assert manager.write("s", "m#1", (5, 1), (6, 0), {"j/0": None}, (), {"t": None})
    assert manager.table("s", (6, 0)).gone == ()
    assert manager.admitted("s") == {}
    assert [e.kind for e in manager.events("s")] == ["a"]
    assert manager.set_plan("s", Plan("c1"), 0)
    assert manager.move_plan("s", "m#1", (6, 0), Plan("c2", version=1), LogEntry("a", "b", "c"))
    assert manager.plan("s").content_id == "c2"
    wait_until(lambda: manager.sweep("teachers", "s") == ["t"])
    assert manager.changes("teachers", "s").lost == ("t",)
    assert manager.resign("s", "m#1")
    assert manager.server_info()["role"] == "master"


Deed = Callable[[Registry], object]
OF_TEACHERS: dict[str, Deed] = {
    "another service": lambda r: r.register("teachers", "other", "t", FACTS, 30.0),
    "students": lambda r: r.register("students", "s", "j/0", {"incarnation": "1"}, 30.0),
    "managers": lambda r: r.members("managers", ""),
    "a manager's lease": lambda r: r.register("managers", "", "h:1", {"incarnation": "1"}, 30.0),
    "to lead": lambda r: r.lead("s", "x#1", 30.0),
    "the table": lambda r: r.table("s"),
    "the log": lambda r: r.events("s"),
    "the plan": lambda r: r.set_plan("s", Plan("evil"), 0),
    "a leader's plan": lambda r: r.move_plan(
        "s", "x#1", (0, 0), Plan("x"), LogEntry("a", "b", "c")
    ),
    "the list of services": lambda r: r.services(),
    "other teachers' facts": lambda r: r.members("teachers", "s"),
}
OF_READERS: dict[str, Deed] = {
    "a teacher's lease": lambda r: r.register("teachers", "s", "t", FACTS, 30.0),
    "a manager's lease": lambda r: r.register("managers", "", "h:1", {"incarnation": "1"}, 30.0),
    "to end a lease": lambda r: r.leave("managers", "", "h:1"),
    "teachers": lambda r: r.members("teachers", "s"),
    "the table": lambda r: r.table("s"),
    "to lead": lambda r: r.lead("s", "x#1", 30.0),
}
OF_STUDENTS: dict[str, Deed] = {
    **{name: deed for name, deed in OF_READERS.items() if name != "a manager's lease"},
    "services": lambda r: r.services(),
    "the log": lambda r: r.events("s"),
}


def refuses(registry: RedisRegistry, deed: Deed) -> None:
    with pytest.raises(Forbidden, match=r"user .* may not do this") as error:
        deed(registry)
    assert "edl coordinator acl" in str(error.value)
    assert not any(password in str(error.value) for password in PASSWORDS.values())


@pytest.mark.parametrize("deed", OF_TEACHERS)
def test_a_teacher_is_refused_everything_else(users: Users, deed: str) -> None:
    users.teacher.register("teachers", "s", "t", FACTS, 30.0)
    refuses(users.teacher, OF_TEACHERS[deed])


@pytest.mark.parametrize("deed", [name for name in OF_TEACHERS if name != "another service"])
def test_an_agent_is_refused_everything_else(users: Users, deed: str) -> None:
    users.agent.register("teachers", "s", "t", FACTS, 30.0)
    refuses(users.agent, OF_TEACHERS[deed])


@pytest.mark.parametrize("deed", OF_READERS)
def test_a_reader_is_refused_everything_else(users: Users, deed: str) -> None:
    refuses(users.reader, OF_READERS[deed])


@pytest.mark.parametrize("deed", OF_STUDENTS)
def test_a_node_of_a_training_is_refused_everything_else(users: Users, deed: str) -> None:
    refuses(users.student, OF_STUDENTS[deed])


@pytest.mark.parametrize(
    "command",
    [
        ("FLUSHALL",), ("KEYS", "*"), ("CONFIG", "GET", "*"), ("ACL", "LIST"), ("SHUTDOWN",),
        ("SCRIPT", "FLUSH"), ("GET", "edl:{s}:leader"), ("ZREM", "edl:services", "s"),
        ("PEXPIRE", "edl:services", "1"), ("ZRANGE", "edl:services", "0", "-1"),
        ("HGET", "edl:{s}:student:j/0", "secret"), ("SET", "edl:{s}:teachers", "x"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("user", ["edl-teacher-s", "edl-reader", "edl-student", "edl-agent"])
def test_commands_that_are_nobodys_job(users: Users, user: str, command: tuple[str, ...]) -> None:
    with users.client(user) as client, pytest.raises(NoPermissionError):
        client.execute_command(*command)


@pytest.mark.parametrize("command", [("SET", "somebody-elses", "x"), ("FLUSHALL",)])
def test_a_manager_is_kept_to_the_keys_of_the_mesh(users: Users, command: tuple[str, ...]) -> None:
    with users.client("edl-manager") as client, pytest.raises(NoPermissionError):
        client.execute_command(*command)


def test_a_wrong_password_and_none_are_told_apart_from_a_silent_server(users: Users) -> None:
    for login in ("", "edl-reader:wrong@", "nobody:wrong@"):
        registry = connect(f"redis://{login}127.0.0.1:{users.port}")
        with pytest.raises(Unauthenticated, match="refuses our user or password") as error:
            registry.time_ms()
        assert "wrong@" not in str(error.value)
        registry.close()


def test_a_password_that_was_rotated_is_taken_at_the_next_connection(
    users: Users, tmp_path: Path
) -> None:
    file = tmp_path / "rotated"
    file.touch(mode=0o600)
    file.write_text(PASSWORDS["edl-reader"])
    url = f"redis://edl-reader@127.0.0.1:{users.port}?password_file={file}"
    registry = RedisRegistry(url)
    assert registry.members("managers", "") == []
    file.write_text("an old one")
    registry.close()
    with pytest.raises(Unauthenticated):
        registry.members("managers", "")
    file.unlink()
    with pytest.raises(RegistryUnavailable, match=r"rotated cannot be read"):
        registry.members("managers", "")
    file.touch(mode=0o600)
    file.write_text(PASSWORDS["edl-reader"])
    assert registry.members("managers", "") == []
    registry.close()


def test_a_stolen_teacher_may_name_a_service_and_it_is_forgotten(users: Users) -> None:
    with users.client("edl-teacher-s") as client, users.client("edl-manager") as manager:
        client.zadd(keys.SERVICES, {"junk": 1})
        assert "junk" not in users.manager.services()
        assert manager.zscore(keys.SERVICES, "junk") is None


#: Of sentinels that watch a master which nobody kills: no stall is to have them fail over.
PATIENT_MS = 3000


@pytest.fixture(scope="module")
def unharmed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    with watched_redis(tmp_path_factory.mktemp("unharmed"), down_after_ms=PATIENT_MS) as watched:
        yield watched


@contextmanager
def connect_to(port: int) -> Iterator[Registry]:
    registry = connect(f"redis://127.0.0.1:{port}")
    yield registry
    registry.close()


def answers(registry: Registry) -> bool:
    try:
        registry.lead("s", "m#1", 30.0)
    except EdlError:
        return False
    return True


def test_after_a_fail_over_the_registry_follows_the_new_master(
    tmp_path: Path, stack: ExitStack
) -> None:
    watched = stack.enter_context(watched_redis(tmp_path))
    registry = connect(watched.url)
    stack.callback(registry.close)
    heart = Heartbeat(registry, "teachers", "s", "t", lambda: {"incarnation": "1"}, TTL_S)
    heart.start()
    before = registry.lead("s", "m#1", 30.0)
    assert registry.write("s", "m#1", (0, 0), (5, 1), {"j/0": Row(("t",))})
    with connect_to(watched.ports[1]) as replica:
        wait_until(lambda: replica.table("s").epoch == (5, 1))

    watched.kill_master()
    with pytest.raises(RegistryUnavailable):
        registry.lead("s", "m#1", 30.0)
    wait_until(lambda: answers(registry))
    after = registry.lead("s", "m#1", 30.0)
    assert after.registry_id != before.registry_id
    assert after.epoch == (5, 1)
    assert registry.table("s").rows == {"j/0": Row(("t",))}
    wait_until(lambda: [m.member for m in registry.members("teachers", "s")] == ["t"])
    wait_until(lambda: heart.answering)
    heart.stop()


def test_a_replica_refuses_to_be_written(unharmed: Watched) -> None:
    with (
        connect_to(unharmed.ports[1]) as replica,
        pytest.raises(RegistryUnavailable, match="is a replica"),
    ):
        replica.register("teachers", "s", "t", {"incarnation": "1"}, 5.0)


def test_a_sentinel_that_is_away_is_passed_over(unharmed: Watched) -> None:
    port = unharmed.sentinels[0]
    registry = connect(f"redis+sentinel://127.0.0.1:1,127.0.0.1:{port}/mesh")
    assert answers(registry)
    registry.close()


def test_a_master_that_the_sentinels_do_not_know(unharmed: Watched) -> None:
    registry = connect(f"redis+sentinel://127.0.0.1:{unharmed.sentinels[0]}/other")
    with pytest.raises(RegistryUnavailable, match="No master found for 'other'"):
        registry.time_ms()
    registry.close()


PASSWORD = "p@ss/word"


@dataclass
class Tls:
    """A server with a password, its authority's file, and proxies before it."""

    port: int
    authority: trustme.CA
    folder: Path
    proxy: Callable[..., TlsProxy]

    @property
    def ca(self) -> Path:
        return self.folder / "ca.pem"

    def url(self, proxy: TlsProxy, *parameters: str, host: str = "127.0.0.1") -> str:
        query = "&".join([f"ssl_ca_certs={self.ca}", *parameters])
        return f"rediss://:p%40ss%2Fword@{host}:{proxy.port}/1?{query}"


@pytest.fixture
def tls(tmp_path: Path) -> Iterator[Tls]:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    with ExitStack() as stack:
        _, port = stack.enter_context(redis_server("--requirepass", PASSWORD))

        def proxy(**options: object) -> TlsProxy:
            made = TlsProxy(port, authority, **options)  # type: ignore[arg-type]
            stack.callback(made.close)
            return made

        yield Tls(port, authority, tmp_path, proxy)


def test_leases_over_tls(tls: Tls) -> None:
    registry = connect(tls.url(tls.proxy()))
    assert registry.url.startswith("rediss://***@127.0.0.1:")
    heart = Heartbeat(registry, "teachers", "s", "t", lambda: {"incarnation": "1"}, TTL_S)
    heart.start()
    wait_until(lambda: [m.member for m in registry.members("teachers", "s")] == ["t"])
    heart.stop()
    assert registry.names("teachers", "s") == set()
    registry.close()


def test_an_authority_that_is_not_ours_is_not_trusted(tls: Tls) -> None:
    proxy = tls.proxy()
    trustme.CA().cert_pem.write_to_path(str(tls.ca))
    registry = connect(tls.url(proxy))
    with pytest.raises(RegistryUnavailable, match="ssl_ca_certs=FILE") as error:
        registry.time_ms()
    assert "certificate verify failed" in str(error.value)
    assert "p%40ss" not in str(error.value)
    registry.close()


def test_a_certificate_of_another_host_is_refused_unless_that_is_wanted(tls: Tls) -> None:
    proxy = tls.proxy(name="redis.example")
    registry = connect(tls.url(proxy))
    with pytest.raises(RegistryUnavailable, match="certificate verify failed"):
        registry.time_ms()
    registry.close()
    lenient = connect(tls.url(proxy, "ssl_check_hostname=false"))
    assert lenient.time_ms() > 0
    lenient.close()


def test_a_server_that_asks_for_a_certificate_gets_ours(tls: Tls) -> None:
    proxy = tls.proxy(client_authority=tls.authority)
    own = tls.authority.issue_cert("teacher")
    own.private_key_pem.write_to_path(str(tls.folder / "key.pem"))
    own.cert_chain_pems[0].write_to_path(str(tls.folder / "cert.pem"))
    files = [f"ssl_certfile={tls.folder / 'cert.pem'}", f"ssl_keyfile={tls.folder / 'key.pem'}"]
    registry = connect(tls.url(proxy, *files))
    assert registry.time_ms() > 0
    registry.close()
    bare = connect(tls.url(proxy))
    with pytest.raises(RegistryUnavailable, match="does not answer"):
        bare.time_ms()
    bare.close()


def test_tls_to_a_server_without_it_and_the_other_way_round(tls: Tls) -> None:
    over = connect(f"rediss://127.0.0.1:{tls.port}?ssl_ca_certs={tls.ca}", timeout_s=0.5)
    with pytest.raises(RegistryUnavailable, match="does not answer"):
        over.time_ms()
    over.close()
    plain = connect(f"redis://127.0.0.1:{tls.proxy().port}", timeout_s=0.5)
    with pytest.raises(RegistryUnavailable, match="does not answer"):
        plain.time_ms()
    plain.close()


def test_files_that_are_not_there_are_told_at_once(tls: Tls) -> None:
    with pytest.raises(UsageError, match="ssl_ca_certs of rediss://h:1 is no file: /nowhere"):
        connect("rediss://h:1?ssl_ca_certs=/nowhere")
    with pytest.raises(UsageError, match="no ssl_certfile"):
        connect(f"rediss://h:1?ssl_keyfile={tls.ca}")
