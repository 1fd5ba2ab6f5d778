"""What `docs/kubernetes.md` says of the manifests is so."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from edl.tests.deploy.kubernetes import (
    COMPONENTS,
    KUBERNETES,
    OVERLAYS,
    ROOT,
    build,
    compose,
    named,
    of_kind,
    pods,
)

PAGE = (ROOT / "docs" / "kubernetes.md").read_text()


def section(title: str) -> str:
    found = re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert found, title
    return found[1]


def rows(text: str) -> list[list[str]]:
    """Cells of the tables in it, without heads and lines."""
    lines = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line] for line in lines if set("".join(line)) - {"-", " "}]


def test_each_component_and_overlay_has_its_row() -> None:
    named_ = {
        name
        for cells in rows(section("What there is"))
        for name in re.findall(r"`([a-z-]+)`", cells[0])
    }
    assert set(COMPONENTS) <= named_
    assert set(re.findall(r"`overlays/([a-z]+)`", PAGE)) == set(OVERLAYS)


def test_each_policy_has_its_row() -> None:
    told = {
        name
        for cells in rows(section("Who may talk to whom"))
        for name in re.findall(r"`(edl-[a-z-]+)`", cells[0])
    }
    made = {
        one["metadata"]["name"]
        for file in KUBERNETES.rglob("network.yaml")
        for one in yaml.safe_load_all(file.read_text())
    }
    assert told == made


def test_ports_in_the_table_are_those_of_the_pods() -> None:
    ports = {
        str(port["containerPort"])
        for pod in pods(build("whole"))
        for container in pod.containers
        for port in container.get("ports", ())
    }
    told = {
        number
        for cells in rows(section("Who may talk to whom"))[1:]
        for number in re.findall(r"\b\d{4,5}\b", cells[-1])
    } - {"1024", "65535", "6443"}
    assert told <= ports
    assert {"7010", "8500", "8501", "6379", "26379"} <= told


def test_each_certificate_has_its_row_with_its_name() -> None:
    told = {cells[0].strip("`"): cells[1].strip("`") for cells in rows(section("TLS"))[1:]}
    made = {
        one["metadata"]["name"]: one["spec"]["commonName"]
        for one in of_kind(build("whole"), "Certificate")
        if not one["spec"].get("isCA")
    }
    assert told == made


def test_the_overlay_of_a_user_names_folders_that_are_there_in_an_order_that_is_built() -> None:
    block = re.search(r"```yaml\n# kustomization.yaml\n(.*?)```", PAGE, re.DOTALL)
    assert block
    overlay = yaml.safe_load(block[1])
    prefix = "edl-dist/deploy/kubernetes/"
    for one in (*overlay["resources"], *overlay["components"]):
        assert (KUBERNETES / one.removeprefix(prefix) / "kustomization.yaml").is_file(), one
    made = compose(tuple(Path(one).name for one in overlay["components"]))
    secrets = [
        volume["secret"]["secretName"]
        for pod in pods(made)
        for volume in pod.spec["volumes"]
        if "secret" in volume
    ]
    assert "edl-operator-tls" in secrets, "cert-manager comes after all that have pods"
    assert "edl-student-ctr-tls" in secrets


def test_the_grace_that_it_tells_is_the_one_that_is_set() -> None:
    for name, told in (("base", r"`EDL_GRACE` \((\d+) s;"), ("spot", r"spot (\d+) s\)")):
        found = re.search(told, PAGE)
        assert found
        (container,) = named(build(name), "Deployment", "edl-teacher-ctr")["spec"]["template"][
            "spec"
        ]["containers"]
        grace = {one["name"]: one.get("value") for one in container["env"]}["EDL_GRACE"]
        assert grace == found[1]
