"""Comparisons of teachers' answers: which are compared, and which teacher lies if they differ.

No answer is trusted blindly, and correct shapes and finite numbers prove little. So a teacher that
joins a pool with a trusted teacher starts *on trial*: it gets copies of requests that trusted
teachers label, its answers do not count, and it is admitted once its labels agree with those of a
trusted teacher. After that, a sampled share of all requests is labelled by two teachers.

Answers to one request are judged together. The largest group of teachers that agree is believed,
and teachers that disagree with this group are liars. If no group is the largest (two teachers
differ), a third teacher decides. If there is a trusted teacher that has not answered this request,
all that answered go on trial and get a copy of its next request. Otherwise one of them is believed
for now, because a stream must not stop. It is preferably a teacher that is not on trial, then one
that has agreed with others before, then the one that joined first. The others stay on trial until a
further teacher comes; they do not count as liars. Such a dispute is reported, and for each teacher
that it keeps on trial the reader asks for one more teacher (`ComparisonPanel.judges`).

The first teacher of a pool is trusted without a comparison and compared with each later one. A
teacher can be admitted without an agreement, for example because it is the last one left or the
trusted ones stopped answering. It is compared as soon as possible: its requests are copied to a
teacher that has agreed with others (a *proven* teacher). Teachers that have agreed only with each
other while the proven teachers were silent are compared again when a proven one answers. Liars that
agree and are the largest group cannot be detected.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from .backoff import RandomLike

#: Tolerated difference of the labels of two teachers, relative to the greatest absolute value of
#: both arrays. With one numerics_id (backend, precision, and all else that affects bits) the bits
#: agree unless servers batch requests differently; then the third digit may differ in half
#: precision. With different numerics_ids, kernels or precisions (int8) differ.
SAME_NUMERICS, OTHER_NUMERICS = 1e-2, 5e-2
#: If for this many seconds no teacher can answer except those on trial, one of them is admitted.
ALONE_S = 1.0


@dataclass(frozen=True, slots=True)
class CanaryConfig:
    """Settings of comparisons.

    Attributes:
        share: share of the requests that two trusted teachers label; 0: compare only teachers that
            are on trial or not proven yet.
        same_numerics: tolerance for teachers of one numerics_id, relative to the greatest label.
        other_numerics: tolerance for teachers of different or unknown numerics_id.
    """

    share: float = 0.002
    same_numerics: float = SAME_NUMERICS
    other_numerics: float = OTHER_NUMERICS

    def tolerance(self, numerics_id: str, another: str) -> float:
        """Return the tolerated difference for teachers of these two numerics_ids."""
        is_same = numerics_id and numerics_id == another
        return self.same_numerics if is_same else self.other_numerics


@dataclass(slots=True)
class PanelMember:
    """A teacher of the panel.

    Attributes:
        order: order of joining; the lowest number joined first.
        trial: it is on trial.
        proven: it has agreed with a proven teacher, or with any teacher on a request that all
            proven, trusted teachers had answered.
        agreed_with_unproven: it has agreed with unproven teachers while a proven one did not
            answer.
    """

    order: int
    trial: bool
    proven: bool = False
    agreed_with_unproven: bool = False


@dataclass(frozen=True, slots=True)
class ComparisonVerdict:
    """What follows from a comparison.

    Attributes:
        liars: teachers to eject and report; their labels become invalid.
        trial: teachers to put on trial.
        readmit: teachers to admit from trial.
        disputed: teachers that contradict each other while no third one can decide; reported once.
    """

    liars: tuple[str, ...] = ()
    trial: tuple[str, ...] = ()
    readmit: tuple[str, ...] = ()
    disputed: tuple[str, ...] = ()


class ComparisonPanel:
    """The available teachers of a pool.

    Attributes:
        members: the teachers, by name.
        disputed: teachers that contradict each other while no third one can decide.
    """

    def __init__(self) -> None:
        self.members: dict[str, PanelMember] = {}
        self.disputed: tuple[str, ...] = ()
        self._joined = 0
        self._alone_since: float | None = None  # since when only teachers on trial can answer

    @property
    def trusted(self) -> list[str]:
        """Teachers that are not on trial."""
        return [name for name, member in self.members.items() if not member.trial]

    @property
    def judges(self) -> int:
        """Number of further teachers wanted to settle the dispute."""
        return max(len(self.disputed) - 1, 0)

    def join(self, teacher: str) -> bool:
        """Add a teacher; return whether it starts on trial."""
        trial = bool(set(self.trusted) - {teacher})
        self._joined += 1
        self.members[teacher] = PanelMember(self._joined, trial)
        return trial

    def leave(self, *teachers: str) -> ComparisonVerdict:
        """Remove teachers that were lost, revoked or ejected.

        If no trusted teacher is left, the most credible one on trial is admitted without a
        comparison.
        """
        for teacher in teachers:
            self.members.pop(teacher, None)
        self._settle()
        return (
            self._admit_one(self.members)
            if self.members and not self.trusted
            else ComparisonVerdict()
        )

    def copies(
        self, teacher: str, rng: RandomLike, config: CanaryConfig, copying: Collection[str]
    ) -> tuple[str, ...]:
        """Return the teachers that get a copy of a request just sent to `teacher`.

        Do not call it for copies and resends.

        Args:
            teacher: the teacher with the request.
            rng: draws the sample, so that liars cannot predict it.
            config: the settings, the same at each call.
            copying: teachers with a copy that is not judged yet; unproven ones get no second one.
        """
        holder = self.members.get(teacher)
        if holder is None or holder.trial or len(self.members) < 2:
            return ()
        # A teacher that has agreed with unproven teachers only is compared with proven ones only.
        unproven = [
            name
            for name, member in self.members.items()
            if (
                member.trial
                or not (member.proven or (member.agreed_with_unproven and not holder.proven))
            )
            and name not in copying
            and name != teacher
        ]
        if unproven:
            return tuple(unproven)
        is_compared = holder.proven or holder.agreed_with_unproven
        if not is_compared and (proven := [n for n in self.trusted if self.members[n].proven]):
            return (proven[0],)
        if rng.random() >= config.share:  # the usual case
            return ()
        others = [name for name in self.trusted if name != teacher]
        return (others[int(rng.random() * len(others))],) if others else ()

    def tick(self, answering: Collection[str], now: float) -> ComparisonVerdict:
        """Admit one teacher if for `ALONE_S` no teacher could answer except those on trial.

        Args:
            answering: teachers that can be expected to answer now.
            now: seconds of a clock that does not go back.
        """
        candidates = [
            name for name, member in self.members.items() if member.trial and name in answering
        ]
        if not candidates or any(name in answering for name in self.trusted):
            self._alone_since = None
        elif self._alone_since is None:
            self._alone_since = now
        elif now - self._alone_since >= ALONE_S:
            self._alone_since = None
            return self._admit_one(candidates)
        return ComparisonVerdict()

    def refused(self, teacher: str) -> ComparisonVerdict:
        """Admit one teacher from trial if the only trusted one refuses a request.

        The admitted teacher shows whether the request or the trusted teacher is at fault. Without
        it, a batch that only the trusted teacher refuses would end the training.
        """
        if self.trusted != [teacher] or len(self.members) < 2:
            return ComparisonVerdict()
        return self._admit_one(set(self.members) - {teacher})

    def judge(self, answers: Sequence[str], agree: Collection[frozenset[str]]) -> ComparisonVerdict:
        """Judge all answers of one request.

        Args:
            answers: teachers that have answered; answers of non-members are ignored.
            agree: pairs of teachers with labels that differ by no more than the tolerance.
        """
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
                member.proven = True
            else:
                member.agreed_with_unproven = True
        liars = tuple(name for name in names if name not in believed)
        for name in liars:
            del self.members[name]
        self._settle(believed)
        return ComparisonVerdict(liars, (), readmit)

    def _is_proven(self, names: Sequence[str], believed: Collection[str]) -> bool:
        """Whether an agreement is proof: it includes a proven teacher, or no proven one is absent.

        Without this rule, newcomers that agree while a proven teacher is silent would never be
        compared with it.
        """
        proven = {name for name, member in self.members.items() if member.proven}
        absent = proven.intersection(self.trusted).difference(names)
        return bool(proven.intersection(believed)) or not absent

    def _undecided(self, names: Sequence[str]) -> ComparisonVerdict:
        """Let a trusted teacher outside `names` decide; if none exists, believe one of `names`."""
        believed, disputed, members = "", tuple[str, ...](), self.members
        if not set(self.trusted) - set(names):
            believed, disputed = self._most_credible(names), tuple(sorted(names))
        to_trial = tuple(name for name in names if name != believed and not members[name].trial)
        readmit = tuple(name for name in names if name == believed and members[name].trial)
        for name in names:
            members[name].trial = name != believed
        new_dispute = disputed if disputed != self.disputed else ()
        self.disputed = disputed
        return ComparisonVerdict((), to_trial, readmit, new_dispute)

    def _settle(self, believed: Collection[str] = ()) -> None:
        """Update the dispute: it ends with fewer than two members or with two trusted teachers."""
        remaining = tuple(n for n in self.disputed if n in self.members and n not in believed)
        self.disputed = remaining if len(remaining) > 1 and len(self.trusted) < 2 else ()

    def _admit_one(self, names: Collection[str]) -> ComparisonVerdict:
        """Admit the most credible of `names` without a comparison."""
        best = self._most_credible(names)
        self.members[best].trial = False
        return ComparisonVerdict(readmit=(best,))

    def _most_credible(self, names: Collection[str]) -> str:
        def doubt(name: str) -> tuple[bool, bool, int]:
            member = self.members[name]
            return member.trial, not member.proven, member.order

        return min(names, key=doubt)


def _largest_group(names: Sequence[str], agree: Collection[frozenset[str]]) -> set[str]:
    """Return the teachers with the most agreements, and all teachers that agree with one of them.

    The result is empty if no two teachers agree, or if two teachers with the most agreements
    disagree with each other.
    """
    agreeing = {
        name: {other for other in names if other == name or frozenset((name, other)) in agree}
        for name in names
    }
    most = max(len(others) for others in agreeing.values())
    leaders = [name for name in names if len(agreeing[name]) == most]
    if most < 2 or any(other not in agreeing[name] for name in leaders for other in leaders):
        return set()
    return set().union(*(agreeing[name] for name in leaders))
