"""`python -m edl.teacher` is the `edl-teacher` command."""

from ..runtime.interrupts import exit_on_interrupt

exit_on_interrupt("edl-teacher")

from .cli import main  # noqa: E402

main()
