"""Experiments of the source papers: simulated with the papers' devices, or measured here.

Each experiment is a module of this folder with

- `EXPERIMENT`, an `Experiment`: the published figures, which of them calibrate the model and which
  are free, and where the paper contradicts itself;
- `simulate(quick: bool) -> Outcome`: our figures for these cells, from a simulation;
- `measure(quick: bool) -> BenchmarkReport`, optional: the same on this machine;
- `draw(document, path)`, optional: its picture, if `picture.draw` does not fit;
- `files(document) -> dict[str, str]`, optional: more result files, name ending -> text.

The types are in `experiment.py`. The first line of the module's docstring is its text in
`edl bench`. `edl bench paper.NAME --simulate` prints the paper's figures beside ours (`tables.py`).
`make tables` runs all experiments (`__main__.py`), stores the results in `benchmarks/results`, and
writes the README.md there from them (`page.py`).
"""
