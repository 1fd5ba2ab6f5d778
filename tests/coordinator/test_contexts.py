"""Contexts: which mesh a command asks, and with which credentials."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from edl.cli import command_line
from edl.coordinator.contexts import ContextFile, Contexts, MeshContext
from edl.coordinator.ops.cli import app
from edl.coordinator.ops.options import mesh_context
from edl.coordinator.store.redis_url import parse
from edl.runtime.errors import UsageError
from edl.tests.cli_output import json_of, output_of, refusal_of, run
from edl.tests.coordinator.scripted_manager import Served
from edl.tests.proto.security.authority import write_secret

URL = "redis://127.0.0.1:7777"


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for variable in os.environ:
        if variable.startswith("EDL_T") or variable in ("EDL_COORDINATOR", "EDL_CONTEXT"):
            monkeypatch.delenv(variable)
    path = tmp_path / "config" / "contexts.yaml"
    monkeypatch.setenv("EDL_CONFIG", str(path))
    return path


def test_the_first_context_is_current_until_another_is_used(file: Path, tmp_path: Path) -> None:
    assert "no context" in output_of(command_line("get"), "get", "contexts")
    token = write_secret(tmp_path / "token", "secret")
    output_of(app, "add", "prod", "--redis", URL, "--token-file", token)
    output_of(app, "add", "lab", "--jobs-on", "kubernetes:team,queue=night")
    assert mesh_context(None) == MeshContext(URL, token_file=token)
    assert mesh_context(["lab"]).jobs_on == "kubernetes:team"
    output_of(app, "use", "lab")
    assert mesh_context(None).queue == "night"
    output_of(command_line("delete"), "delete", "context", "lab")
    listed = json_of(command_line("get"), "get", "contexts")
    assert (listed["current"], list(listed["contexts"])) == ("", ["prod"])
    assert mesh_context(None) == MeshContext(), "none is current"
    gone = "no context 'lab' (known: prod)"
    assert gone in refusal_of(app, "use", "lab")
    for verb in ("delete", "get"):
        assert gone in refusal_of(command_line(verb), verb, "context", "lab")


def test_a_password_stays_in_the_file_which_others_cannot_read(file: Path) -> None:
    output_of(app, "add", "prod", "--redis", "redis://ann:s3cret@head:6379")
    for options in ((), ("--json",)):
        assert "s3cret" not in output_of(command_line("get"), "get", "contexts", *options)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert mesh_context(["prod"]).coordinator == "redis://ann:s3cret@head:6379"


def test_relative_paths_are_of_the_folder_in_which_they_were_named(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = write_secret(tmp_path / "token", "secret")
    monkeypatch.chdir(tmp_path)
    url = "rediss+sentinel://ann:a%2Fb@head,b/m?sentinel_password=p%26+q&ssl_ca_certs=./token"
    output_of(app, "add", "prod", "--redis", f"{url}&password_file=token", "--token-file", "token")
    monkeypatch.chdir("/")
    found = mesh_context(["prod"])
    assert found.token_file == token
    expected = f"{url.replace('./token', str(token))}&password_file={token}"
    assert parse(found.coordinator) == parse(expected)
    assert "there is no file nowhere" in refusal_of(app, "add", "prod", "--tls", "ca=nowhere")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[", "cannot read"),
        ("contexts: 5", "must map names to settings"),
        ("contexts: {a: {colour: red}}", "'colour': 'red'; expects text for redis, tls-ca"),
        ("contexts: {a: {redis: 5}}", "'redis': 5; expects text"),
        ("contexts: {a: 5}", "context 'a': expects settings"),
        ("current: b\ncontexts: {a: {}}", "'b' is not among"),
        ("users: {}", "and no others"),
    ],
)
def test_what_is_wrong_in_the_file_is_said(file: Path, text: str, says: str) -> None:
    file.parent.mkdir()
    file.write_text(text)
    with pytest.raises(UsageError, match=says) as refused:
        mesh_context(None)
    assert str(file) in str(refused.value)
    assert mesh_context([URL]).coordinator == URL, "a URL needs no file"


def test_a_link_to_the_file_stays_a_link(tmp_path: Path) -> None:
    link, target = tmp_path / "link.yaml", tmp_path / "kept" / "contexts.yaml"
    link.symlink_to(target)
    ContextFile(link).change(lambda contexts: contexts.add("prod", MeshContext()))
    assert link.is_symlink()
    assert ContextFile(target).read().current == "prod"


def test_changes_at_once_are_all_kept(file: Path) -> None:
    names = [f"c{number}" for number in range(16)]
    begin = threading.Barrier(len(names))

    def add(name: str) -> None:
        begin.wait()
        ContextFile(file).change(lambda contexts: contexts.add(name, MeshContext()))

    with ThreadPoolExecutor(len(names)) as pool:
        list(pool.map(add, names))
    assert sorted(ContextFile(file).read().named) == sorted(names)


def test_a_file_that_cannot_be_written_stays_as_it_is(file: Path) -> None:
    file.parent.write_text("a file where a folder should be")
    with pytest.raises(UsageError, match="cannot write"):
        ContextFile(file).change(lambda contexts: contexts.add("a", MeshContext()))
    for name in (" ", "redis://a"):
        with pytest.raises(UsageError, match="needs a name"):
            Contexts().add(name, MeshContext())


class TestWhichMesh:
    """Two meshes: one of the current context, with a token, and another one."""

    @pytest.fixture
    def prod(self, file: Path, tmp_path: Path) -> Path:
        token = write_secret(tmp_path / "token", "secret")
        here = MeshContext("memory://prod", token_file=token)
        contexts = Contexts().add("prod", here).add("lab", MeshContext("memory://lab"))
        ContextFile(file).change(lambda _: contexts)
        return token

    @pytest.mark.parametrize(
        ("flags", "variables", "asked"),
        [
            ((), {}, "prod"),
            (("--context", "lab"), {}, "lab"),
            ((), {"EDL_CONTEXT": "lab"}, "lab"),
            (("--redis", "lab"), {}, "lab"),
            (("--context", "memory://other"), {}, "other"),
            ((), {"EDL_COORDINATOR": "memory://other"}, "other"),
            ((), {"EDL_COORDINATOR": "memory://other", "EDL_CONTEXT": "lab"}, "other"),
            (("--context", "lab"), {"EDL_COORDINATOR": "memory://other"}, "lab"),
            (("--redis", "memory://other"), {"EDL_CONTEXT": "lab"}, "other"),
            (("--context", "prod"), {"EDL_CONTEXT": "lab"}, "prod"),
        ],
    )
    def test_a_flag_goes_before_a_variable_and_that_before_the_file(
        self,
        prod: Path,
        monkeypatch: pytest.MonkeyPatch,
        flags: tuple[str, ...],
        variables: dict[str, str],
        asked: str,
    ) -> None:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        asking: list[MeshContext] = []

        def record(named: Sequence[str] | None) -> MeshContext:
            asking.append(mesh_context(named))
            raise UsageError("enough")

        monkeypatch.setattr("edl.mesh.resources.resource_kind.mesh_context", record)
        refusal_of(command_line("drain"), "drain", "teacher", "t", *flags)
        (found,) = asking
        assert found.coordinator == f"memory://{asked}"
        assert (found.token_file == prod) is (asked == "prod"), "a token stays with its mesh"

    def test_variables_of_credentials_belong_to_a_url(
        self, prod: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        other = write_secret(tmp_path / "other", "secret")
        monkeypatch.setenv("EDL_TOKEN_FILE", str(other))
        monkeypatch.setenv("EDL_QUEUE", "night")
        assert mesh_context([URL]) == MeshContext(URL, token_file=other, queue="night")
        assert mesh_context(["prod"]).token_file == prod
        assert mesh_context(["lab"]).token_file is None

    def test_two_flags_are_one_too_many_and_an_empty_name_is_none(self, prod: Path) -> None:
        for flags in (("--context", "lab", "--redis", URL), ("--context", "lab") * 2):
            assert "not both" in refusal_of(command_line("status"), "status", *flags)
        with pytest.raises(UsageError, match="got nothing"):
            mesh_context([""])


def test_a_command_asks_the_mesh_of_the_context(file: Path, mesh: Served) -> None:
    ContextFile(file).change(lambda contexts: contexts.add("here", MeshContext(mesh.url)))
    assert run(command_line("events"), "events").exit_code == 0
    output_of(command_line("get"), "get", "services")
    assert mesh.manager.asked
