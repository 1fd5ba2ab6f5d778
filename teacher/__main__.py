"""`python -m edl.teacher` is the `edl-teacher` command."""

from ..cli import teacher

teacher()
