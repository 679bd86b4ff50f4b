"""Exceptions and warnings that a caller can act on; everything else is ``ValueError`` or ``TypeError``."""

from __future__ import annotations

import os
import re
import sys
import warnings
from pathlib import Path
from typing import Any

PACKAGE = str(Path(__file__).parent) + os.sep


def install_hint(extra: str) -> str:
    """Return the command that installs an extra; from a checkout, for the package is on no index yet."""
    return f"pip install '.[{extra}]' in a checkout of sparse_bo"


def warn_caller(message: str, category: type[Warning]) -> None:
    """Issue a warning at the innermost line outside of this package."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(PACKAGE):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)


class NumericalWarning(UserWarning):
    """A kernel matrix, prior, value or width did not suit; the message says what was done, or what to pass."""


class MemoryWarning(UserWarning):
    """Memory ran out and smaller tiles give the same results, or a large joint covariance is made dense."""


class DictionaryWarning(UserWarning):
    """A dictionary that the user gave is far from all data, so that the posterior over it is nearly the prior."""


class CertificateWarning(UserWarning):
    """Results refute the bounds of a policy; the message gives bounds, results and fix."""


class SamplerError(ValueError):
    """A dictionary sampler lacks an input: covariance, noise, posterior means or the last dictionary."""


class ResumeWarning(UserWarning):
    """A resumed run made other picks than those recorded (these stay), or a damaged part of its history is computed again."""


class FailureWarning(UserWarning):
    """More than half of a run's evaluations have failed; issued once per run and process."""


class InfeasibleWarning(UserWarning):
    """A run has ended without a feasible evaluation: its best point violates a constraint."""


class TicketError(ValueError):
    """``tell`` or ``fail`` got a ticket that is unknown, repeated or already answered."""


class StorageError(RuntimeError):
    """A journal cannot be written or read: it is locked, full, read-only, damaged or of a newer version.

    What was to be recorded has not been recorded, and nothing has changed; what the journal held before, it still holds.
    """


class RankError(RuntimeError):
    """A rank of a sharded run has failed, is lost, or is at another step than the others; raised on every rank.

    Nothing that was told is lost: rank 0's journal has it, and the run can be resumed on any number of ranks.
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
        state: The policy's state (:class:`sparse_bo.policies.EliminationState`) with every result told so far; ``None`` in
            another process.
    """

    def __init__(self, message: str, *, state: Any = None) -> None:
        super().__init__(message)
        self.state = state

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self.args


class ScheduleComplete(RuntimeError):
    """``ask`` was called after the last evaluation of a policy: of a fixed number, or of each candidate once."""


class _Stopped(BaseException):
    """A run that has stopped; another process gets the message and the reason."""

    def __init__(self, message: str, *, loop: Any = None, result: Any = None, reason: str = "") -> None:
        super().__init__(message)
        self.loop = loop
        self.result = result
        self.reason = reason or message

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self.args, {"reason": self.reason}


class ObjectiveError(_Stopped, RuntimeError):
    """The objective raised; earlier results are kept. Loop and result stay in the process of the run.

    Attributes:
        loop: The :class:`sparse_bo.AskTell`, with every observation told so far. What has no result is still out:
            ``loop.tell`` or ``loop.fail`` its tickets, then go on with ``loop.run``.
        result: The :class:`sparse_bo.Result` of the run up to the failure.
        reason: What failed, without advice for who holds the loop.
    """


class RunInterrupted(_Stopped, KeyboardInterrupt):
    """The run was interrupted (Ctrl-C); earlier results are kept. Loop and result stay in the process of the run.

    Attributes:
        loop: The :class:`sparse_bo.AskTell`, with every observation told so far.
        result: The :class:`sparse_bo.Result` of the run up to the interruption.
        reason: How far the run was, without advice for who holds the loop.
    """


def without_password(address: str) -> str:
    """Return an address with dots in place of a password."""
    return re.sub(r"(://[^/@:]*):[^@]*@", r"\1:…@", address)
