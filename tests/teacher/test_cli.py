"""The command line: its help, what it turns into, and misuse."""

from __future__ import annotations

import math
import os
import re
import socket
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from edl.proto.dataclass_json import from_plain, to_plain
from edl.proto.datatypes import TensorSpec
from edl.proto.security.credentials import ServerSecurity, TlsFiles
from edl.runtime.errors import UsageError
from edl.runtime.lifecycle import Stop
from edl.scheduler.batching import BatchRule
from edl.teacher import cli, config, serving
from edl.teacher.cli import app, model_name
from edl.teacher.config import (
    Device,
    PredictorConfig,
    ServerConfig,
    TeacherConfig,
    check_cores,
    parse_devices,
)
from edl.teacher.identity import advertised
from edl.teacher.paddle_serving import engine

runner = CliRunner()
TLS = ("--tls", "cert=c,key=k")


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[TeacherConfig]:
    configs: list[TeacherConfig] = []

    def record(config: TeacherConfig, stop: Stop, **more: object) -> None:
        configs.append(config)

    for module in (serving, engine):
        monkeypatch.setattr(module, "serve", record)
    # Its handler would outlive the runner's stderr, which it writes to.
    monkeypatch.setattr(cli, "configure_logging", lambda *_: None)
    return configs


def run(*arguments: str, env: dict[str, str] | None = None) -> None:
    result = runner.invoke(app, ["serve", *arguments], env=env, catch_exceptions=False)
    assert result.exit_code == 0, result.output


SERVER = ServerConfig(slots=4, http="127.0.0.1:0")
DEFAULT = TeacherConfig("f", PredictorConfig("m:f", "cpu", 1, 8, ()), SERVER, ttl_s=6.0, grace_s=30)
DEVICES = (Device("cpu", (0, 1)), Device("cpu", (3, 5)), Device("gpu:0"))
PAIR = (Device("cpu", (0, 1)), Device("cpu", (2, 3)))
X, Y = TensorSpec("x", "FP32", (-1, 4)), TensorSpec("y", "FP32", (-1, 10))
COORDINATOR = "redis://head:6379"
PADDLE_SERVING = "--engine paddle-serving,python=python"


@pytest.mark.parametrize(
    ("words", "changed"),
    [
        ("", {}),
        ("EDL_PRECISION=bf16 --canary file", {"precision": "bf16", "canary": "file"}),
        ("EDL_NO_SELF_TEST=1", {"self_test": False}),
        (
            "--backend paced,rate=1600 --output y:FP32:-1,10 --preprocess nhwc --preprocess h:f",
            {"backend": "paced", "rate": 1600.0, "outputs": (Y,), "preprocess": ("nhwc", "h:f")},
        ),
        (
            "EDL_BATCH_DELAY=0.02 --batch max=32,preferred=8,16 --micro-batch auto",
            {"batching": BatchRule(32, 0.02, frozenset({8, 16})), "micro_batch": None},
        ),
        (
            "--devices cpu:0-1,cpu:3+5,gpu:0 --threads 7",
            {"devices": DEVICES, "threads": 7, "server": replace(SERVER, slots=12)},
        ),
        (
            f"EDL_COORDINATOR={COORDINATOR} EDL_SLOTS=7 --slots 9",
            {"coordinator": COORDINATOR, "server": replace(SERVER, slots=9)},
        ),
        (
            "EDL_MAX_CALLS=9 EDL_REQUEST_MEMORY_MIB=512 --limit calls=7,message-mib=2",
            {
                "server": replace(
                    SERVER, max_calls=7, max_message_bytes=2 << 20, request_bytes=512 << 20
                )
            },
        ),
        (
            "--output y:FP32:-1,10=logits --output z=other",
            {"outputs": (Y,), "output_kinds": (("y", "logits"), ("z", "other"))},
        ),
        ("EDL_BEAT_RELAY=/beats/1", {"beat_relay": Path("/beats/1")}),
        ("EDL_MICRO_BATCH=4 --input x:FP32:-1,4", {"micro_batch": 4, "inputs": (X,)}),
        ("--listen ::1", {"server": replace(SERVER, host="::1", http="[::1]:0")}),
        (
            "--http 8000 --listen 127.0.0.2",
            {"server": replace(SERVER, host="127.0.0.2", http="127.0.0.2:8000")},
        ),
        ("--http 127.0.0.1:8000", {"server": replace(SERVER, http="127.0.0.1:8000")}),
        ("--http off", {"server": replace(SERVER, http=None)}),
        (f"--http off {PADDLE_SERVING}", {"server": replace(SERVER, http=None)}),
        (PADDLE_SERVING, {"server": replace(SERVER, http=None)}),
        (
            "--deterministic --devices cpu:0-1,cpu:2-3",
            {"deterministic": True, "devices": PAIR, "server": replace(SERVER, slots=8)},
        ),
    ],
)
def test_options_of_flags_and_environment(
    served: list[TeacherConfig], words: str, changed: dict[str, Any]
) -> None:
    variables = [word for word in words.split() if word.startswith("EDL_")]
    flags = [word for word in words.split() if word not in variables]
    run("--model", "m:f", *flags, env=dict(word.split("=", 1) for word in variables))
    of_predictor = {name: changed[name] for name in changed if hasattr(DEFAULT.predictor, name)}
    others = {name: changed[name] for name in changed if name not in of_predictor}
    assert served == [
        replace(DEFAULT, predictor=replace(DEFAULT.predictor, **of_predictor), **others)
    ]
    for one in served[0].predictors:
        assert from_plain(PredictorConfig, to_plain(one)) == one
    if served[0].devices == DEVICES:
        assert [(p.device, p.cores, p.threads) for p in served[0].predictors] == [
            ("cpu", (0, 1), 2),
            ("cpu", (3, 5), 2),
            ("gpu:0", (), 7),
        ]


WRONG = {
    "--micro-batch": ("0", "many"),
    "--batch": ("preferred=8", "max=8,preferred=9", "max=8,preferred=4,x"),
    "--devices": ("cpu:0,cpu:0", "tpu"),
    "--deterministic": ("--micro-batch auto", "--batch max=8", "--devices cpu:0-1,cpu:2"),
    "--canary": ("good.canary --no-self-test",),
    "--tls": ("cert=c", "ca=ca"),
    "--engine": ("paddle-serving", "triton", "edl,python=env/bin/python"),
    "--output": ("y:FP32", "y=votes"),
    "--limit": ("message-mib=2048",),
    "--backend": ("paced",),
}


@pytest.mark.parametrize("words", [f"{name} {value}" for name in WRONG for value in WRONG[name]])
def test_wrong_options_are_refused(words: str, served: list[TeacherConfig]) -> None:
    with pytest.raises(UsageError):
        run("--model", "m:f", *words.split())
    assert not served


@pytest.mark.usefixtures("served")
def test_a_teacher_whose_parent_has_died_may_drain_for_its_grace_period(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    until_kill_s: list[float] = []
    monkeypatch.setattr("edl.runtime.supervise.end_with_parent", until_kill_s.append)
    run("--model", "m:f", "--grace", "60")
    assert until_kill_s == [65.0]


def test_http_is_off_without_its_packages(
    served: list[TeacherConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(config, "_HTTP_PACKAGES", ("starlette", "edl_no_such_package"))
    run("--model", "m")
    run("--model", "m", "--http", "0")  # asked for: the server says what is missing
    assert [config.server.http for config in served] == [None, "127.0.0.1:0"]


def test_beyond_loopback_needs_insecure_or_credentials(served: list[TeacherConfig]) -> None:
    everywhere = ("--model", "m", "--listen", "0.0.0.0")
    for encrypted in ((), TLS):  # open to everybody all the same
        with pytest.raises(UsageError, match="--insecure"):
            run(*everywhere, *encrypted)
    with pytest.raises(UsageError, match=r"the teacher's HTTP on 0\.0\.0\.0 can be reached"):
        run("--model", "m", "--http", "0.0.0.0:8000")
    assert not served
    for flags in (("--insecure",), ("--tokens", "t"), (*TLS, "--tls", "ca=ca")):
        run(*everywhere, *flags)
    run("--model", "m", env={"EDL_TOKENS": "t", "EDL_TLS_CERT": "c", "EDL_TLS_KEY": "k"})
    assert [config.server.host for config in served] == [*["0.0.0.0"] * 3, "127.0.0.1"]
    assert [config.insecure for config in served] == [True, False, False, False]
    assert [config.server.security for config in served] == [
        None,
        ServerSecurity(tokens_file=Path("t")),
        ServerSecurity(TlsFiles(Path("c"), Path("k"), Path("ca"))),
        ServerSecurity(TlsFiles(Path("c"), Path("k")), Path("t")),
    ]


@pytest.mark.usefixtures("served")
@pytest.mark.parametrize(
    ("flags", "open_hosts"),
    [
        ("", []),
        ("--listen 0.0.0.0", ["0.0.0.0"]),
        ("--listen 127.0.0.1:0 --http 0.0.0.0:8000", ["0.0.0.0"]),
        ("--listen 0.0.0.0 --http 127.0.0.1:8000", ["0.0.0.0"]),
        ("--listen 0.0.0.0 --http [::]:8000", ["0.0.0.0", "::"]),
        ("--listen 0.0.0.0 --tokens t", []),
    ],
)
def test_hosts_that_are_open_to_everybody_are_named_once(flags: str, open_hosts: list[str]) -> None:
    result = runner.invoke(app, ["serve", "--model", "m", "--insecure", *flags.split()])
    assert result.exit_code == 0, result.output
    warned = re.findall(r"warning: (\S+) accepts requests from every machine", result.stderr)
    assert warned == open_hosts


def test_the_default_name_of_a_model() -> None:
    models = ("resnet101/", "models/net.json", "models/net", "my.nets:resnet", "/")
    assert [model_name(model) for model in models] == ["resnet101", "net", "net", "resnet", "model"]


@pytest.mark.parametrize(
    "names", [{"service": "a b"}, {"service": ""}, {"teacher_id": "a b"}, {"advertise": "käse"}]
)
def test_wrong_names_are_refused_at_once(names: dict[str, str]) -> None:
    config = replace(DEFAULT, coordinator="redis://127.0.0.1:1", **names)  # type: ignore[arg-type]
    progress: list[str] = []
    with pytest.raises(UsageError):
        serving.serve(config, Stop(), on_ready=progress.append, on_progress=progress.append)
    assert progress == []


def test_wrong_configurations_are_refused() -> None:
    times = [(name, value) for name in ("ttl_s", "grace_s") for value in (-1.0, math.nan, math.inf)]
    wrong: list[Callable[[], object]] = [
        partial(replace, DEFAULT.predictor, precision="fp8"),
        partial(replace, SERVER, receive_s=0.0),
        *(partial(replace, DEFAULT, **{name: value}) for name, value in times),
    ]
    for make in wrong:
        with pytest.raises(UsageError):
            make()


def address(advertise: str | None = None, host: str = "127.0.0.1") -> str:
    config = TeacherConfig("s", PredictorConfig("m"), ServerConfig(host), advertise=advertise)
    return advertised(config.server.host, config.advertise, 7000)


@pytest.mark.parametrize(
    ("advertise", "expected"),
    [
        (None, "127.0.0.1:7000"),
        ("gpu7", "gpu7:7000"),
        ("proxy.example:443", "proxy.example:443"),
        ("[2001:db8::7]:443", "[2001:db8::7]:443"),
        ("2001:db8::7", "[2001:db8::7]:7000"),
        ("[2001:db8::7]", "[2001:db8::7]:7000"),
    ],
)
def test_the_advertised_address(advertise: str | None, expected: str) -> None:
    assert address(advertise) == expected
    own = f"{socket.gethostname()}:7000" if advertise is None else expected
    assert address(advertise, host="0.0.0.0") == own


@pytest.mark.parametrize(
    ("own", "pattern", "advertised"),
    [
        (["127.0.1.1", "10.1.2.3"], "*.edl.pod", "10-1-2-3.edl.pod:7000"),
        (["127.0.1.1", "fd00::1"], "*.edl.pod:443", "fd00--1.edl.pod:443"),
        (["127.0.1.1", "10.1.2.3"], "a*.edl.pod", "a*.edl.pod:7000"),
        (["fd00::1", "10.1.2.3"], "*.edl.pod", "10-1-2-3.edl.pod:7000"),
    ],
)
def test_a_star_becomes_the_name_of_the_pod(
    own: list[str], pattern: str, advertised: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = [(0, 0, 0, "", (one, 0)) for one in own]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: answer)
    assert address(pattern, host="0.0.0.0") == advertised


def test_a_wrong_address_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    urls = ("http://gpu7", "http://gpu7:443", "gpu7:443:443", "[:1]")
    for text in ("gpu7:", "gpu7:0", "gpu7:65536", "gpu7:http", ":443", *urls):
        with pytest.raises(UsageError, match="no address to advertise"):
            address(text)
    answer = [(0, 0, 0, "", (one, 0)) for one in ("127.0.1.1", "fe80::1%eth0")]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: answer)
    with pytest.raises(UsageError, match="has none that others can reach"):
        address("*.edl.pod")


@pytest.mark.parametrize(
    ("text", "device"),
    [
        ("cpu", Device("cpu")),
        ("cpu:3", Device("cpu", (3,))),
        ("cpu:0-2", Device("cpu", (0, 1, 2))),
        ("cpu:0-1+6+8-9", Device("cpu", (0, 1, 6, 8, 9))),
        ("gpu", Device("gpu:0")),
        ("gpu:2", Device("gpu:2")),
    ],
)
def test_devices_survive_their_text(text: str, device: Device) -> None:
    assert Device.parse(text) == device
    assert Device.parse(str(device)) == device


def test_wrong_devices_are_refused() -> None:
    for text in ("", "tpu", "cpu:", "cpu:x", "cpu:2-1", "cpu:-1", "cpu:1-", "gpu:", "gpu:-1",
                 "cpu:0-99999999"):  # fmt: skip
        with pytest.raises(UsageError, match="write cpu, cpu:FIRST-LAST"):
            Device.parse(text)
    assert len(parse_devices("cpu, cpu,gpu:0,gpu:0")) == 4
    with pytest.raises(UsageError, match="core 1 is named twice"):
        parse_devices("cpu:0-1,cpu:1-2")


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system pins no processes")
def test_an_unavailable_core_is_refused() -> None:
    check_cores([Device("cpu", (min(os.sched_getaffinity(0)),)), Device("gpu:0")])
    with pytest.raises(UsageError, match="core 60000 cannot be used"):
        check_cores([Device("cpu", (60000,))])
