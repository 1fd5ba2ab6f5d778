"""Each example that is a job file: it loads, learns from data and teacher, and is measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edl
from edl.student import load_job
from edl.student.dry_run import rehearse
from edl.student.job.assembly import Assembly, assemble
from edl.student.job.batches import split_batch
from edl.teacher.backends.paddle import import_paddle
from edl.teacher.backends.selection import open_backend
from edl.tests.examples.data import write_imagenet, write_mnist, write_reviews

EXAMPLES = Path(edl.__file__).resolve().parent / "examples"


def assembled(name: str) -> Assembly:
    paddle = import_paddle()
    paddle.seed(1)
    return assemble(load_job(EXAMPLES / f"{name}.py"))


def learn(job: Assembly, soft: Callable[..., Any], steps: int) -> list[dict[str, float]]:
    """Train on the first batch, labelled by `soft`, again and again; the terms of each step."""
    batch = next(iter(job.spec.feed("train")))
    inputs = [np.asarray(field) for field in batch[:-1]]
    tensor = job.spec.framework.tensor
    parts = split_batch((*batch, soft(*inputs)), job.label_names, tensor=tensor)
    told = []
    from paddle.optimizer.lr import LRScheduler

    job.model.train()
    for step in range(steps):
        terms = job.loss(parts.forward(job.model), parts.labels, parts.soft, step)
        terms.total.backward()
        job.optimizer.step()
        job.optimizer.clear_grad()
        # Paddle has no public way to it.
        if isinstance(rate := job.optimizer._learning_rate, LRScheduler):  # noqa: SLF001
            rate.step()
        told.append({name: float(value) for name, value in terms.named.items()})
    return told


def check(job: Assembly, soft: Callable[..., Any], steps: int = 8) -> Mapping[str, float]:
    """Its losses fall; the metrics of the first batch that is held out."""
    told = learn(job, soft, steps)
    assert set(told[0]) == {"hard", "soft", "total"}
    assert told[-1]["total"] < told[0]["total"]
    figures = rehearse(job).metrics
    assert all(np.isfinite(value) for value in figures.values())
    return figures


def logits(classes: int, of: Callable[..., Any]) -> Callable[..., Any]:
    """A teacher that is sure of the class that `of` finds in the inputs."""
    return lambda *inputs: 5 * np.eye(classes, dtype=np.float32)[of(*inputs)]


def train_teacher(name: str, folder: Path) -> None:
    """What `python examples/NAME.py FOLDER` does; teachers can open what it leaves."""
    load_job(EXAMPLES / f"{name}.py").functions["model"].__globals__["main"](folder)
    assert open_backend(str(folder), threads=1).spec.inputs


def brightness(image: Any) -> Any:
    return image.reshape(len(image), -1).mean(axis=1).astype(int) % 10


def test_digits() -> None:
    assert set(check(assembled("digits"), logits(10, brightness))) == {"accuracy"}


def test_mnist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_mnist(tmp_path)
    monkeypatch.setenv("MNIST", str(tmp_path))
    check(assembled("mnist"), logits(10, brightness))
    train_teacher("mnist", tmp_path / "teacher")


def test_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_reviews(tmp_path)
    monkeypatch.setenv("REVIEWS", str(tmp_path))
    job = assembled("text")
    reviews = job.spec.feed("train").dataset
    assert (
        len({text for text, _ in reviews.texts}) == len(reviews) == 360
    )  # none in both sentiments
    train_teacher("text", tmp_path / "teacher")
    figures = check(job, logits(2, lambda text: 1 * (text[:, 0] == text[:, 0].max())), steps=40)
    assert figures["accuracy"] == 1.0


@pytest.mark.parametrize("flat", [True, False])
def test_imagenet(flat: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_imagenet(tmp_path, flat=flat)
    monkeypatch.setenv("IMAGENET", str(tmp_path))
    monkeypatch.setenv("IMAGENET_SIZE", "32")
    monkeypatch.setenv("IMAGENET_WORKERS", "0")
    if flat:
        held_out = load_job(EXAMPLES / "imagenet.py").feed("eval").dataset
        assert [number for _, number in held_out.samples] == [0, 0, 1, 1]
        assert held_out[0][0].shape == (3, 32, 32)
        return
    job = assembled("imagenet")
    told = learn(job, logits(1000, lambda image: brightness(image) % 2), steps=3)
    assert np.isfinite(told[2]["total"])
    assert told[0]["total"] == told[1]["total"] != told[2]["total"]  # it warms up from 0
    assert 0 <= rehearse(job).metrics["top-1"] <= 1


def test_a_log_of_clicks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLICKS", str(tmp_path))
    module = load_job(EXAMPLES / "ctr.py").functions["model"].__globals__
    module["generate"](tmp_path, 300)
    lines = (tmp_path / "train.txt").read_text().splitlines()
    assert len(lines) == 300
    assert all(line.count("\t") == 39 for line in lines)
    clicks = module["Clicks"]("train")
    counts, categories, clicked = clicks[7]
    fields = lines[7].split("\t")
    assert clicked == [float(fields[0])]
    assert np.allclose(np.expm1(counts), [float(one or 0) for one in fields[1:14]])
    assert len(set(categories.tolist())) == 26
    job = assembled("ctr")
    check(job, lambda counts, categories: counts[:, :1] - 1)
    assert not any(np.array_equal(clicks[at][1], categories) for at in (6, 8))
