"""The certificates of deploy/tls do what its page says, with real servers."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import grpc
import pytest

from edl.proto.security.credentials import ClientSecurity, ServerSecurity, TlsFiles

from .test_channels import ask, serving

pytestmark = pytest.mark.system

SCRIPT = Path(__file__).resolve().parents[3] / "deploy" / "tls" / "certificates.sh"


def run(*arguments: str) -> int:
    return subprocess.run([SCRIPT, *arguments], capture_output=True).returncode


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recipe") / "pki"
    for line in (
        "ca {}",
        "manager {} head localhost 127.0.0.1 ::1",
        "teacher {} gpu-1 127.0.0.1",
        "client {} resnet student:resnet",
    ):
        assert run(*line.format(folder).split()) == 0
    return folder


def files(folder: Path, name: str) -> TlsFiles:
    return TlsFiles(folder / f"{name}.pem", folder / f"{name}.key", folder / "ca.pem")


@pytest.mark.parametrize("server", ["head", "gpu-1"])
def test_recipe_certificates_name_their_roles(folder: Path, server: str) -> None:
    assert (folder / f"{server}.key").stat().st_mode & 0o077 == 0, "it is for its owner only"
    with serving(ServerSecurity(files(folder, server))) as address:
        assert ask(address, ClientSecurity(files(folder, "resnet"))) == b"student:resnet"
        assert ask(address, ClientSecurity(files(folder, "head"))) == b"viewer:head"
        stolen = ClientSecurity(files(folder, "gpu-1"))
        assert ask(address, stolen) is grpc.StatusCode.UNAVAILABLE


def test_an_authority_is_never_written_over(folder: Path) -> None:
    before = {file: file.read_bytes() for file in folder.glob("ca.*")}
    for code, words in ((1, "ca {}"), (2, "client {}"), (1, "client {}/nowhere x admin")):
        assert run(*words.format(folder).split()) == code
    (folder / "ca.key").rename(folder / "moved")
    assert run("ca", str(folder)) == 1, "its key may be kept elsewhere"
    (folder / "moved").rename(folder / "ca.key")
    assert {file: file.read_bytes() for file in folder.glob("ca.*")} == before


def test_a_failure_is_explained(folder: Path) -> None:
    command = [str(SCRIPT), "client", str(folder), "odd", "student:a/b"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1
    assert "Missing '='" in done.stderr
    assert not (folder / "odd.pem").exists()


def test_an_authority_whose_creation_broke_off_is_created_again(tmp_path: Path) -> None:
    broken = tmp_path / "openssl"
    broken.write_text('#!/bin/sh\nwhile [ "$1" != -keyout ]; do shift; done\necho >"$2"\nexit 1\n')
    broken.chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    command = [str(SCRIPT), "ca", str(tmp_path / "pki")]
    assert subprocess.run(command, capture_output=True, env={"PATH": path}).returncode == 1
    assert run("ca", str(tmp_path / "pki")) == 0
    assert run("client", str(tmp_path / "pki"), "ann", "admin:ann") == 0
