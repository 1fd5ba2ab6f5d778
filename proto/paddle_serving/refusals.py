"""What the error numbers of Paddle Serving mean: it answers OK by gRPC whatever has happened."""

from __future__ import annotations

from ...errors import RequestRefused, RetryableError, TeacherError, TeacherLost

#: A server has no service of the name asked for.
NO_SERVICE = 3002
#: First number of each family and what it is read as; each ends where the next one begins.
_FAMILIES: tuple[tuple[int, type[TeacherError]], ...] = (
    (0, RetryableError),
    (50, RequestRefused),  # an operator's own: it says that this request is wrong
    (100, RetryableError),
    (3000, RequestRefused),  # not implemented
    (3001, TeacherLost),  # the pipeline has been closed
    (NO_SERVICE, RequestRefused),
    (3003, RetryableError),
    (5000, RequestRefused),  # inputs that the model does not take
    (6000, RetryableError),  # too late for the server's own limit
    (7000, RequestRefused),  # types that it does not take
    (8000, RetryableError),  # packing, which tells nothing of whose fault it is
    (9000, RequestRefused),  # a run that failed: of the values that were given, but for _MAY_PASS
)
#: What Paddle says of failures that other values would meet as well, and that may be over later.
_MAY_PASS = ("ResourceExhausted", "Unavailable", "ExecutionTimeout", "out of memory", "bad_alloc")


def check(number: int, message: str) -> None:
    """Do nothing for 0; raises what another number means: the server has no answer.

    Raises:
        RequestRefused: it will never have one to this request.
        TeacherLost: it has closed.
        RetryableError: anything else.
    """
    if number == 0:
        return
    kind = [family for first, family in _FAMILIES if first <= max(number, 0)][-1]
    if any(words in message for words in _MAY_PASS):
        kind = RetryableError
    said = " ".join(message.split())[:500] or "nothing else"
    raise kind(f"Paddle Serving answers err_no {number}: {said}")
