"""Users of a real server: each can do all of its job, and nothing beside it."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
import redis as raw
import trustme
from redis.exceptions import NoPermissionError

from edl.coordinator import Heartbeat
from edl.coordinator.calling.discovery import live_managers
from edl.coordinator.job_queue import DesiredJobState, JobProgress, QueueBoard, queue_key
from edl.coordinator.jobs import JobBoard
from edl.coordinator.machines import Deployment, MachineBoard, MachineOrder, Report
from edl.coordinator.machines.board import fence_of
from edl.coordinator.machines.schema import MACHINES
from edl.coordinator.registry import LogEntry, Registry, Row, StoredContentPlan, acl, connect
from edl.coordinator.registry.schema import SERVICES, service_key
from edl.coordinator.store.records import Leads, MemberBeat
from edl.coordinator.store.redis_store import WRITE_CHECK, RedisStore
from edl.runtime.errors import EdlError, Forbidden, RedisUnavailable, Unauthenticated, UsageError
from edl.tests.proto.security.authority import write_secret
from edl.tests.stores import of_job, of_queue, renew
from edl.tests.system.coordinator_process import edl, ready, serve
from edl.tests.system.redis_servers import TlsProxy, redis_server, watched_redis
from edl.tests.waiting import DEADLINE_S, wait_until

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


def store_at(url: str) -> RedisStore:
    """One that never repeats a command of which the answer is late."""
    return RedisStore(url, timeout_s=DEADLINE_S)


@dataclass
class Users:
    port: int
    teacher: Registry
    reader: Registry
    student: Registry
    agent: Registry
    fleet: Registry
    manager: Registry

    def client(self, user: str) -> Any:
        password = PASSWORDS.get(user, "any")
        return raw.Redis(
            port=self.port, username=user, password=password, protocol=2, decode_responses=True
        )

    def url(self, user: str) -> str:
        return f"redis://{user}:{quote(PASSWORDS[user], safe='')}@127.0.0.1:{self.port}"


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    file = tmp_path_factory.mktemp("acl") / "users.acl"
    admin = "user admin on nopass ~* &* +@all"
    file.write_text("\n".join([acl.NO_DEFAULT, admin, *acl.rules("s", PASSWORDS), ""]))
    with redis_server("--aclfile", str(file)) as (_, port):
        yield port


@pytest.fixture
def users(port: int, tmp_path: Path) -> Iterator[Users]:
    registries = {}
    for user, password in PASSWORDS.items():
        file = write_secret(tmp_path / user, f"{password}\n")
        url = f"redis://{user}@127.0.0.1:{port}/0?password_file={file}"
        registries[user.split("-")[1]] = Registry(store_at(url))
    found = Users(port, **registries)
    yield found
    for kind in ("teachers", "students"):
        for name in found.manager.names(kind, "s"):
            found.manager.leave(kind, "s", name)
    for registry in registries.values():
        registry.close()


def test_a_teacher_lives_drains_and_leaves(users: Users) -> None:
    facts, drained = {**FACTS, "lanes": "3"}, threading.Event()
    of = ("s", "t", lambda: facts, TTL_S)
    heart = Heartbeat(users.teacher, "teachers", *of, on_drain=drained.set)
    heart.start()
    facts["lanes"] = "4"  # of the next beat
    wait_until(
        lambda: [one.facts.get("lanes") for one in users.manager.members("teachers", "s")] == ["4"]
    )
    assert users.manager.request_drain("s", "t")
    assert drained.wait(DEADLINE_S)
    heart.stop()
    assert users.manager.names("teachers", "s") == set()
    assert users.manager.changes("teachers", "s", 1).left == ("t",)


def test_a_node_of_a_training_keeps_its_board_and_finds_managers(users: Users) -> None:
    users.manager.register("managers", "", "127.0.0.1:5", {"incarnation": "1"}, 30.0)
    for registry in (users.reader, users.student):
        assert live_managers(registry) == ["127.0.0.1:5"]
    users.manager.leave("managers", "", "127.0.0.1:5")
    board = JobBoard(store_at(users.url("edl-student")))
    board.join("j", "a", {"n": 1}, 30.0)
    assert board.beat("j", "a", 30.0, {"n": 2})
    assert [node.facts for node in board.nodes("j")] == [{"n": 2}]
    assert board.lead("j", "a", 30.0)
    assert board.publish("j", of_job(board, "j", "a"), 1, {})
    assert board.generation("j") is not None
    assert board.fill("j", 1, 0, [(0, 2)])
    assert board.lease("j", 1, 0, 0) == (0, 2)
    assert board.report("j", 1, 0, {})
    board.add_event("j", {})
    for reader in (board, JobBoard(store_at(users.url("edl-manager")))):
        assert reader.jobs() == ["j"]
        assert len(reader.nodes("j")) == len(reader.reports("j")) == len(reader.events("j")) == 1
        assert reader.outcome("j") is None
    assert board.finish("j", of_job(board, "j", "a"), 1, {})
    board.resign("j", "a")
    board.leave("j", "a")
    reader.close()
    board.close()


def test_a_fleet_keeps_queues_and_the_boards_of_trainings(users: Users) -> None:
    queue = QueueBoard(store_at(users.url("edl-fleet")))
    board = JobBoard(store_at(users.url("edl-fleet")))
    for number in (1, 2):
        assert queue.submit("a", {}) == number
        assert queue.lead("r", {}, 30.0)
        assert queue.set_desired_state("a", DesiredJobState(nodes=1))
        assert queue.append_log(of_queue(queue, "r"), "a", ["x"])
        assert queue.write_progress(of_queue(queue, "r"), "a", number, JobProgress("failed"))
    queue.add_event({})
    queue.reserve("web", 1, 30.0)
    assert len(queue.jobs()) == len(queue.read_log("a")) == len(queue.events()) == 1
    assert len(queue.reservations()) == 1
    assert queue.runner() is not None
    queue.unreserve("web")
    queue.resign("r")
    board.join("j", "a", {}, 30.0)
    assert len(board.nodes("j")) == 1
    board.leave("j", "a")
    queue.close()
    board.close()
    with (
        closing(QueueBoard(store_at(users.url("edl-student")))) as other,
        pytest.raises(Forbidden),
    ):
        other.submit("b", {})
    with pytest.raises(Forbidden):
        users.fleet.register("teachers", "s", "t", FACTS, TTL_S)


def test_an_agent_keeps_its_machine_reads_its_order_and_serves_any_service(users: Users) -> None:
    agent, manager = (
        MachineBoard(store_at(users.url(user))) for user in ("edl-agent", "edl-manager")
    )
    deployment = Deployment("s", "s3://b/m", "ab" * 32)
    agent.join("m", 1, Report(), 30.0)
    manager.deploy(deployment)
    fence = fence_of(manager.lead("x#1", 30.0))
    assert manager.order(fence, {"m": MachineOrder(1, deployment)})
    assert agent.beat("m", 1, 30.0, Report(state="serving")) == MachineOrder(1, deployment)
    assert manager.machines()[0].report.state == "serving"
    for service in ("s", "another"):
        users.agent.register("teachers", service, "m", FACTS, 30.0)
        renew(users.agent, "teachers", service, "m", 30.0, incarnation=1)
        assert users.agent.leave("teachers", service, "m", 1)
    forbidden: list[Callable[[], object]] = [
        agent.machines, agent.deployments,
        lambda: agent.deploy(deployment),
        lambda: agent.lead("evil", 30.0),
        lambda: agent.order(fence, {"m": None}),
        lambda: agent.forget(fence, "s"),
        lambda: users.agent.add_events("s", [LogEntry("a", "b", "c")]),
        lambda: users.agent.events("s"),
    ]  # fmt: skip
    for deed in forbidden:
        with pytest.raises(Forbidden):
            deed()
    agent.leave("m", 1)
    users.manager.add_events("s", [LogEntry("a", "b", "c")])
    assert manager.deploy(deployment.withdrawal, *manager.deployments())
    assert manager.forget(fence, "s")
    manager.resign("x#1")
    with users.client("edl-manager") as client:
        client.delete(service_key("s", "events"))
    agent.close()
    manager.close()


def test_a_manager_does_all_that_managers_do(users: Users) -> None:
    manager = users.manager
    users.teacher.register("teachers", "s", "t", FACTS, TTL_S)
    assert manager.services() == ["s"]
    manager.register("students", "s", "j/0", {"incarnation": "1"}, 30.0)
    beat = MemberBeat("j/0", 1, {"want": "2"}, notify=True)
    manager.beat_many("students", [("s", beat)], 30.0)
    assert manager.read("students", "s", ["j/0"])[0].facts["want"] == "2"
    fence = manager.lead("s", "m#1", 30.0).fence
    assert fence.holder == "m#1"
    rows = {"j/0": Row(("t",))}
    assert manager.write("s", fence, (0, 0), (5, 1), rows, [LogEntry("a", "b", "c")], {"t": 1})
    assert manager.write("s", fence, (5, 1), (6, 0), {"j/0": None}, (), {"t": None})
    assert manager.table("s", (6, 0)).gone == ()
    assert manager.admitted("s") == {}
    assert [e.kind for e in manager.events("s")] == ["a"]
    assert manager.set_content_plan("s", StoredContentPlan("c1"), 0)
    assert manager.move_content_plan(
        "s", fence, (6, 0), StoredContentPlan("c2", version=1), LogEntry("a", "b", "c")
    )
    assert manager.content_plan("s").content_id == "c2"
    wait_until(lambda: manager.sweep("teachers", "s") == ["t"])
    assert manager.changes("teachers", "s").lost == ("t",)
    assert manager.resign("s", "m#1")
    assert manager.server_info()["role"] == "master"


#: What some users may not do.
DEEDS: dict[str, Callable[[Registry], object]] = {
    "teacher of another service": lambda r: r.register("teachers", "other", "t", FACTS, 30.0),
    "teacher": lambda r: r.register("teachers", "s", "t", FACTS, 30.0),
    "student": lambda r: r.register("students", "s", "j/0", {"incarnation": "1"}, 30.0),
    "manager": lambda r: r.register("managers", "", "h:1", {"incarnation": "1"}, 30.0),
    "end a manager's lease": lambda r: r.leave("managers", "", "h:1"),
    "read managers": lambda r: r.members("managers", ""),
    "read teachers": lambda r: r.members("teachers", "s"),
    "read services": lambda r: r.services(),
    "read the table": lambda r: r.table("s"),
    "read the log": lambda r: r.events("s"),
    "lead": lambda r: r.lead("s", "x#1", 30.0),
    "plan": lambda r: r.set_content_plan("s", StoredContentPlan("evil"), 0),
    "plan as a leader": lambda r: r.move_content_plan(
        "s",
        Leads(service_key("s", "leader"), "x#1", 1),
        (0, 0),
        StoredContentPlan("x"),
        LogEntry("a", "b", "c"),
    ),
}
OF_MANAGERS = {"manager", "read teachers", "read the table", "lead"}
#: Of teachers and agents: "teacher of another service" is for agents.
OF_OTHERS = OF_MANAGERS | {
    "student", "read managers", "read services", "read the log", "plan", "plan as a leader",
}  # fmt: skip


OF_NODES = {
    "teacher", "end a manager's lease", "read services", "read the log", "read teachers",
    "read the table", "lead",
}  # fmt: skip


@pytest.mark.parametrize(
    ("user", "refused"),
    [
        ("teacher", OF_OTHERS | {"teacher of another service"}),
        ("agent", OF_OTHERS),
        ("reader", OF_MANAGERS | {"teacher", "end a manager's lease"}),
        ("student", OF_NODES),
    ],
)
def test_a_user_is_refused_everything_else(users: Users, user: str, refused: set[str]) -> None:
    registry: Registry = getattr(users, user)
    if "teacher" not in refused:
        DEEDS["teacher"](registry)
    for name in sorted(refused):
        with pytest.raises(Forbidden, match=r"user .* may not do this") as error:
            DEEDS[name](registry)
        assert "edl coordinator acl" in str(error.value)
        assert not any(password in str(error.value) for password in PASSWORDS.values())


@pytest.mark.parametrize("user", ["edl-teacher-s", "edl-reader", "edl-student", "edl-agent"])
def test_commands_of_administrators_and_other_keys_are_refused(users: Users, user: str) -> None:
    with users.client(user) as client:
        for command in (
            "FLUSHALL", "KEYS *", "CONFIG GET *", "ACL LIST", "SHUTDOWN", "SCRIPT FLUSH",
            "GET edl:{s}:leader", "ZREM edl:services s", "PEXPIRE edl:services 1",
            "ZRANGE edl:services 0 -1", "HGET edl:{s}:student:j/0 secret",
            "SET edl:{s}:teachers x",
        ):  # fmt: skip
            with pytest.raises(NoPermissionError):
                client.execute_command(*command.split())


@pytest.mark.parametrize("command", [("SET", "somebody-elses", "x"), ("FLUSHALL",)])
def test_a_manager_is_kept_to_the_keys_of_the_mesh(users: Users, command: tuple[str, ...]) -> None:
    with users.client("edl-manager") as client, pytest.raises(NoPermissionError):
        client.execute_command(*command)


def test_a_password_that_is_wrong_or_missing_or_was_rotated(users: Users, tmp_path: Path) -> None:
    for login in ("", "edl-reader:wrong@", "nobody:wrong@"):
        with closing(connect(f"redis://{login}127.0.0.1:{users.port}")) as registry:
            with pytest.raises(Unauthenticated, match="refuses the user or password") as error:
                registry.time_ms()
            assert "wrong@" not in str(error.value)
    file = write_secret(tmp_path / "rotated", PASSWORDS["edl-reader"])
    url = f"redis://edl-reader@127.0.0.1:{users.port}?password_file={file}"
    with closing(Registry(store_at(url))) as registry:
        assert registry.members("managers", "") == []
        file.write_text("an old one")
        registry.close()  # the next connection reads the file again
        with pytest.raises(Unauthenticated):
            registry.members("managers", "")
        file.unlink()
        with pytest.raises(RedisUnavailable, match=r"rotated cannot be read"):
            registry.members("managers", "")
        write_secret(file, PASSWORDS["edl-reader"])
        assert registry.members("managers", "") == []


def test_what_redis_denies_to_operators_with_the_users_of_readers(
    users: Users, stack: ExitStack
) -> None:
    client = stack.enter_context(users.client("admin"))
    client.acl_log_reset()
    process = serve("--redis", users.url("edl-manager"))
    stack.callback(process.stop)
    ready(process)
    assert client.acl_log() == []
    for command in ("status", "doctor"):
        code, lines = edl(command, url=users.url("edl-reader"))
        assert code == 0, lines
    denied = {(entry["username"], entry["object"]) for entry in client.acl_log()}
    what = "zrangebyscore", "info", MACHINES.deadlines, queue_key("main", "runner")
    assert denied == {("edl-reader", name) for name in what}


def test_a_stolen_teacher_may_name_a_service_and_it_is_forgotten(users: Users) -> None:
    with users.client("edl-teacher-s") as client, users.client("edl-manager") as manager:
        client.zadd(SERVICES, {"junk": 1})
        assert "junk" not in users.manager.services()
        assert manager.zscore(SERVICES, "junk") is None


def _set(client: Any, name: str, value: int) -> Iterator[None]:
    before = client.config_get(name)[name]
    client.config_set(name, value)
    yield
    client.config_set(name, before)


def _replica(client: Any) -> Iterator[None]:
    client.replicaof("127.0.0.1", 9)
    yield
    client.replicaof("no", "one")


def _full_disk(client: Any) -> Iterator[None]:
    client.config_set("save", "3600 1")
    client.set("unsaved", 1)
    client.bgsave()
    wait_until(lambda: client.info("persistence")["rdb_last_bgsave_status"] == "err")
    yield
    client.config_set("save", "")


def _endless_script(client: Any) -> Iterator[None]:
    client.config_set("busy-reply-threshold", 1)

    def run() -> None:
        port = client.get_connection_kwargs()["port"]
        with raw.Redis(port=port, protocol=2) as other, suppress(raw.ResponseError):
            other.eval("while true do end", 0)

    def takes_scripts_again() -> bool:
        """Until then a script of the manager may be too long, for a moment."""
        with suppress(raw.ResponseError):
            return bool(client.config_set("busy-reply-threshold", 5000))
        return False

    thread = threading.Thread(target=run, name="endless-script")
    thread.start()
    wait_until(lambda: _is_busy(client))
    yield
    client.script_kill()
    thread.join(DEADLINE_S)
    wait_until(takes_scripts_again)


def _is_busy(client: Any) -> bool:
    try:
        client.ping()
    except raw.ResponseError as error:
        return str(error).startswith("BUSY")
    return False


def test_a_replica_that_serves_no_stale_data_is_named_as_a_replica(stack: ExitStack) -> None:
    options = "--replicaof", "127.0.0.1 9", "--replica-serve-stale-data", "no"
    _, port = stack.enter_context(redis_server(*options))
    registry = stack.enter_context(closing(connect(f"redis://127.0.0.1:{port}")))
    with pytest.raises(RedisUnavailable, match=r"is a replica .* name its master") as error:
        registry.members("managers", "")
    assert error.value.refusal == "read_only"


def test_a_database_that_does_not_exist_is_named(stack: ExitStack) -> None:
    _, port = stack.enter_context(redis_server("--databases", "2"))
    registry = stack.enter_context(closing(connect(f"redis://127.0.0.1:{port}/2")))
    with pytest.raises(RedisUnavailable, match="names a database that it does not have"):
        registry.time_ms()


#: Why Redis refuses to work: how it is brought about, what every message says.
REFUSALS: dict[str, tuple[Callable[[Any], Iterator[None]], str]] = {
    "read_only": (_replica, "is a replica"),
    "out_of_memory": (partial(_set, name="maxmemory", value=1), "is out of memory"),
    "no_replicas": (partial(_set, name="min-replicas-to-write", value=1), "too few replicas"),
    "not_saving": (_full_disk, "cannot save to its disk"),
    "busy": (_endless_script, "is busy with a script"),
}


@pytest.mark.parametrize("reason", REFUSALS)
def test_every_command_names_why_redis_refuses_and_what_to_do(
    reason: str, stack: ExitStack
) -> None:
    bring_about, said = REFUSALS[reason]
    _, port = stack.enter_context(redis_server("--dir", "/proc"))
    url = f"redis://127.0.0.1:{port}"
    client: Any = stack.enter_context(raw.Redis(port=port, protocol=2, decode_responses=True))
    process = serve("--redis", url, "--metrics-listen", 0)
    stack.callback(process.stop)
    manager = process.expect(r"metrics at (http://[\d.:]+)/", DEADLINE_S)[1]
    ready(process)

    def refusals() -> list[str]:
        """The reasons in the manager's metrics, which say that Redis answers."""
        text = httpx.get(f"{manager}/metrics", timeout=DEADLINE_S).text
        found = re.findall(r'^edl_coordinator_registry_refusing\{reason="(\w+)"\} 1', text, re.M)
        assert not found or "\nedl_coordinator_registry_answering 1.0\n" in text
        return list(found)

    def health() -> int:
        return httpx.get(f"{manager}/health/ready", timeout=DEADLINE_S).status_code

    assert refusals() == []
    with contextmanager(bring_about)(client):
        process.expect(said, DEADLINE_S)  # the manager's log
        wait_until(lambda: refusals() == [reason])
        assert health() == 503
        if reason != "busy":
            wait_until(lambda: not live(client))
        for command, code in (("doctor", 1), ("status", 69)):
            exited, lines = edl(command, url=url)
            output = "\n".join(lines)
            assert exited == code
            assert said in output
            assert "start one" not in output
            assert "newer" not in output
    wait_until(lambda: live(client))
    wait_until(lambda: not refusals())
    wait_until(lambda: health() == 200)


def live(client: Any) -> bool:
    """Whether the lease of a manager stands."""
    return any(
        due > client.time()[0] * 1000
        for _, due in client.zrange("edl:managers", 0, -1, withscores=True)
    )


def test_every_user_may_find_out_whether_writes_are_refused(users: Users) -> None:
    for user in PASSWORDS:
        with closing(Registry(store_at(users.url(user)))) as registry:
            assert registry.check_writes()
    with users.client("edl-manager") as client:
        assert not client.exists(WRITE_CHECK)


def accepts_writes(registry: Registry) -> bool:
    with suppress(EdlError):
        return bool(registry.lead("s", "m#1", 30.0))
    return False


def test_sentinels_name_the_master_and_the_new_one_after_a_fail_over(
    tmp_path: Path, stack: ExitStack
) -> None:
    watched = stack.enter_context(watched_redis(tmp_path))
    port = watched.sentinel

    def connected(url: str) -> Registry:
        return stack.enter_context(closing(connect(url)))

    with pytest.raises(RedisUnavailable, match="No master found for 'other'"):
        connected(f"redis+sentinel://127.0.0.1:{port}/other").time_ms()
    replica = connected(f"redis://127.0.0.1:{watched.ports[1]}")
    with pytest.raises(RedisUnavailable, match="is a replica"):
        replica.register("teachers", "s", "t", {"incarnation": "1"}, 5.0)
    # The first sentinel is away.
    registry = connected(f"redis+sentinel://127.0.0.1:1,127.0.0.1:{port}/mesh")
    heart = Heartbeat(registry, "teachers", "s", "t", lambda: {"incarnation": "1"}, TTL_S)
    heart.start()
    stack.callback(heart.stop)
    before = registry.lead("s", "m#1", 30.0)
    assert registry.write("s", before.fence, (0, 0), (5, 1), {"j/0": Row(("t",))})
    wait_until(lambda: replica.table("s").version == (5, 1))

    watched.master.kill()
    wait_until(lambda: accepts_writes(registry))
    after = registry.lead("s", "m#1", 30.0)
    assert after.registry_id != before.registry_id
    assert after.table_version == (5, 1)
    assert registry.table("s").rows == {"j/0": Row(("t",))}
    wait_until(lambda: [m.member for m in registry.members("teachers", "s")] == ["t"])
    wait_until(lambda: heart.answering)


class Tls:
    """A server with a password, and proxies before it that end TLS."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.authority, self.ca, self._stack = trustme.CA(), folder / "ca.pem", stack
        self.authority.cert_pem.write_to_path(str(self.ca))
        _, self.port = stack.enter_context(redis_server("--requirepass", "p@ss/word"))

    def proxy(self, **options: Any) -> TlsProxy:
        return self._stack.enter_context(closing(TlsProxy(self.port, self.authority, **options)))

    def connect(self, proxy: TlsProxy, *parameters: str) -> Registry:
        query = "&".join([f"ssl_ca_certs={self.ca}", *parameters])
        url = f"rediss://:p%40ss%2Fword@127.0.0.1:{proxy.port}/1?{query}"
        return self._stack.enter_context(closing(connect(url)))


def refused(registry: Registry, words: str) -> str:
    with pytest.raises(RedisUnavailable, match=words) as error:
        registry.time_ms()
    return str(error.value)


def test_leases_over_tls_with_a_certificate_of_the_client(tmp_path: Path, stack: ExitStack) -> None:
    tls = Tls(tmp_path, stack)
    own = tls.authority.issue_cert("teacher")
    own.private_key_pem.write_to_path(str(tmp_path / "key.pem"))
    own.cert_chain_pems[0].write_to_path(str(tmp_path / "cert.pem"))
    files = [f"ssl_certfile={tmp_path / 'cert.pem'}", f"ssl_keyfile={tmp_path / 'key.pem'}"]
    proxy = tls.proxy(client_authority=tls.authority)
    registry = tls.connect(proxy, *files)
    assert registry.url.startswith("rediss://***@127.0.0.1:")
    heart = Heartbeat(registry, "teachers", "s", "t", lambda: {"incarnation": "1"}, TTL_S)
    heart.start()
    wait_until(lambda: [m.member for m in registry.members("teachers", "s")] == ["t"])
    heart.stop()
    assert registry.names("teachers", "s") == set()
    refused(tls.connect(proxy), "does not answer")


def test_a_server_that_is_not_trusted_is_refused(tmp_path: Path, stack: ExitStack) -> None:
    tls = Tls(tmp_path, stack)
    other_host = tls.proxy(name="redis.example")
    refused(tls.connect(other_host), "certificate verify failed")
    assert tls.connect(other_host, "ssl_check_hostname=false").time_ms() > 0
    ended = tls.proxy(ends=datetime.now(UTC) - timedelta(days=1))
    refused(tls.connect(ended), "the peer's certificate has expired")
    trustme.CA().cert_pem.write_to_path(str(tls.ca))  # another authority
    said = refused(tls.connect(tls.proxy()), "ssl_ca_certs=FILE")
    assert "certificate verify failed" in said
    assert "p%40ss" not in said
    with pytest.raises(UsageError, match="ssl_ca_certs of rediss://h:1 is not a file: /nowhere"):
        connect("rediss://h:1?ssl_ca_certs=/nowhere")
    with pytest.raises(UsageError, match="no ssl_certfile"):
        connect(f"rediss://h:1?ssl_keyfile={tls.ca}")
    # TLS to a server that speaks none, and the other way round.
    for url, words, timeout_s in (
        (f"rediss://127.0.0.1:{tls.port}?ssl_ca_certs={tls.ca}", "it does not use TLS", 0.5),
        (f"redis://127.0.0.1:{tls.proxy().port}", "if it uses TLS, write rediss://", DEADLINE_S),
    ):
        with closing(connect(url, timeout_s)) as registry:
            refused(registry, words)
