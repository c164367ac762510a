"""Candidates on their way to be measured: batches of one kernel each are proposed, looked at and
compiled, while those before are measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from compiler.scheduling.choices import Choice
from compiler.tuning import allocation
from compiler.tuning.compilation import Outcome
from compiler.tuning.cost_model import CostModel
from compiler.tuning.processes import Compilers
from compiler.tuning.proposals import Candidate, Proposing
from compiler.tuning.subject import Subject
from compiler.tuning.tasks import Look


@dataclass(frozen=True)
class Ready:
    """A candidate to be measured.

    Attributes:
        subject: the number of what it is a candidate of.
        candidate: the candidate.
        outcome: what became of it as it was compiled; None: it is not compiled yet.
    """

    subject: int
    candidate: Candidate
    outcome: Outcome | None


@dataclass(frozen=True)
class _Proposal:
    """A batch that is being proposed, of a subject; `asked` are being looked at for it."""

    subject: int
    steps: Proposing
    asked: Sequence[Choice] = ()


class Batches:
    """Gives candidates of subjects one after the other.

    Args:
        subjects: what they are of.
        model: what ranks them.
        compilers: what looks at them and compiles them meanwhile; None: they are looked at here,
            and not compiled.
        most: candidates of a batch.
        room: how many more may be proposed beside so many that are under way.
    """

    def __init__(
        self,
        subjects: Sequence[Subject],
        model: CostModel,
        compilers: Compilers | None,
        most: int,
        room: Callable[[int], int],
    ):
        self._subjects, self._model, self._compilers = subjects, model, compilers
        self._most, self._room = most, room
        self._compiling: dict[int, tuple[int, Candidate]] = {}
        self._proposal: _Proposal | None = None

    def next(self) -> Ready | None:
        """The next candidate; None: there is no other. The batch after it is brought on its way as
        far as it goes without waiting."""
        while len(self._compiling) <= self._most and self._step():
            pass
        if not self._compiling:
            return None
        number, outcome = min(self._compiling), None
        if self._compilers is not None:
            number, outcome = self._compilers.take()
        k, candidate = self._compiling.pop(number)
        return Ready(k, candidate, outcome)

    def _step(self) -> bool:
        """Propose a step further; whether that could be done."""
        proposal, looks = self._proposal, None
        if proposal is None:
            proposal = self._begun()
            if proposal is None:
                return False
        elif self._compiling and self._compilers is not None and not self._compilers.answered():
            return False
        else:
            looks = self._looks(proposal)
        try:
            asked = proposal.steps.send(looks)
        except StopIteration as end:
            self._proposal = None
            self._submit(proposal.subject, end.value)
            return True
        if self._compilers is not None:
            self._compilers.ask(proposal.subject, asked)
        self._proposal = _Proposal(proposal.subject, proposal.steps, asked)
        return True

    def _begun(self) -> _Proposal | None:
        """What proposes the next batch; None: there is to be none."""
        left = min(self._most, self._room(len(self._compiling)))
        k = allocation.next_task([s.state for s in self._subjects]) if left > 0 else None
        if k is None:
            return None
        s = self._subjects[k]
        others = [
            other.best[0]
            for other in self._subjects
            if other is not s and other.best and other.task.structure == s.task.structure
        ]
        return _Proposal(k, s.search.proposing(left, self._model, others))

    def _looks(self, proposal: _Proposal) -> list[Look]:
        """What is seen of the candidates that a proposal asked about."""
        if self._compilers is not None:
            return self._compilers.answers()
        task = self._subjects[proposal.subject].task
        return [task.look(choice) for choice in proposal.asked]

    def _submit(self, k: int, batch: Sequence[Candidate]) -> None:
        """Have a batch compiled. A subject that has none has nothing left to try."""
        for candidate in batch:
            choice, last = candidate.choice, max(self._compiling, default=0)
            number = self._compilers.submit(k, choice) if self._compilers else last + 1
            self._compiling[number] = k, candidate
        state = self._subjects[k].state
        state.trials += len(batch)
        state.exhausted = not batch
