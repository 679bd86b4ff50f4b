"""Options: generated from fields, one for one, with help for each."""

import dataclasses
import inspect
import re
from pathlib import Path
from typing import Annotated

import pytest
import typer

from sparse_bo import policies
from sparse_bo.cli import settings
from sparse_bo.cli.app import app
from sparse_bo.cli.names import POLICIES
from sparse_bo.cli.options import (
    OPTIONS_OF,
    PolicyOption,
    flag,
    in_short,
    listed,
    number_or_name,
    option,
    policy_options,
    taken_by,
    taking,
)
from sparse_bo.cli.source import UNKNOWN, Field, Kind
from tests.cli.builders import invoke

MADE = {made.name: made for made in policy_options(POLICIES)}
WITHOUT_TEXT = {"acquisition", "covar_module", "dictionary", "first", "fitter", "inner", "surrogate", "sweep_dtype", "then"}
"""Fields that hold kernels, samplers, functions and the like."""
BEFORE = """
    --problem --objective --arms-file --grid --one-by-one --policy --budget --seed --out --device --certify-every --quiet
    --storage --executor --workers --asynchronous --scaling --standardize --noise-sd --arms --dims --ratio-threshold --stop-rule
    --in-batch --oversampling --inclusion --dictionary --dictionary-size --width --rkhs-norm --failure-probability
    --on-contradiction --epsilon --decay --features --order --batch-size --max-batch-size --initial-design --buffer --slowdown
    --gradient --pool --condition-on --perturbation --neighbors --target-dims --kernel --lengthscale --outputscale --prior-mean
    --regularization --noise-variance --precision --memory-bytes --memory --seconds
"""
"""The options of ``run`` as they were when each was listed by hand."""


def parameters(command: str) -> dict:
    """Return the options of a command as typer has them: name -> parameter."""
    return {p.name: p for p in typer.main.get_command(app).commands[command].params}


def test_generated_options_are_the_fields_of_the_policies():
    real = {
        field.name for thing in POLICIES.values() for field in dataclasses.fields(getattr(policies, thing.name)) if field.init
    }
    assert set(MADE) == real - WITHOUT_TEXT - {"goal"}  # the run's own
    assert set(OPTIONS_OF) - {"goal"} == WITHOUT_TEXT - {"acquisition", "first", "fitter", "inner", "surrogate", "then"}


@pytest.mark.parametrize("name", MADE)
def test_an_option_is_taken_by_the_policies_that_have_the_field(name):
    have = [
        policy
        for policy, thing in POLICIES.items()
        if name in {field.name for field in dataclasses.fields(getattr(policies, thing.name))}
    ]
    assert list(MADE[name].taken) == have
    assert parameters("run")[name].opts == [flag(name)]
    assert parameters("run")[name].default is None
    assert all(policy in MADE[name].help for policy in have) or "all but" in MADE[name].help
    assert all(field.text for field in MADE[name].taken.values()), f"{name} has no entry under Attributes:"


def test_the_options_of_plan_are_the_fields_of_bbkb():
    made = {made.name for made in policy_options({"bbkb": POLICIES["bbkb"]})}
    own = {field.name for field in dataclasses.fields(settings.PlanSettings)}
    assert set(parameters("plan")) - {"help"} == made | own
    assert {"oversampling", "ratio_threshold", "regularization"} <= made
    assert made & own == set()


def test_every_option_of_before_is_there():
    flags = {name for parameter in parameters("run").values() for name in parameter.opts}
    assert set(BEFORE.split()) <= flags


@pytest.mark.parametrize("command", ["run", "plan", "resume", "report"])
def test_every_option_has_help(command):
    text = invoke(command, "--help", columns=80).output
    for parameter in parameters(command).values():
        assert parameter.help or parameter.name == "help"
        assert re.search(rf"^  {re.escape(parameter.opts[0])}( |$)", text, re.MULTILINE)
    assert all(len(line) <= 80 for line in text.splitlines())


def test_help_keeps_names_in_one_piece():
    text = invoke("run", "--help", columns=80).output
    top = invoke("--help", columns=80).output
    for policy in POLICIES:
        assert re.search(rf"(?<![\w-]){policy}(?![\w-])", text)
        assert re.search(rf"(?<![\w-]){policy}(?![\w-])", top)
    assert not re.search(r"-$", text.split("Policy:")[1], re.MULTILINE)
    assert "Cadata" in top


def test_help_shows_defaults_and_who_takes_an_option():
    assert MADE["max_batch_size"].help == "No batch is larger (bbkb, bkb, gp-bucb, gp-ucb, mini-meta; default 10,000)."
    assert MADE["inclusion"].help == '"exact" or "union" law of the dictionary (bbkb, bkb; default union).'
    assert MADE["width"].help.startswith("bbkb, bkb, gp-bucb, gp-ucb, mini-meta: A number of posterior standard deviations,")
    assert "Default 2 for botorch-ucb, gssbo," in MADE["width"].help
    assert MADE["condition_on"].help.endswith(": subset or all (gssbo, rssbo; default subset).")


@pytest.mark.parametrize(
    ("text", "short"),
    [
        ("q̄ > 0. And more of it.", "q̄ > 0"),
        ("λ > 0 (y²). ``None``: the noise, learned. More.", "λ > 0 (y²). Not given: the noise, learned"),
        ("Arms; ``None``: 1, else ``max(10, 2d)``.", "Arms; not given: 1, else max(10, 2d)"),
        ('A number, ``"a"``, or a :class:`x.Width`.', 'A number or "a"'),
        ("The law, see :class:`x.Sampler`.", "The law"),
        ('``"a"`` (:class:`x.A`) or ``"b"``.', '"a" or "b"'),
        ("As in Auer et al. 2002 (Fig. 3). Default: no.", "As in Auer et al. 2002 (Fig. 3). Default: no"),
    ],
)
def test_documentation_is_cut_to_what_a_command_line_needs(text, short):
    assert in_short(Field("name", Kind(frozenset({"int"})), None, text)) == short


def test_choices_that_the_text_does_not_name_are_added():
    assert in_short(Field("name", Kind(choices=("a1", "b2")), None, "Which.")) == "Which: a1 or b2"
    assert in_short(Field("name", Kind(choices=("a1", "b2")), None, "a1 (good) or b2.")) == "a1 (good) or b2"


def test_policies_are_listed_the_shorter_way():
    names = list(POLICIES)
    assert listed(names) == "all policies"
    assert listed([name for name in names if name != "random"]) == "all but random"
    assert listed(["bkb"]) == "bkb"


def test_kinds_decide_what_a_text_becomes():
    def made(*kinds: Kind) -> PolicyOption:
        return PolicyOption("x", {str(i): Field("x", kind, UNKNOWN, "") for i, kind in enumerate(kinds)})

    number, whole, name = Kind(frozenset({"float"})), Kind(frozenset({"int"})), Kind(frozenset({"str"}))
    assert (made(number).type, made(whole).type, made(Kind(frozenset({"bool"}))).type) == (float, int, bool)
    assert made(number, whole).type is made(number | name).type is made(Kind(choices=("a",))).type is str
    assert made(number | name).value("2.5") == 2.5
    assert made(whole, Kind(choices=("model",))).value("model") == "model"
    assert made(Kind(counts=True)).value("1, 2,30") == [1, 2, 30]
    with pytest.raises(ValueError, match="expected --x to be whole numbers such as 100,300,600, got '1,²'"):
        made(Kind(counts=True)).value("1,²")


@pytest.mark.parametrize(("text", "value"), [("3", 3), ("3.0", 3.0), ("1e3", 1000.0), ("theory", "theory"), ("²", "²")])
def test_numbers_are_numbers(text, value):
    got = number_or_name(text)
    assert got == value
    assert type(got) is type(value)


def test_a_policy_is_told_by_its_options():
    assert taken_by(POLICIES["random"]) == ["batch_size"]
    assert {"kernel", "dictionary_size", "precision", "stop_rule"} <= set(taken_by(POLICIES["bbkb"]))
    assert "covar_module" not in taken_by(POLICIES["bbkb"])


@dataclasses.dataclass(frozen=True, kw_only=True)
class Example:
    storage: Annotated[Path, typer.Argument(help="A file.")]
    count: Annotated[int | None, option("Run", "How many.", field="batch_size")] = None


def test_a_command_gets_settings_and_the_options_that_were_given():
    seen = []
    small = typer.Typer()

    @small.command()
    @taking(Example, {"bbkb": POLICIES["bbkb"]})
    def command(settings: Example, options: dict) -> None:
        seen.append((settings, options))

    run = typer.testing.CliRunner().invoke(small, ["run.db", "--count", "3", "--width", "2", "--inclusion", "exact"])
    assert run.exit_code == 0, run.output
    assert seen == [(Example(storage=Path("run.db"), count=3), {"width": 2, "inclusion": "exact"})]
    assert list(inspect.signature(command).parameters)[:2] == ["storage", "count"]
