"""Which answers are compared with another teacher's, and who lies when they differ.

No answer is trusted blindly, and shapes and finite numbers prove little. So a teacher that joins a
pool in which another is trusted begins *on trial*: it gets copies of requests that the trusted ones
label, its answers count for nothing, and once one agrees it is admitted. From then on a sampled
share of all requests is labelled by two.

Answers of one request are judged together: the largest group that agrees is believed, and who does
not agree with it is a liar. Where no group is the largest, as with two that differ, a third
decides: if another teacher is trusted, all of them go on trial, and get a copy of its next request.
If there is none, one of them is believed for now, as a stream must not stand still: one that is not
on trial before one that is, one that has agreed with others before one that never has, the elder
before the younger. The other stays on trial until a third comes; it is not called a liar. Such a
dispute is told, and one more teacher is wanted for each that it keeps on trial (`ComparisonPanel.judges`).

The first teacher of a pool has nobody to be compared with and is trusted; it is compared with each
that comes after it. So is, at the first occasion, whoever was admitted without having agreed with
anyone: as the last one that was left, or as those who are trusted did not answer any more. Its own
requests are copied to one that has agreed, as nobody else may get any. If newcomers agree with each
other alone, they are compared again when an elder answers. What cannot be found out is a largest
group of liars that agree.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from .backoff import RandomLike

#: How far labels of two teachers may lie apart, as a part of the greatest absolute value of the
#: two arrays. Of one numerics_id the bits agree unless servers join requests otherwise: then, in
#: half precision, the third digit may differ. Of several: other kernels, other precision, int8.
SAME_NUMERICS, OTHER_NUMERICS = 1e-2, 5e-2
#: So long may nobody who is trusted answer while somebody on trial does.
ALONE_S = 1.0


@dataclass(frozen=True, slots=True)
class CanaryConfig:
    """How much is compared.

    Attributes:
        share: part of the requests that two label, besides those of trials; 0: trials alone.
        same: tolerance for teachers of one numerics_id, as a part of the greatest label.
        other: the same for teachers of different ones, or where they are not known.

    Raises:
        ValueError: a number that makes no sense.
    """

    share: float = 0.002
    same: float = SAME_NUMERICS
    other: float = OTHER_NUMERICS

    def __post_init__(self) -> None:
        if not (0 <= self.share <= 1 and 0 <= self.same <= self.other):
            raise ValueError(f"needs 0 <= share <= 1 and 0 <= same <= other: {self}")

    def tolerance(self, numerics_id: str, another: str) -> float:
        """How far the labels of two teachers of these numerics may lie apart."""
        return self.same if numerics_id and numerics_id == another else self.other


@dataclass(slots=True)
class PanelMember:
    """What is known of a teacher that may be asked.

    Attributes:
        order: of joining; the less, the elder.
        trial: whether it is on trial.
        agreed: whether it has ever agreed with another one; with an elder, if there was one.
        vouched: whether it has agreed with newcomers, while no elder answered.
        copying: has a copy in flight that it is judged by.
    """

    order: int
    trial: bool
    agreed: bool = False
    vouched: bool = False
    copying: bool = False


@dataclass(frozen=True, slots=True)
class ComparisonVerdict:
    """What follows from a comparison.

    Attributes:
        liars: to be disbelieved, ejected and reported.
        trial: to be put on trial.
        readmit: whose trial is over.
        disputed: who contradict each other, while there is nobody to tell who is wrong; told once.
    """

    liars: tuple[str, ...] = ()
    trial: tuple[str, ...] = ()
    readmit: tuple[str, ...] = ()
    disputed: tuple[str, ...] = ()


class ComparisonPanel:
    """The teachers of a pool that can be asked.

    Attributes:
        members: by name.
        disputed: who contradict each other, and nobody can tell who is wrong.
    """

    def __init__(self) -> None:
        self.members: dict[str, PanelMember] = {}
        self.disputed: tuple[str, ...] = ()
        self._joined = 0
        self._alone_since: float | None = None  # since when only those on trial answer

    @property
    def trusted(self) -> list[str]:
        """Those not on trial."""
        return [name for name, member in self.members.items() if not member.trial]

    @property
    def judges(self) -> int:
        """Teachers that are wanted besides, until those who contradict each other are judged."""
        return max(len(self.disputed) - 1, 0)

    def join(self, teacher: str) -> bool:
        """A teacher can be asked from now on; whether it begins on trial."""
        trial = bool(set(self.trusted) - {teacher})
        self._joined += 1
        self.members[teacher] = PanelMember(self._joined, trial)
        return trial

    def leave(self, teacher: str) -> ComparisonVerdict:
        """A teacher cannot be asked any more: lost, revoked, ejected.

        If it was the last trusted one, the best of those on trial is admitted as it is: that nobody
        can vouch for it is no proof against it.
        """
        self.members.pop(teacher, None)
        self._settle()
        return (
            self._admit_one(self.members)
            if self.members and not self.trusted
            else ComparisonVerdict()
        )

    def copies(self, teacher: str, rng: RandomLike, config: CanaryConfig) -> tuple[str, ...]:
        """Who is to label a request as well that is just sent to `teacher`.

        Not to be asked of requests that are copies themselves, or that are sent again.

        Args:
            teacher: who has the request.
            rng: draws the sample, so that no liar can know when it is looked at.
            config: the settings, the same at each call.
        """
        asked = self.members.get(teacher)
        if asked is None or asked.trial or len(self.members) < 2:
            return ()
        # One that newcomers alone have vouched for is compared with nobody but an elder.
        waiting = [
            name
            for name, member in self.members.items()
            if (member.trial or not (member.agreed or (member.vouched and not asked.agreed)))
            and not member.copying
            and name != teacher
        ]
        for name in waiting:
            self.members[name].copying = True
        if waiting:
            return tuple(waiting)
        is_compared = asked.agreed or asked.vouched
        if not is_compared and (proven := [n for n in self.trusted if self.members[n].agreed]):
            return (proven[0],)
        if rng.random() >= config.share:  # as nearly always
            return ()
        others = [name for name in self.trusted if name != teacher]
        return (others[int(rng.random() * len(others))],) if others else ()

    def ended(self, teacher: str) -> None:
        """A copy at `teacher` came to nothing, or could not be compared: it may have another."""
        if (member := self.members.get(teacher)) is not None:
            member.copying = False

    def look(self, answering: Collection[str], now: float) -> ComparisonVerdict:
        """Time goes by: where only those on trial answer, one is admitted as it is.

        Args:
            answering: those who would answer now, as far as is known.
            now: seconds of a clock that does not go back.
        """
        able = [name for name, member in self.members.items() if member.trial and name in answering]
        if not able or any(name in answering for name in self.trusted):
            self._alone_since = None
        elif self._alone_since is None:
            self._alone_since = now
        elif now - self._alone_since >= ALONE_S:
            self._alone_since = None
            return self._admit_one(able)
        return ComparisonVerdict()

    def refused(self, teacher: str) -> ComparisonVerdict:
        """A teacher has refused a request: where nobody else is trusted, one on trial is admitted.

        Whether the request or the teacher is to blame takes another one to say, and it may be the
        last thing that is asked: a batch that all refuse ends the training.
        """
        if self.trusted != [teacher] or len(self.members) < 2:
            return ComparisonVerdict()
        return self._admit_one(set(self.members) - {teacher})

    def judge(self, answers: Sequence[str], agree: Collection[frozenset[str]]) -> ComparisonVerdict:
        """All answers of one request that were to be compared are there.

        Args:
            answers: who has answered; answers of others than members say nothing.
            agree: the pairs of them whose labels lie within their tolerance.
        """
        for name in answers:
            self.ended(name)
        names = [name for name in answers if name in self.members]
        if len(names) < 2:
            return ComparisonVerdict()
        believed = _largest_group(names, agree)
        if not believed:
            return self._undecided(names)
        is_proven = self._is_proven(names, believed)
        readmit = tuple(name for name in names if name in believed and self.members[name].trial)
        for name in believed:
            member = self.members[name]
            member.trial = False
            if is_proven:
                member.agreed = True
            else:
                member.vouched = True
        liars = tuple(name for name in names if name not in believed)
        for name in liars:
            del self.members[name]
        self._settle(believed)
        return ComparisonVerdict(liars, (), readmit)

    def _is_proven(self, names: Sequence[str], believed: Collection[str]) -> bool:
        """Whether an agreement is proof: one in it has agreed before, or no such one is absent.

        Otherwise newcomers that agree while the elder is silent would never be compared with it.
        """
        has_agreed = {name for name, member in self.members.items() if member.agreed}
        absent = has_agreed.intersection(self.trusted).difference(names)
        return bool(has_agreed.intersection(believed)) or not absent

    def _undecided(self, names: Sequence[str]) -> ComparisonVerdict:
        """A third decides if there is one, else the most credible goes on."""
        believed, disputed, members = "", tuple[str, ...](), self.members
        if not set(self.trusted) - set(names):
            believed, disputed = self._most_credible(names), tuple(sorted(names))
        new = tuple(name for name in names if name != believed and not members[name].trial)
        readmit = tuple(name for name in names if name == believed and members[name].trial)
        for name in names:
            members[name].trial = name != believed
        told = disputed if disputed != self.disputed else ()
        self.disputed = disputed
        return ComparisonVerdict((), new, readmit, told)

    def _settle(self, believed: Collection[str] = ()) -> None:
        """These are believed: a dispute takes two who are there, and are not.

        Nor is there one where two are trusted, who can tell who is wrong.
        """
        left = tuple(n for n in self.disputed if n in self.members and n not in believed)
        self.disputed = left if len(left) > 1 and len(self.trusted) < 2 else ()

    def _admit_one(self, names: Collection[str]) -> ComparisonVerdict:
        """The most credible of these is admitted as it is."""
        best = self._most_credible(names)
        self.members[best].trial = False
        return ComparisonVerdict(readmit=(best,))

    def _most_credible(self, names: Collection[str]) -> str:
        """Whom to believe where nothing is proved."""

        def doubt(name: str) -> tuple[bool, bool, int]:
            member = self.members[name]
            return member.trial, not member.agreed, member.order

        return min(names, key=doubt)


def _largest_group(names: Sequence[str], agree: Collection[frozenset[str]]) -> set[str]:
    """Those who agree with whoever has most on his side; empty if that is nobody, or disputed."""
    sides = {
        name: {other for other in names if other == name or frozenset((name, other)) in agree}
        for name in names
    }
    most = max(len(side) for side in sides.values())
    leaders = [name for name in names if len(sides[name]) == most]
    if most < 2 or any(other not in sides[name] for name in leaders for other in leaders):
        return set()
    return set().union(*(sides[name] for name in leaders))
