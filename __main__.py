"""`python -m edl` is the `edl` command."""

from .cli import main

main()
