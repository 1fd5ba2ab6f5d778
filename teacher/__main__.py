"""`python -m edl.teacher` is the `edl-teacher` command."""

from .cli import main

main()
