"""EDL-Dist: a knowledge-distillation service mesh. Import what you need from its folders.

This file stays empty of re-exports: `import edl.distill_reader` must not load the teacher's half.
"""

__version__ = "0.1.0"
