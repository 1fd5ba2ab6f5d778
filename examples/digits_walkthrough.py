# %% [markdown]
# # A mesh in one notebook
#
# A teacher learns digits and is exported to ONNX. Two processes on this machine serve it. A student
# with images but hardly any labels learns from the teacher; meanwhile one of the processes is
# killed. Open this file as a notebook (VS Code, Spyder, Jupyter with jupytext), or run it:
#
#     pip install '.[onnx,embedded,bench]' onnx    # in a clone of EDL-Dist
#     python examples/digits_walkthrough.py

# %%
"""A walk-through of distillation: a teacher in ONNX, a local mesh, a student in numpy."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from sklearn.datasets import load_digits
from sklearn.neural_network import MLPClassifier

from edl.distill_reader import DistilReader, TeacherPool
from edl.mesh.local import LocalMesh, TeacherSpec

Array = np.ndarray[Any, Any]

# %% [markdown]
# ## The data
#
# The teacher learns from 900 labelled images. The student has 600 others, 40 of them with labels.
# The rest is held out and measures the accuracy of both.

# %%
order = np.random.default_rng(0).permutation(1797)
digits = load_digits()
image: Array = digits.images[order].reshape(-1, 64).astype(np.uint8)
label: Array = digits.target[order]
for_teacher, own, held_out = slice(0, 900), slice(900, 1500), slice(1500, None)
LABELLED_DIGITS = 40

# %% [markdown]
# ## The teacher
#
# Any model that a teacher can open works (docs/how-to/models.md). This one takes images as bytes
# and converts them to floats itself: requests have a quarter of the size.

# %%
network = MLPClassifier((128,), learning_rate_init=0.01, tol=1e-3, random_state=0)
network.fit(image[for_teacher] / 16.0, label[for_teacher])
print(f"teacher: {network.score(image[held_out] / 16.0, label[held_out]):.3f} of held-out digits")


def to_onnx(network: MLPClassifier, path: Path) -> None:
    """Write the network as an ONNX graph: uint8 [N, 64] -> logits, float32 [N, 10]."""
    names = ["w1", "w2", "b1", "b2", "scale"]
    arrays = [*network.coefs_, *network.intercepts_, np.array(1 / 16)]
    nodes = [
        helper.make_node("Cast", ["image"], ["floats"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["floats", "scale"], ["scaled"]),
        helper.make_node("Gemm", ["scaled", "w1", "b1"], ["hidden"]),
        helper.make_node("Relu", ["hidden"], ["positive"]),
        helper.make_node("Gemm", ["positive", "w2", "b2"], ["logits"]),
    ]
    graph = helper.make_graph(
        nodes,
        "digits",
        [helper.make_tensor_value_info("image", TensorProto.UINT8, ["N", 64])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["N", 10])],
        [
            numpy_helper.from_array(np.asarray(array, np.float32), name)
            for name, array in zip(names, arrays, strict=True)
        ],
    )
    opset = helper.make_opsetid("", 17)
    onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=9), path)


folder = tempfile.TemporaryDirectory()
to_onnx(network, Path(folder.name) / "digits.onnx")

# %% [markdown]
# ## A mesh
#
# The mesh is a coordinator with its own Redis, and two teachers. They are children of this
# process, and end with it whatever happens. `edl status --redis URL` in a terminal shows them.

# %%
mesh = LocalMesh()
mesh.start()
spec = TeacherSpec("digits", f"{folder.name}/digits.onnx")
for name in ("t1", "t2"):
    mesh.start_teacher(name, spec)
for name in ("t1", "t2"):
    print(f"teacher {name} serves at {mesh.wait_ready(name)}")

# %% [markdown]
# ## Batches of a reader
#
# A reader yields the student's own batches, with a teacher's outputs as the last fields. Here a
# batch is `(image,)`, without labels. If batches had more fields, `feeds=[0]` would select the one
# that the teacher gets.

# %%
batches = [(image[own][at : at + 50],) for at in range(0, 600, 50)]
reader = DistilReader(batches, service="digits", coordinator=mesh.url)
batch, logits = next(iter(reader))
print(f"a batch {batch.dtype}{list(batch.shape)} with logits {logits.dtype}{list(logits.shape)}")
print(f"the teacher predicts {logits[:8].argmax(axis=1)}, the labels are {label[own][:8]}")

# %% [markdown]
# ## The student
#
# Softmax regression: 650 parameters; the teacher has 9,610. The loss is the cross entropy with the
# teacher's probabilities at a temperature of 2, which say not only that an image is a 7, but also
# how similar it is to a 1.


# %%
def softmax(logits: Array) -> Array:
    exp = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(exp / exp.sum(axis=1, keepdims=True))


class Student:
    """Softmax regression: images [N, 64] -> probabilities [N, 10]."""

    def __init__(self) -> None:
        self.weight = np.zeros((65, 10))

    def __call__(self, image: Array) -> Array:
        return softmax(self.inputs(image) @ self.weight)

    def step(self, image: Array, target: Array, rate: float = 0.5) -> None:
        gradient = self.inputs(image).T @ (self(image) - target) / len(image)
        self.weight -= rate * gradient

    def accuracy(self) -> float:
        return float((self(image[held_out]).argmax(axis=1) == label[held_out]).mean())

    @staticmethod
    def inputs(image: Array) -> Array:
        return np.hstack([image / 16.0, np.ones((len(image), 1))])


alone = Student()
for _ in range(600):
    alone.step(image[own][:LABELLED_DIGITS], np.eye(10)[label[own][:LABELLED_DIGITS]])
print(f"student with {LABELLED_DIGITS} labels: {alone.accuracy():.3f} of held-out digits")

# %% [markdown]
# ## Training while a teacher dies
#
# In the second epoch the first teacher is killed, as a spot machine may be. The reader sends its
# requests to the other teacher, and still yields each batch once, in order. `reader.stats` counts
# the resends.

# %%
student = Student()
for epoch in range(30):
    rows = 0
    for at, (batch, logits) in enumerate(reader):
        student.step(batch, softmax(logits / 2.0))
        rows += len(batch)
        if (epoch, at) == (1, 3):
            mesh.kill("t1")
    assert rows == 600, "no batch is lost, and none comes twice"
print(f"student with teachers: {student.accuracy():.3f} of held-out digits")
print(reader.stats.line())

# %% [markdown]
# ## Labels on demand
#
# A loop that generates its own inputs requests their labels. Here the inputs are blends of two
# images, and the student requests labels only for those that it is least sure of. The pool uses the
# reader's engine and teachers; `TeacherPool(service="digits", coordinator=mesh.url)` would have its
# own.

# %%
draw = np.random.default_rng(1)
with TeacherPool.of(reader) as pool:
    for _ in range(30):
        first, second = draw.integers(0, 600, (2, 500))
        blends = ((image[own][first] + image[own][second].astype(float)) / 2).astype(np.uint8)
        unsure = blends[student(blends).max(axis=1).argsort()[:100]]
        labels = pool.label((unsure,))
        student.step(unsure, softmax(labels["logits"] / 2.0))
print(f"student that also asked about {pool.stats.calls} batches: {student.accuracy():.3f}")

# %% [markdown]
# ## The end
#
# Without these lines, the processes end with the notebook's kernel.

# %%
reader.close()
mesh.stop()
folder.cleanup()
