"""``compare``: the default policy beside simple ones on one problem."""

from __future__ import annotations

import time
from typing import Any

import typer

from sparse_bo.cli.commands import budget_of
from sparse_bo.cli.console import complain, console, refused, say, shows
from sparse_bo.cli.inputs import INPUT_ERRORS, check_size, described_problem, device_of, folder, problem_of
from sparse_bo.cli.launch import launch
from sparse_bo.cli.settings import CompareSettings
from sparse_bo.domains import check_domain
from sparse_bo.policies import EpsilonGreedy, Policy, RandomSearch
from sparse_bo.policies.settings import Goal
from sparse_bo.problems.custom import OwnProblem
from sparse_bo.runs.ask_tell import AskTell
from sparse_bo.runs.choice import chosen_policy
from sparse_bo.tables.comparison import Contestant, comparison_table, plot_comparison, terminal_comparison


def compare(settings: CompareSettings) -> None:
    """``compare``: run each policy, print a table, draw regrets, write the histories.

    Args:
        settings: Of the command.

    Raises:
        typer.Exit: With 2 if an option does not fit, 130 on Ctrl-C, 1 if a run stops before its end (what had finished
            is shown) or files cannot be written.
    """
    try:
        check_size(settings, {})
        made = described_problem(settings, seed=settings.seed)
        problem = problem_of(made).to(device_of(settings.device))
        if isinstance(problem, OwnProblem):
            raise ValueError("compare needs to know the best value: name a built-in --problem, or use run")
        budget = budget_of(settings.budget, made["name"])
        goal: Goal = "cumulative" if "arms" in problem.domain else "best"
        default, why = chosen_policy(check_domain(**problem.domain), goal=goal, budget=budget)
        with folder(settings.out):
            settings.out.mkdir(parents=True, exist_ok=True)
        if not settings.quiet:
            say(f"the default policy with --goal {goal}: {default.name}, {why}")
        contestants: list[Contestant] = []
        for policy in (default, *_simple(problem.domain)):
            loop = AskTell(policy=policy, seed=settings.seed, **problem.domain)
            start = time.process_time()
            outcome = launch(loop, problem, budget, None, storage=None, quiet=settings.quiet)
            if outcome.code:
                _kept(policy.name, contestants, problem.description, settings)
                raise typer.Exit(outcome.code)
            outcome.result.history.save(settings.out / f"{problem.name}-{policy.name}-seed{settings.seed}.jsonl")
            regret = problem.regret_of(outcome.result.history).tolist()
            contestants.append(Contestant(policy.name, regret, time.process_time() - start))
        if not settings.quiet:
            console.print(comparison_table(problem.description, contestants))
            if console.is_terminal:
                console.print(terminal_comparison(contestants, width=console.width, dots=shows("\u28ff")))
        path = settings.out / f"{problem.name}-compare-seed{settings.seed}.png"
        plot_comparison(f"{problem.description}, seed {settings.seed}", contestants).savefig(path, dpi=150)
        if not settings.quiet:
            say(f"figure   {path}")
            say("next:")
            for command, gives in _next(made["name"]):
                say(f"  python -m sparse_bo {command:54} {gives}")
    except OSError as error:
        complain("error", f"could not write into {settings.out}: {error.strerror or error}; choose another --out")
        raise typer.Exit(1) from error
    except INPUT_ERRORS as error:
        raise refused(error) from error


def _kept(name: str, finished: list[Contestant], title: str, settings: CompareSettings) -> None:
    """Show what had finished when a policy was stopped, and say how to go on."""
    if finished and not settings.quiet:
        console.print(comparison_table(title, finished))
    whole = ", ".join(contestant.name for contestant in finished)
    kept = (
        f"finished before it: {whole}, whose histories are in {settings.out}" if finished else "nothing had finished before it"
    )
    complain(
        name,
        f"{kept}\nThe same command compares all of them anew; one policy whose run can go on: "
        f"python -m sparse_bo run --policy {name} --storage run.journal",
        style="yellow",
    )


def _next(name: str) -> list[tuple[str, str]]:
    """Return what to type next, and what each gives."""
    return [
        (f"run --problem {name} --storage run.journal", "one run, with a journal"),
        ("report run.journal --html run.html", "all of it on one page"),
        ("run --objective experiment:train --space space.toml", "a problem of yours (run --help)"),
    ]


def _simple(where: dict[str, Any]) -> list[Policy]:
    """Return what the default is compared with: on a box random choice, over arms ε-greedy too."""
    chance = RandomSearch(batch_size=100)  # large: its picks depend on no result
    return [EpsilonGreedy(), chance] if "arms" in where else [chance]
