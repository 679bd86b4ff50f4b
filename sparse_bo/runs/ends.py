"""How a run of an objective ends before its time: whatever is raised carries the loop and the result so far."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sparse_bo.errors import ObjectiveError, RunInterrupted
from sparse_bo.evaluations.serial import Asking, EvaluationFailed
from sparse_bo.runs.result import Result


@contextmanager
def carrying(loop: Asking, so_far: Callable[[], Result]) -> Iterator[None]:
    """Give what the block raises the loop and the result so far as attributes, and say how to go on.

    Args:
        loop: Of the run.
        so_far: Returns its result at that moment.

    Raises:
        RunInterrupted: In place of a ``KeyboardInterrupt``.
        ObjectiveError: In place of an :class:`EvaluationFailed`.
    """
    try:
        yield
    except KeyboardInterrupt as interrupt:
        message = f"interrupted after {loop.asked - len(loop.pending)} evaluations; they are in .loop and .result"
        raise RunInterrupted(message, loop=loop, result=so_far()) from interrupt
    except EvaluationFailed as error:
        reason = f"the objective failed {error}"
        message = (
            f"{reason}. Everything told before is in .result and .loop; tell or fail the tickets in "
            ".loop.pending, then go on with .loop.run(...)"
        )
        raise ObjectiveError(message, loop=loop, result=so_far(), reason=reason) from error.__cause__
    except Exception as error:
        vars(error).update(loop=loop, result=so_far())
        error.add_note("Everything told before is in the attributes .loop and .result of this exception.")
        raise
