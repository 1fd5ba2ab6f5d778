"""The page in a real browser, on scripted meshes: what it draws, and when it is cut off."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from selenium.webdriver.common.keys import Keys

from edl.coordinator.web.server import WebServer
from edl.proto import coordinator_pb2 as pb
from edl.proto.security.access_control import AccessControl

from ..conftest import held_port
from .browser import Browser, chromium
from .conftest import ADMIN, VIEWER
from .scripted_mesh import ScriptedMesh

Serve = Callable[..., str]
S = "resnet101"
pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def chrome() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture
def browser(chrome: Browser, serve: Serve) -> Iterator[Browser]:
    """It leaves the page before `serve` stops it."""
    yield chrome
    chrome.chrome.get("about:blank")
    assert chrome.errors() == []


def live(browser: Browser) -> bool:
    return browser.one("#link").get_attribute("data-state") == "live"


def click_drain(browser: Browser) -> None:
    """Once: news may draw the button anew between finding and clicking it."""

    def clicked() -> bool:
        browser.one("#drain").click()
        return True

    browser.until(clicked)


def test_names_of_services_mean_nothing_to_the_browser(
    browser: Browser, serve: Serve, script: ScriptedMesh
) -> None:
    names = ["__proto__", "constructor"]
    browser.open(serve())
    browser.until(lambda: live(browser))
    for name in names:  # changes of an open page
        script.subscribe(name, "j/0")
    browser.until(lambda: {one.text for one in browser.all("#services .name")} == {S, *names})
    assert browser.chrome.execute_script("return ({}).leader === undefined && !Object.leader")


def test_a_small_mesh_with_links_and_its_log(
    browser: Browser, serve: Serve, script: ScriptedMesh
) -> None:
    browser.open(serve())
    browser.until(lambda: len(browser.all("#hosts .tile")) == 6)
    browser.until(lambda: len(browser.all("#students .student")) == 2)
    browser.until(lambda: len(browser.all("#links path")) == 6)
    assert [host.text for host in browser.all(".host h3")] == ["p4-01", "p4-02"]
    assert browser.one("#managers").text == "2 managers: 10.0.0.1:7500 (leads), 10.0.0.2:7500"
    assert "width" in (browser.one("#students .gauge i").get_attribute("style") or "")
    script.kill(S, "p4-01-2")
    browser.until(lambda: browser.state_of(f"{S} p4-01-2") == "lost")
    browser.until(lambda: browser.all("#events li[data-kind=lost]"))
    browser.one("#filter").send_keys("P4-01-2")
    browser.until(lambda: len(browser.all("#events li")) == 3)
    assert all("p4-01-2" in row.text for row in browser.all("#events li"))
    browser.one("#filter").send_keys("nobody")
    browser.until(lambda: browser.one("#events").text == "Nothing matches.")
    script.teachers[S]["p4-01-3"].admission = "it does not answer at p4-01:1 (UNAVAILABLE)"
    browser.until(lambda: browser.state_of(f"{S} p4-01-3") == "refused")
    script.students[S]["imagenet-r50/0"].report.state = "starved"
    browser.until(lambda: browser.state_of(f"{S} imagenet-r50/0") == "starved")


def test_details_of_a_node_by_mouse_and_keyboard(
    browser: Browser, serve: Serve, script: ScriptedMesh
) -> None:
    student = "imagenet-r50/1"
    told = pb.StudentReport(stragglers=["p4-01-1"], ejected=["p4-01-2"], ejected_for=["silent"])
    script.students[S][student].report.MergeFrom(told)
    browser.open(serve())
    browser.click(f"{S} {student}")
    browser.until(lambda: student in browser.one("#details h2").text)
    details = browser.one("#details").text
    for word in ("buffer", "lt", "starved", "wants 3", "the first assignment of a new term"):
        assert word in details
    browser.until(lambda: "p4-01-2 (silent)" in browser.one("#details dl").text)
    assert "stragglers\np4-01-1" in browser.one("#details dl").text
    browser.until(lambda: len(browser.all("#links path.lit")) == 3)
    assert len(browser.all("#hosts .near")) == 3
    browser.all("#details .peers button")[0].click()
    browser.until(lambda: "teacher of resnet101" in browser.one("#details").text)
    assert "0 s left" not in browser.one("#details").text
    browser.one("body").send_keys(Keys.ESCAPE)
    browser.until(lambda: browser.one("#details h2").text == "Legend")
    assert len(browser.all("#stage button[tabindex='0']")) == 2  # one stop on each side
    browser.run("document.querySelector('#hosts .tile').focus()")
    browser.chrome.switch_to.active_element.send_keys(Keys.ARROW_DOWN)
    assert browser.chrome.switch_to.active_element.get_attribute("data-key") == f"{S} p4-01-2"
    browser.chrome.switch_to.active_element.send_keys(Keys.ENTER)
    browser.until(lambda: "p4-01-2" in browser.one("#details h2").text)


def test_a_teacher_is_drained_with_an_administrators_token(
    browser: Browser, serve: Serve, script: ScriptedMesh, gate: AccessControl
) -> None:
    browser.open(serve(gate=gate))
    browser.click(f"{S} p4-02-0")
    click_drain(browser)
    browser.until(lambda: browser.one("#token").is_displayed())
    browser.one("#token").send_keys("wrong", Keys.ENTER)
    browser.until(lambda: "not known" in browser.one("#keyerror").text)
    browser.one("#token").clear()
    browser.one("#token").send_keys(ADMIN, Keys.ENTER)
    browser.until(lambda: browser.one("#key").text == "Administrator")
    click_drain(browser)
    assert script.drained == []  # the first click only asks
    browser.until(lambda: browser.one("#drain").text == "Drain it now")
    click_drain(browser)
    browser.until(lambda: script.drained == [(S, "p4-02-0")])
    browser.until(lambda: browser.state_of(f"{S} p4-02-0") == "draining")
    kept = browser.run("return JSON.stringify([localStorage, sessionStorage, document.cookie])")
    assert ADMIN not in kept + browser.chrome.current_url


def test_beyond_loopback_it_asks_for_a_token(
    browser: Browser, serve: Serve, gate: AccessControl
) -> None:
    browser.chrome.get(serve("0.0.0.0:0", gate=gate))
    browser.until(lambda: browser.one("#token").is_displayed())
    assert "viewer's token" in browser.one("#keytext").text
    assert browser.all("#hosts .tile") == []
    browser.one("#token").send_keys(VIEWER, Keys.ENTER)
    browser.until(lambda: browser.all("#hosts .tile"))
    assert browser.one("#key").text == "Viewer"
    refused = [line for line in browser.errors() if "401" not in line]
    assert refused == []


def test_cut_off_it_says_so_and_comes_back(browser: Browser, script: ScriptedMesh) -> None:
    with held_port() as port:
        server = WebServer(script, str(port))
        browser.open(server.start())
        server.stop()
        browser.until(lambda: "disconnected, retrying" in browser.one("#link").text)
        assert len(browser.all("#hosts .tile")) == 6  # what was known stays
        again = WebServer(script, str(port))
        again.start()
        try:
            browser.until(lambda: live(browser))
        finally:
            again.stop()
    lost = ("ERR_CONNECTION_REFUSED", "ERR_INCOMPLETE_CHUNKED_ENCODING")
    assert [line for line in browser.errors() if not any(word in line for word in lost)] == []


def test_markup_in_names_is_text(browser: Browser, serve: Serve, script: ScriptedMesh) -> None:
    name = "<img src=x onerror=alert(1)>"
    script.teachers[S][name] = pb.Teacher(teacher_id=name, host="<b>h</b>", state="serving")
    browser.open(serve())
    browser.until(lambda: browser.state_of(f"{S} {name}") == "waiting")
    assert browser.all("#stage img") == []
    assert name in browser.one("#hosts").text


@pytest.mark.parametrize("script", [ScriptedMesh(500, 36, services=2)], ids=["large"])
def test_500_teachers_are_drawn(browser: Browser, serve: Serve, script: ScriptedMesh) -> None:
    browser.open(serve())
    browser.until(lambda: len(browser.all("#hosts .tile")) == 500)
    victim = list(script.teachers[S])[-1]
    script.kill(S, victim)
    browser.until(lambda: browser.state_of(f"{S} {victim}") == "lost")
    browser.click(f"{S} {next(iter(script.students[S]))}")
    browser.until(lambda: len(browser.all("#links path.lit")) > 10)
