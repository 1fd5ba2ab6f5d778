"""Random choices of others made repeatable: everything drawn within `seeded` follows from a seed.

Samplers draw from the process's own generators: Paddle's from numpy's, PyTorch's from torch's or
one that the user gave. They are set for the moment of the drawing, and put back behind it.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np


@contextmanager
def seeded(seed: int, epoch: int, *owners: Any) -> Iterator[None]:
    """Within, the generators of Python, numpy and torch follow from `seed` and `epoch`.

    Args:
        seed: of the whole run, at least 0.
        epoch: number of the epoch, at least 0.
        owners: objects whose own `generator`, if it is one of torch, is set too.
    """
    drawn = int(np.random.SeedSequence([seed, epoch]).generate_state(1)[0])
    with ExitStack() as stack:
        stack.callback(random.setstate, random.getstate())
        stack.callback(np.random.set_state, np.random.get_state())
        random.seed(drawn)
        np.random.seed(drawn)
        for generator in _torch_generators(owners):
            stack.callback(generator.set_state, generator.get_state())
            generator.manual_seed(drawn)
        yield


def _torch_generators(owners: tuple[Any, ...]) -> list[Any]:
    torch = sys.modules.get("torch")  # who holds one of its samplers has imported it
    if torch is None:
        return []
    own = [getattr(owner, "generator", None) for owner in owners]
    unique = {id(g): g for g in (torch.default_generator, *own) if isinstance(g, torch.Generator)}
    return list(unique.values())


def with_inner(sampler: Any) -> tuple[Any, ...]:
    """A batch sampler and those that it draws from in turn."""
    chain: list[Any] = []
    while sampler is not None and not any(sampler is known for known in chain):
        chain.append(sampler)
        sampler = getattr(sampler, "sampler", None)
    return tuple(chain)
