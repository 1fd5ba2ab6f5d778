"""The page of a real mesh in a real browser: deaths and drains of real teachers are seen in it."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from edl.mesh.local import LocalMesh, TeacherSpec
from edl.tests.coordinator.web.browser import chromium

SERVICE = "digits"
#: Shortest lease of the test: within it a dead teacher cannot be told from a slow one.
TTL_S = 1.0
SPEC = TeacherSpec(SERVICE, "edl.tests.teacher.functions:steered", ttl_s=TTL_S)
TOKEN = "token-of-an-administrator-of-this-test"
SEEN_WITHIN_S = 2.0


@pytest.fixture
def page(tmp_path: Path) -> tuple[str, tuple[str, ...]]:
    """The address of the page, and the options that make a coordinator serve it there."""
    tokens = tmp_path / "tokens"
    tokens.write_text(f"admin:ann {TOKEN}\n")
    tokens.chmod(0o600)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    return f"http://127.0.0.1:{port}/", ("--http", str(port), "--tokens", str(tokens))


@pytest.fixture
def mesh(page: tuple[str, tuple[str, ...]]) -> Iterator[LocalMesh]:
    # The manager has to call its teachers, which ask for no token; it asks its own callers.
    with LocalMesh(coordinator_options=("--ttl", str(TTL_S), *page[1])) as running:
        for name in ("killed", "drained", "stays"):
            running.start_teacher(name, SPEC)
        for name in ("killed", "drained", "stays"):
            running.wait_ready(name)
        yield running


@pytest.mark.serial
def test_a_death_and_a_drain_are_seen(mesh: LocalMesh, page: tuple[str, tuple[str, ...]]) -> None:
    url = page[0]
    with chromium() as browser:
        browser.open(url)
        names = ("killed", "drained", "stays")
        browser.until(
            lambda: all(browser.state_of(f"{SERVICE} {name}") == "idle" for name in names), 20
        )

        killed_s = time.monotonic()
        mesh.kill("killed")
        browser.until(lambda: browser.state_of(f"{SERVICE} killed") == "lost")
        assert time.monotonic() - killed_s <= SEEN_WITHIN_S
        browser.until(lambda: browser.all("#events li[data-kind=lost]"))
        assert "killed" in browser.one("#events li[data-kind=lost]").text

        browser.click(f"{SERVICE} drained")
        browser.until(lambda: browser.all("#drain"))
        browser.one("#drain").click()
        browser.until(lambda: browser.one("#token").is_displayed())
        browser.one("#token").send_keys(TOKEN)
        browser.one("#use").click()
        browser.until(lambda: browser.one("#key").text == "Administrator")
        browser.one("#drain").click()
        browser.until(lambda: browser.one("#drain").text == "Drain it now")
        browser.one("#drain").click()
        gone = ("draining", "left")
        browser.until(lambda: browser.state_of(f"{SERVICE} drained") in gone)
        assert mesh.teachers["drained"].wait(20) == 0
        browser.until(lambda: browser.state_of(f"{SERVICE} drained") == "left")

        assert browser.state_of(f"{SERVICE} stays") == "idle"
        assert browser.errors() == []
    assert mesh.coordinator.alive


def test_the_page_of_a_manager_needs_no_token_to_look_and_one_to_drain(
    mesh: LocalMesh, page: tuple[str, tuple[str, ...]]
) -> None:
    url = page[0]
    assert re.search("<title>EDL mesh</title>", httpx.get(url).text)
    body = {"service": SERVICE, "teacher": "stays"}
    assert httpx.post(f"{url}api/drain", json=body).status_code == 401
    answer = httpx.post(
        f"{url}api/drain",
        json=body | {"teacher": "stay"},
        headers={"Authorization": f"Bearer {TOKEN}"},
    )
    assert answer.status_code == 400
    assert "stays" in answer.json()["error"]  # the near name
