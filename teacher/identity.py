"""Who a teacher is, and how it proves that it is the one that registered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from ..errors import RequestRefused, WrongInstance
from ..proto.security.instance import new_key, prove

#: Metadata of `ServerMetadata`: what a service manager asks with, and what it is answered.
CHALLENGE: Final = "edl-challenge"
INSTANCE: Final = "edl-instance"
PROOF: Final = "edl-proof"
INCARNATION: Final = "edl-incarnation"


@dataclass(slots=True)
class Identity:
    """Who answers.

    Attributes:
        service: what students ask for; the model's name on the wire.
        teacher_id: unique within the service.
        incarnation: grows with each start.
        draining: about to leave; said in every answer.
        key: of this start only; stands in the registry, and in no message.
        vouched: address of the foreign server that it speaks for; empty: it is the teacher.
    """

    service: str
    teacher_id: str
    incarnation: int
    draining: bool = False
    key: str = field(default_factory=new_key, repr=False)
    vouched: str = ""

    def check(self, asked: Mapping[str, object]) -> None:
        """Hold the instance that a request names against this one; what it leaves open fits.

        Raises:
            WrongInstance: it was meant for another one.
        """
        ours = {"teacher_id": self.teacher_id, "incarnation": str(self.incarnation)}
        for name, value in ours.items():
            if (meant := str(asked.get(name, value))) != value:
                raise WrongInstance(f"{name} {meant!r} was asked for; this is {value!r}")

    def proof(self, metadata: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
        """What answers a challenge: metadata for the end of the call; none where none came.

        Raises:
            WrongInstance: the challenge was meant for another teacher.
            RequestRefused: it is too long to be one.
        """
        if CHALLENGE not in metadata:
            return ()
        self.check({"teacher_id": metadata.get(INSTANCE, self.teacher_id)})
        try:
            proof = prove(
                self.key, self.teacher_id, self.incarnation, metadata[CHALLENGE], self.vouched
            )
        except ValueError as error:
            raise RequestRefused(f"{CHALLENGE}: {error}") from None
        return (PROOF, proof), (INCARNATION, str(self.incarnation))
