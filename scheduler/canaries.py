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
dispute is told, and one more teacher is wanted for each that it keeps on trial (`Panel.judges`).

The first teacher of a pool has nobody to be compared with and is trusted; it is compared with each
that comes after it. So is, at the first occasion, whoever was admitted without having agreed with
anyone: as the last one that was left, or as those who are trusted did not answer any more. Its own
requests are copied to one that has agreed, as nobody else may get any. If newcomers agree with each
other alone, they are compared again when an elder answers. What cannot be found out is a largest
group of liars that agree.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

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


@dataclass(frozen=True, slots=True)
class Member:
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
class Panel:
    """The teachers of a pool that can be asked, by name."""

    members: Mapping[str, Member] = field(default_factory=dict)
    joined: int = 0
    alone_since: float | None = None  # since when only those on trial answer
    disputed: tuple[str, ...] = ()  # who contradict each other, and nobody can tell who is wrong

    @property
    def trusted(self) -> list[str]:
        """Those not on trial."""
        return [name for name, member in self.members.items() if not member.trial]

    @property
    def judges(self) -> int:
        """Teachers that are wanted besides, until those who contradict each other are judged."""
        return max(len(self.disputed) - 1, 0)


@dataclass(frozen=True, slots=True)
class Verdict:
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


def join(panel: Panel, teacher: str) -> tuple[Panel, bool]:
    """A teacher can be asked from now on; whether it begins on trial."""
    trial = bool(set(panel.trusted) - {teacher})
    order = panel.joined + 1
    members = {**panel.members, teacher: Member(order, trial)}
    return replace(panel, members=members, joined=order), trial


def leave(panel: Panel, teacher: str) -> tuple[Panel, Verdict]:
    """A teacher cannot be asked any more: lost, revoked, ejected.

    If it was the last trusted one, the best of those on trial is admitted as it is: that nobody can
    vouch for it is no proof against it.
    """
    members = {name: member for name, member in panel.members.items() if name != teacher}
    panel = _settled(replace(panel, members=members))
    if not members or panel.trusted:
        return panel, Verdict()
    best = _most_credible(panel, members)
    return _with(panel, readmitted=(best,)), Verdict(readmit=(best,))


def copies(
    panel: Panel, teacher: str, rng: RandomLike, config: CanaryConfig
) -> tuple[Panel, tuple[str, ...]]:
    """Who is to label a request as well that is just sent to `teacher`.

    Not to be asked of requests that are copies themselves, or that are sent again.

    Args:
        panel: the teachers that can be asked.
        teacher: who has the request.
        rng: draws the sample, so that no liar can know when it is looked at.
        config: the settings, the same at each call.
    """
    asked = panel.members.get(teacher)
    if asked is None or asked.trial:
        return panel, ()
    waiting = [
        name
        for name, member in panel.members.items()
        if _waits(member, asked) and not member.copying and name != teacher
    ]
    if waiting:
        members = {
            name: replace(member, copying=member.copying or name in waiting)
            for name, member in panel.members.items()
        }
        return replace(panel, members=members), tuple(waiting)
    is_compared = asked.agreed or asked.vouched
    if not is_compared and (proven := [n for n in panel.trusted if panel.members[n].agreed]):
        return panel, (proven[0],)
    if rng.random() >= config.share:  # as nearly always
        return panel, ()
    others = [name for name in panel.trusted if name != teacher]
    if not others:
        return panel, ()
    return panel, (others[int(rng.random() * len(others))],)


def _waits(member: Member, asked: Member) -> bool:
    """Whether to compare `member` with `asked`: if it was vouched for, only with an elder."""
    return member.trial or (not member.agreed and (asked.agreed or not member.vouched))


def ended(panel: Panel, teacher: str) -> Panel:
    """A copy at `teacher` came to nothing, or could not be compared: it may have another."""
    member = panel.members.get(teacher)
    if member is None or not member.copying:
        return panel
    return replace(panel, members={**panel.members, teacher: replace(member, copying=False)})


def look(panel: Panel, answering: Collection[str], now: float) -> tuple[Panel, Verdict]:
    """Time goes by: where only those on trial answer, one is admitted as it is.

    Args:
        panel: the teachers that can be asked.
        answering: those who would answer now, as far as is known.
        now: seconds of a clock that does not go back.
    """
    able = [name for name, member in panel.members.items() if member.trial and name in answering]
    if not able or any(name in answering for name in panel.trusted):
        return panel if panel.alone_since is None else replace(panel, alone_since=None), Verdict()
    if panel.alone_since is None:
        return replace(panel, alone_since=now), Verdict()
    if now - panel.alone_since < ALONE_S:
        return panel, Verdict()
    best = _most_credible(panel, able)
    return _with(replace(panel, alone_since=None), readmitted=(best,)), Verdict(readmit=(best,))


def refused(panel: Panel, teacher: str) -> tuple[Panel, Verdict]:
    """A teacher has refused a request: where nobody else is trusted, one on trial is admitted.

    Whether the request or the teacher is to blame takes another one to say, and it may be the last
    thing that is asked: a batch that all refuse ends the training.
    """
    if panel.trusted != [teacher] or len(panel.members) < 2:
        return panel, Verdict()
    best = _most_credible(panel, set(panel.members) - {teacher})
    return _with(panel, readmitted=(best,)), Verdict(readmit=(best,))


def judge(
    panel: Panel, answers: Sequence[str], agree: Collection[frozenset[str]]
) -> tuple[Panel, Verdict]:
    """All answers of one request that were to be compared are there.

    Args:
        panel: the teachers that can be asked; answers of others say nothing.
        answers: who has answered.
        agree: the pairs of them whose labels lie within their tolerance.
    """
    for name in answers:
        panel = ended(panel, name)
    names = [name for name in answers if name in panel.members]
    if len(names) < 2:
        return panel, Verdict()
    believed = _largest_group(names, agree)
    if not believed:
        return _undecided(panel, names)
    liars = tuple(name for name in names if name not in believed)
    readmit = tuple(name for name in names if name in believed and panel.members[name].trial)
    if _is_proven(panel, names, believed):
        panel = _with(panel, readmitted=readmit, gone=liars, agreed=believed)
    else:
        panel = _with(panel, readmitted=readmit, gone=liars, vouched=believed)
    return _settled(panel, believed), Verdict(liars, (), readmit)


def _is_proven(panel: Panel, names: Sequence[str], believed: Collection[str]) -> bool:
    """Whether an agreement is proof: a teacher in it has agreed before, or no such one is absent.

    Otherwise newcomers that agree while the elder is silent would never be compared with it.
    """
    has_agreed = {name for name, member in panel.members.items() if member.agreed}
    absent = has_agreed.intersection(panel.trusted).difference(names)
    return bool(has_agreed.intersection(believed)) or not absent


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


def _undecided(panel: Panel, names: Sequence[str]) -> tuple[Panel, Verdict]:
    """A third decides if there is one, else the most credible goes on."""
    trial = list(names)
    disputed: tuple[str, ...] = ()
    if not set(panel.trusted) - set(names):
        trial.remove(_most_credible(panel, names))
        disputed = tuple(sorted(names))
    new = tuple(name for name in trial if not panel.members[name].trial)
    readmit = tuple(n for n in names if n not in trial and panel.members[n].trial)
    told = disputed if disputed != panel.disputed else ()
    panel = replace(_with(panel, readmitted=readmit, tried=new), disputed=disputed)
    return panel, Verdict((), new, readmit, told)


def _settled(panel: Panel, believed: Collection[str] = ()) -> Panel:
    """The panel when these are believed: a dispute takes two who are there, and are not.

    Nor is there one where two are trusted, who can tell who is wrong.
    """
    left = tuple(name for name in panel.disputed if name in panel.members and name not in believed)
    return replace(panel, disputed=left if len(left) > 1 and len(panel.trusted) < 2 else ())


def _most_credible(panel: Panel, names: Collection[str]) -> str:
    """Whom to believe where nothing is proved."""

    def doubt(name: str) -> tuple[bool, bool, int]:
        member = panel.members[name]
        return member.trial, not member.agreed, member.order

    return min(names, key=doubt)


def _with(
    panel: Panel,
    readmitted: Collection[str] = (),
    tried: Collection[str] = (),
    agreed: Collection[str] = (),
    vouched: Collection[str] = (),
    gone: Collection[str] = (),
) -> Panel:
    """The panel after a verdict."""
    return replace(
        panel,
        members={
            name: replace(
                member,
                trial=(member.trial or name in tried) and name not in readmitted,
                agreed=member.agreed or name in agreed,
                vouched=member.vouched or name in vouched,
            )
            for name, member in panel.members.items()
            if name not in gone
        },
    )
