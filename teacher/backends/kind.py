"""What a backend says of itself, so that one can be chosen before any framework is loaded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from ...errors import ModelError
from ...extras import EXTRA_BY_PACKAGE, install_command
from ..model import TensorSpec
from . import Backend
from .factory import Made


@dataclass(frozen=True, slots=True)
class Settings:
    """How a model is to be run, whatever runs it.

    Attributes:
        device: "cpu" or "gpu:N".
        threads: CPU threads of one run.
        precision: "fp32" or "bf16".
        inputs: as the user declares them, where the model says less.
        outputs: the same, where only a run would tell.
        behind: asked for the inputs where neither `inputs` nor the model says them: what the steps
            of preprocessing make of those that come over the wire. Raises ModelError.
    """

    device: str = "cpu"
    threads: int = 1
    precision: str = "fp32"
    inputs: tuple[TensorSpec, ...] = ()
    outputs: tuple[TensorSpec, ...] = ()
    behind: Callable[[], tuple[TensorSpec, ...]] = tuple


@dataclass(frozen=True, slots=True)
class Files:
    """Files that a backend opens.

    Attributes:
        words: what they are.
        suffixes: theirs; of several that a model has, the first counts.
        open: opens one; raises ModelError.
        beside: suffix of a second file without which the first is no model; "" for none.
        parts: the files that a model consists of, by the one that is opened, where these are not
            that and the one beside it; raises ModelError.
    """

    words: str
    suffixes: tuple[str, ...]
    open: Callable[[Path, Settings], Backend]
    beside: str = ""
    parts: Callable[[Path], list[Path]] | None = None


@dataclass(frozen=True, slots=True)
class Things:
    """Things of a factory that a backend runs.

    Attributes:
        words: what they are.
        recognises: whether a thing is one.
        open: opens one; raises ModelError.
    """

    words: str
    recognises: Callable[[object], bool]
    open: Callable[[Made, Settings], Backend]


@dataclass(frozen=True, slots=True)
class Kind:
    """One backend.

    Attributes:
        name: as `--backend` calls it.
        files: that it opens; None: it opens none.
        things: that it takes from a factory; None: it takes none.
        package: what Python imports it as; "" where nothing has to be installed.
        precisions: that it can run at.
    """

    name: str
    files: Files | None = None
    things: Things | None = None
    package: str = ""
    precisions: tuple[str, ...] = ("fp32",)

    def require_installed(self, model: str) -> None:
        """Raise ModelError, with what to install, where the framework is not there.

        It is looked for and not imported, which would take seconds.
        """
        if self.package and find_spec(self.package) is None:
            raise ModelError(
                f"{model} is for backend {self.name}, which needs {self.package}: "
                f"{install_command(EXTRA_BY_PACKAGE[self.package])}"
            )
