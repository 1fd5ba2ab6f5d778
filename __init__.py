"""EDL-Dist: a knowledge-distillation service mesh. Import what you need from its packages.

This file re-exports nothing, so that `import edl.distill_reader` does not import the teacher.
"""

__version__ = "0.1.0"
