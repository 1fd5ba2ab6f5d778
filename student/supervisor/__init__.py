"""One supervisor per node: starts the ranks, keeps their snapshots, forms worlds with others.

`node.py` is the loop; `crew.py` has the processes of one generation, `asking.py` answers them,
`keeping.py` has what they save, `judging.py` finds the checkpoint that is whole, `last.py` sees the
last one written; `term.py` is one generation on this node. `seat.py` is the node's
place at the job board, and `leading.py` what it does there when it leads, by the rules of
`scheduler/students/`. `launcher.py` reads what Kubernetes and others say of the node, `plan.py`
says what a training would do. Importing it is light.
"""
