"""A mesh's file: what it makes, and what is said of one that describes none."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from edl.cli import command_line
from edl.mesh.up.plan import command_lines, plan_of
from edl.mesh.up.spec import read_mesh
from edl.runtime.errors import UsageError
from edl.tests.cli_output import run
from edl.tests.deploy.command_lines import check, is_ours

EXAMPLE = Path(__file__).parents[3] / "examples" / "mesh.yaml"


def written(folder: Path, text: str) -> Path:
    file = folder / "mesh.yaml"
    file.write_text(text)
    return file


def commands(folder: Path, text: str, url: str | None = None) -> dict[str, str]:
    """Name -> words of each process."""
    file = written(folder, text)
    plan = plan_of(read_mesh(file), file, folder / "own")
    found = {one.name: plan.argv(one, url) for one in plan.processes}
    for words in found.values():
        if is_ours(["edl", *words]) and words[0] in ("coordinator", "teacher", "agent", "student"):
            check(["edl", *words])
    return {name: " ".join(words) for name, words in found.items()}


def test_teachers_get_what_the_mesh_says(tmp_path: Path) -> None:
    (tmp_path / "big.onnx").touch()
    text = """
        coordinator: {options: --ttl 3}
        services:
          a: {model: big, teachers: 2, options: "--threads 2", grace_s: 1 min}
          b: {model: "net:make", teachers: auto, min_teachers: 1, max_teachers: 4, options: --ttl 3}
    """
    found = commands(tmp_path, text, "redis://127.0.0.1:77")
    common = "--model big --redis redis://127.0.0.1:77 --grace 60"
    assert found == {
        "coordinator": "coordinator serve --ttl 3 --redis-port 77",
        "a-1": f"teacher serve --service a {common} --teacher-id a-1 --threads 2",
        "a-2": f"teacher serve --service a {common} --teacher-id a-2 --threads 2",
        "b-fleet": "agent --local --service b --model net:make --redis redis://127.0.0.1:77"
        " --grace 10 --teachers min=1,max=4 --teacher-options --ttl 3",
    }
    assert commands(tmp_path, text)["coordinator"].endswith("--redis-port 0")


def test_a_name_of_a_model_is_no_pattern(tmp_path: Path) -> None:
    for name in ("net[1].onnx", "other.onnx"):
        (tmp_path / name).touch()
    assert "--model net[1] " in commands(tmp_path, "services: {a: {model: 'net[1]'}}")["a-1"]
    with pytest.raises(UsageError, match="there is no "):
        commands(tmp_path, "services: {a: {model: 'oth*'}}")


def test_a_redis_that_others_use_too(tmp_path: Path) -> None:
    text = "coordinator: {redis: redis://head:6379}\nservices: {a: {model: 'net:make'}}\n"
    found = commands(tmp_path, text, "redis://head:6379")
    assert found["coordinator"] == "coordinator serve --redis redis://head:6379"
    assert re.search(r"--teacher-id a-1\.[\w-]+-[0-9a-f]{6}$", found["a-1"])


def test_students_of_both_kinds(tmp_path: Path) -> None:
    (tmp_path / "job.py").touch()
    text = """
        students:
          one: {train: job.py --epochs 3}
          two: {train: "job.py --job j --checkpoint=here --nodes 3", nodes: 2}
          any: {command: "python my.py '{coordinator}' $HOME"}
    """
    found = commands(tmp_path, text, "redis://x:1")
    train = "student train job.py"
    own = tmp_path / "own" / "one"
    assert found["one"] == (f"{train} --epochs 3 --redis redis://x:1 --job one --checkpoint {own}")
    assert "--nodes 1:2" in commands(tmp_path, "students: {a: {train: job.py, nodes: 2}}")["a-1"]
    two = f"{train} --job j --checkpoint=here --nodes 3 --redis redis://x:1"
    assert found["two-1"] == found["two-2"] == two
    assert found["any"] == f"{Path(sys.executable).parent}/python my.py redis://x:1 $HOME"


AUTO = "services: {a: {model: 'm:n', teachers: auto, "


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{}", "mesh.yaml:1: expects `services:` or `students:`, or both"),
        ("services: {a: {model: 'm:n', teachers: 0}}", "services.a.teachers: expects a whole"),
        ("services: {a: {model: 'm:n', max_teachers: 2}}", "services.a: min_teachers, max_"),
        (AUTO + "min_teachers: 3, max_teachers: 2}}", "max_teachers: expects min_teachers (3)"),
        (AUTO + "options: --service b}}", "services.a: options: --service is set from "),
        (AUTO + "options: '--backup {coordinator}'}}", "options: {coordinator} is for `command`"),
        ("students: {a: {train: 'x.py --set {coordinator}'}}", "train: {coordinator} is for"),
        ("coordinator: {options: --redis-port 0}\nstudents: {}", "any free port: leave it out"),
        ("services: {a b: {model: 'm:n'}}", "services: a name is 1 to 64 letters"),
        ("services: {a: {model: gone}}", "services.a.model: there is no "),
        ("coordinator: {options: --redis x}\nstudents: {}", "--redis is set from "),
        ("coordinator: {redis: http://x}\nstudents: {a: {command: ls}}", "redis: not a"),
        ("students: {a: {}}", "1: students.a: expects one of `train: JOB.py --epochs 3`"),
        ("students: {a: {train: --epochs 3}}", "train: expects the job file first, got '--epochs'"),
        ("students: {a: {train: gone.py}}", "students.a.train: there is no file "),
        ("students: {a: {command: 'no-such-thing x'}}", "there is no program 'no-such-thing'"),
        ('students: {a: {command: "sh \'x"}}', "command: expects words in shell syntax"),
        ("students: {a: {command: ls, env: {A-B: x}}}", "env: expects names of variables, got"),
        (
            'students: {a: {command: "ls \\0"}}',
            "command: arguments of a program cannot contain a NUL",
        ),
        ('students: {a: {command: ls, env: {A: "\\0"}}}', "env: a variable cannot contain a NUL"),
        ("students: {a: {command: ls}}\nfolder: gone", "folder: there is no folder "),
        ("services: {a: {model: 'm:n'}}\nstudents: {a-1: {command: ls}}", "be called 'a-1'"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, text: str, said: str) -> None:
    file = written(tmp_path, text)
    with pytest.raises(UsageError) as caught:
        plan_of(read_mesh(file), file, tmp_path)
    assert said in str(caught.value)
    assert str(caught.value).startswith(str(file))
    assert "\n" not in str(caught.value)


def test_a_dry_run_shows_commands_in_order_and_starts_nothing() -> None:
    result = run(command_line("up"), "up", EXAMPLE, "--dry-run")
    assert result.exit_code == 0
    told = result.stdout.splitlines()
    roles = [line.split(" ")[1].rstrip("s:") for line in told if line.startswith("#")]
    assert roles == ["coordinator", "teacher", "student"]
    assert sum("edl teacher serve" in line for line in told) == 2


def test_a_password_is_on_no_command_line_of_ours(tmp_path: Path) -> None:
    url = "redis://:secret@h:1"
    (tmp_path / "job.py").touch()
    services = "a: {model: 'm:n'}, b: {model: 'm:n', teachers: auto}"
    text = f"services: {{{services}}}\nstudents: {{s: {{train: job.py}}}}\n"
    file = written(tmp_path, f"coordinator: {{redis: '{url}'}}\n{text}")
    plan = plan_of(read_mesh(file), file, tmp_path)
    (teacher,) = (
        plan.command(one, "redis://h:1", tmp_path) for one in plan.processes if one.name == "a-1"
    )
    assert url not in teacher.env.values()
    assert (teacher.env["PYTHONPATH"].split(":")[0], teacher.cwd) == (str(tmp_path), tmp_path)
    assert "secret" not in "\n".join(command_lines(plan))
    said = {}
    for member in plan.processes:
        command = plan.command(member, url, tmp_path)
        assert not {url, "--redis"} & set(command.argv), command.argv
        said[member.name] = [name for name, value in command.env.items() if value == url]
    assert said.pop("coordinator") == ["EDL_COORDINATOR", "EDL_REDIS"]
    assert set(map(tuple, said.values())) == {("EDL_COORDINATOR",)}
    text = f"coordinator: {{redis: '{url}'}}\nstudents: {{s: {{train: 'job.py --set x {url}'}}}}"
    file = written(tmp_path, text)
    plan = plan_of(read_mesh(file), file, tmp_path)
    command = plan.command(plan.processes[-1], url, tmp_path)
    assert " ".join(command.argv).count(f"job.py --set x {url}") == 1
    assert "--redis" not in command.argv
    assert command.env["EDL_COORDINATOR"] == url
