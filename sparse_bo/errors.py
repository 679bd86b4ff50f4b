"""Exceptions and warnings that a caller can act on; everything else is ``ValueError`` or ``TypeError``."""

from __future__ import annotations

from typing import Any


class NumericalWarning(UserWarning):
    """A kernel matrix had to be changed noticeably (large jitter or indefinite) before it could be factorised."""


class MemoryWarning(UserWarning):
    """Memory ran out; the computation went on in smaller tiles, with the same results."""


class SamplerError(ValueError):
    """A dictionary sampler was not given what it needs of the candidates: covariance, regularization or posterior means."""


class ResumeWarning(UserWarning):
    """A resumed run made other picks than those recorded (these stay), or a damaged part of its history is computed again."""


class TicketError(ValueError):
    """``tell`` or ``fail`` got a ticket that is unknown, repeated or already answered."""


class StorageError(RuntimeError):
    """A journal cannot be written or read: it is locked, full, read-only, damaged or of a newer version.

    What was to be recorded has not been recorded, and nothing has changed; what the journal held before, it still holds.
    """


class PendingBatchError(RuntimeError):
    """``ask`` was called when no more evaluations may be out before some results have come in; nothing is changed.

    Attributes:
        needed: After so many results the policy expects to go on.
        pending: Evaluations that are out.
    """

    def __init__(self, message: str, *, needed: int = 1, pending: int = 0) -> None:
        super().__init__(message)
        self.needed = needed
        self.pending = pending


class ContradictionError(RuntimeError):
    """The results contradict an assumption of the policy; the message says which.

    Attributes:
        state: The policy's state (:class:`sparse_bo.policies.EliminationState`) with every result told so far.
    """

    def __init__(self, message: str, *, state: Any) -> None:
        super().__init__(message)
        self.state = state


class ScheduleComplete(RuntimeError):
    """``ask`` was called after the last batch of a policy whose number of evaluations is fixed."""


class ObjectiveError(RuntimeError):
    """The objective raised; nothing that was told before is lost.

    Attributes:
        loop: The :class:`sparse_bo.AskTell`, with every observation told so far. The failed batch is still out:
            ``loop.tell`` or ``loop.fail`` its tickets, then go on with ``loop.run``.
        result: The :class:`sparse_bo.Result` of the run up to the failure.
    """

    def __init__(self, message: str, *, loop: Any, result: Any) -> None:
        super().__init__(message)
        self.loop = loop
        self.result = result


class RunInterrupted(KeyboardInterrupt):
    """The run was interrupted (Ctrl-C); nothing that was told before is lost.

    Attributes:
        loop: The :class:`sparse_bo.AskTell`, with every observation told so far.
        result: The :class:`sparse_bo.Result` of the run up to the interruption.
    """

    def __init__(self, message: str, *, loop: Any, result: Any) -> None:
        super().__init__(message)
        self.loop = loop
        self.result = result
