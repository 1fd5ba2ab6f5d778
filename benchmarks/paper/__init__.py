"""The experiments of the source papers, run again: simulated with their devices, or measured here.

Each experiment is a module of this folder with

- `EXPERIMENT`, an `Experiment` (`claims.py`): what the paper prints or states, cell by cell, which
  cells calibrate and which are free, and where the paper contradicts itself;
- `simulate(quick: bool) -> Outcome` (`claims.py`): our figures for these cells, from a simulation;
- `measure(quick: bool) -> Report`, optional: the same on this machine;
- `draw(document, path)`, optional: its picture, where `picture.draw` is not the right one.

The first line of its docstring is what `edl bench` says of it. `edl bench paper.NAME --simulate`
prints the paper's figures beside ours (`tables.py`); `make tables` runs them all (`__main__.py`),
keeps them in `benchmarks/results` and writes `docs/benchmarks.md` from there (`page.py`).
"""
