"""`python -m edl.teacher` is the `edl-teacher` command."""

from ..runtime.interrupts import end_at_once

end_at_once("edl-teacher")

from .cli import main  # noqa: E402

main()
