"""The protocol's methods by name: this package's, and those of others' packages, each with what it needs and where it works."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec

from .ask_tell import run_peer
from .botorch_loop import Turbo, run_botorch
from .cmaes import CMAES
from .ours import NAMED, from_expression, run_ours
from .problems import SETS, TABLES, Task
from .sobol import Sobol
from .tpe import TPE
from .trace import Trace

__all__ = ["METHODS", "Method", "check_packages", "method_of"]

TABLES_ALONE = ("bbkb-published", "gp-ucb", "epsilon-greedy", "random")


@dataclass(frozen=True)
class Method:
    """A method.

    Args:
        name: In records and tables.
        run: Runs it on a task, within a trace, with a seed.
        boxes: Whether it works on boxes.
        tables: Whether it works on tables.
        sets: Whether it works on sets of arms.
        needs: Its packages, as pip and as Python call them, besides this package's dependencies.
        policy: The expression that its policy comes from, if one was given.
    """

    name: str
    run: Callable[[Task, Trace, int], None]
    boxes: bool = True
    tables: bool = False
    sets: bool = False
    needs: tuple[tuple[str, str], ...] = ()
    policy: str | None = None

    def works_on(self, problem: str) -> bool:
        """Return whether it works on a problem."""
        return self.tables if problem in TABLES else self.sets if problem in SETS else self.boxes

    def versions(self) -> dict[str, str]:
        """Return the versions of its packages."""
        return {name: version(name) for name, _ in self.needs}


METHODS: dict[str, Method] = {
    **{
        name: Method(name, partial(run_ours, make), boxes=name not in TABLES_ALONE, tables=True, sets=True)
        for name, make in NAMED.items()
    },
    "botorch": Method("botorch", run_botorch, sets=True),
    "turbo": Method("turbo", partial(run_peer, Turbo)),
    "cma": Method("cma", partial(run_peer, CMAES), needs=(("cma", "cma"),)),
    "tpe": Method("tpe", partial(run_peer, TPE), needs=(("optuna", "optuna"),)),
    "sobol": Method("sobol", partial(run_peer, Sobol)),
}


def method_of(text: str) -> Method:
    """Return a method by its name, or from ``name=expression``, a policy of this package.

    Raises:
        ValueError: If there is no such method, or the expression makes no policy.
    """
    name, equals, expression = text.partition("=")
    if equals:
        if name in METHODS:
            raise ValueError(f"{name!r} is the name of another method; choose another one for {expression}")
        return Method(name, partial(run_ours, from_expression(expression)), tables=True, sets=True, policy=expression)
    if name not in METHODS:
        raise ValueError(f"expected one of {', '.join(METHODS)}, or name=Policy(...), got method {text!r}")
    return METHODS[name]


def check_packages(methods: Iterable[Method], problems: Iterable[str]) -> None:
    """Check that what methods and problems need is installed.

    Raises:
        ImportError: If it is not; says how to install it.
    """
    needs = {module: f"method {method.name}" for method in methods for _, module in method.needs}
    if "tuning-8" in problems:
        needs["sklearn"] = "problem tuning-8"
    missing = [f"{user} needs {module}" for module, user in needs.items() if find_spec(module) is None]
    if missing:
        raise ImportError(f"{', '.join(missing)}: pip install '.[benchmarks]', or leave it out")
