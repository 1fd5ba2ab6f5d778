"""The `edl` command, as `python -m edl`."""

from .cli import main

main()
