"""Options of the command line, made from the fields of dataclasses: their names, kinds, defaults and documentation.

Two sorts of classes: settings of a command (:mod:`sparse_bo.cli.settings`), whose fields carry their option as an annotation,
and the policies, which are read from their source (:mod:`sparse_bo.cli.source`) and know nothing of a command line.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from functools import cache, wraps
from inspect import Parameter, Signature
from textwrap import fill, wrap
from typing import Annotated, Any, get_type_hints

import typer
from typer.core import TyperCommand

from sparse_bo.cli.console import refused
from sparse_bo.cli.names import POLICIES
from sparse_bo.cli.source import UNKNOWN, Defined, Field, with_field
from sparse_bo.cli.source import fields as fields_in_source

OPTIONS_OF: Mapping[str, tuple[str, ...]] = {
    "covar_module": ("kernel", "lengthscale", "outputscale"),
    "dictionary": ("dictionary", "dictionary_size"),
    "sweep_dtype": ("precision",),
    "goal": ("goal",),
}
"""Fields of policies that have no text form -> the options that stand for them, translated by :mod:`sparse_bo.cli.presets`; and
``goal``, which is the run's option, and decides what policy it is."""
RUN, ARMS, PROBLEM, OWN = "Run", "Arms", "Built-in problem", "Your own problem"
PLAN, POLICY, MODEL, OTHER = "Plan", "Policy", "Model", "Other"
TEXT_COLUMN = 28
"""Where the second column of ``--help`` starts."""
PANELS = (RUN, ARMS, PROBLEM, OWN, PLAN, POLICY, MODEL, OTHER)
"""The sections of ``--help``, in order."""
MODEL_FIELDS = ("prior_mean", "regularization", "noise_variance", "memory_bytes")
"""Fields that are listed under :data:`MODEL`."""
Command = Callable[..., None]
TYPES: Mapping[str, Any] = {"int": int, "float": float, "bool": bool, "str": str}


@dataclass(frozen=True)
class PolicyOption:
    """An option that stands for a field of one or more policies."""

    name: str
    taken: Mapping[str, Field]
    """Policy -> its field."""

    @property
    def type(self) -> Any:
        """What the text is turned into first: a number where all policies take that alone, a switch, else text."""
        kinds = [field.kind for field in self.taken.values()]
        scalars = {name for kind in kinds for name in kind.scalars}
        plain = len(scalars) == 1 and not any(kind.choices or kind.counts for kind in kinds)
        return TYPES[next(iter(scalars))] if plain else str

    @property
    def panel(self) -> str:
        """The section of ``--help``."""
        return MODEL if self.name in MODEL_FIELDS else POLICY

    @property
    def help(self) -> str:
        """Documentation, the policies that take it, and its default; where policies differ, for each of them."""
        texts: dict[str, list[str]] = {}
        for policy, field in self.taken.items():
            texts.setdefault(in_short(field), []).append(policy)
        defaults = {policy: field.default for policy, field in self.taken.items()}
        if len(texts) == 1:
            return f"{next(iter(texts))} ({listed(list(self.taken))}{_defaults(defaults)})."
        parts = [f"{listed(policies)}: {text}." for text, policies in texts.items()]
        if shared := _defaults(defaults):
            parts.append(f"Default{shared.removeprefix('; default')}.")
        return " ".join(parts)

    def value(self, text: Any) -> Any:
        """Return what the policies take: numbers where the text is one, a list of counts where a field takes one.

        Raises:
            ValueError: If a list of counts cannot be read.
        """
        if any(field.kind.counts for field in self.taken.values()):
            parts = [part.strip() for part in text.split(",")]
            if not all(part.isascii() and part.isdigit() for part in parts):
                raise ValueError(f"expected {flag(self.name)} to be whole numbers such as 100,300,600, got {text!r}")
            return [int(part) for part in parts]
        return number_or_name(text) if isinstance(text, str) else text


def policy_options(policies: Mapping[str, Defined]) -> list[PolicyOption]:
    """Return the options of policies: a field that has a text form is one, whichever policies have it."""
    taken: dict[str, dict[str, Field]] = {}
    for policy, thing in policies.items():
        for field in fields_in_source(thing):
            if field.kind.written and field.name not in OPTIONS_OF:
                taken.setdefault(field.name, {})[policy] = field
    return [PolicyOption(name, of) for name, of in taken.items()]


def taken_by(policy: Defined) -> list[str]:
    """Return the names of the options that a policy takes, in order."""
    have = fields_in_source(policy)
    translated = {option for field in have for option in OPTIONS_OF.get(field.name, ())}
    return sorted(translated.union(field.name for field in have if field.kind.written and field.name not in OPTIONS_OF))


def option(panel: str, text: str, *names: str, field: str | None = None) -> Any:
    """Return an option for the annotation of a field of settings.

    Args:
        panel: The section of ``--help``.
        text: What it does.
        names: How it is written; default: as the field.
        field: The field of policies that it stands for: the policies that have it are named.
    """
    takers = "" if field is None else f" ({listed(with_field(POLICIES, field))})"
    return typer.Option(*names, help=text + takers, rich_help_panel=panel, show_default=False)


def taking(
    settings: type, policies: Mapping[str, Defined] | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options of ``settings`` and of ``policies``.

    The command is called with the settings and, with policies, a dictionary of the policy options that were given.

    Args:
        settings: A dataclass whose fields are annotated with :func:`option`.
        policies: Name -> class.
    """
    generated = {made.name: made for made in policy_options(policies or {})}
    hints = get_type_hints(settings, include_extras=True)
    own = [field for field in fields(settings) if field.init]
    listed_first = [
        Parameter(f.name, Parameter.KEYWORD_ONLY, annotation=hints[f.name])
        if f.default is MISSING
        else Parameter(f.name, Parameter.KEYWORD_ONLY, annotation=hints[f.name], default=f.default)
        for f in own
    ]
    added = [
        Parameter(
            name,
            Parameter.KEYWORD_ONLY,
            annotation=Annotated[made.type | None, typer.Option(help=made.help, rich_help_panel=made.panel)],
            default=None,
        )
        for name, made in generated.items()
    ]

    def decorate(command: Command) -> Command:
        @wraps(command)
        def called(**given: Any) -> None:
            chosen = settings(**{field.name: given.pop(field.name) for field in own})
            if policies is None:
                return command(chosen)
            try:
                options = {name: generated[name].value(value) for name, value in given.items() if value is not None}
            except ValueError as error:
                raise refused(error) from error
            return command(chosen, options)

        called.__signature__ = Signature([*listed_first, *added])  # type: ignore[attr-defined]  # what inspect reads first
        called.__annotations__ = {}
        del called.__wrapped__  # its signature is another
        return called

    return decorate


class InPanels(TyperCommand):
    """A command whose ``--help`` lists options by panel, as plain text that any terminal and any encoding can show."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write a section per panel; names with hyphens stay on one line, so that they can be found and copied."""
        panels: dict[str, list[tuple[str, str]]] = {panel: [] for panel in PANELS}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                panels[getattr(parameter, "rich_help_panel", None) or OTHER].append(record)
        for panel, records in panels.items():
            if records:
                with formatter.section(panel):
                    for written, text in records:
                        formatter.write(_entry(written, text, width=formatter.width))


def _entry(written: str, text: str, *, width: int) -> str:
    """Return an option and what it does, in two columns."""
    lines = wrap(text, max(width - TEXT_COLUMN, 20), break_on_hyphens=False, break_long_words=False)
    start = f"  {written}"
    beside = start.ljust(TEXT_COLUMN) + lines.pop(0) if lines and len(start) <= TEXT_COLUMN - 2 else start
    return "".join(f"{line}\n" for line in (beside, *(" " * TEXT_COLUMN + line for line in lines)))


def paragraph(text: str) -> str:
    """Return a paragraph for the help of a command in which names with hyphens stay on one line."""
    return "\b\n" + fill(text, 76, break_on_hyphens=False)


@cache
def in_short(field: Field) -> str:
    """Return the first sentence of a field's documentation, and what holds if it is not given, as plain text.

    What has no text form is left out: alternatives that are values of a class, and where to read on about them.
    """
    sentences = re.split(r"(?<=\.)\s+(?=[A-Z`])", field.text)
    kept = [s for i, s in enumerate(sentences) if i == 0 or s.startswith(("``None``:", "Default"))]
    short = re.sub(r"([.;]) ``None``:", r"\1 Not given:", " ".join(kept)).replace("; Not given", "; not given")
    short = re.sub(r",? ([^,(]+(?:\([^)]*\))?),? or an? :class:`[^`]+`", r" or \1", short)
    short = re.sub(r" \(:class:`[^`]+`\)|[,;] see :\w+:`[^`]+`", "", short)
    short = re.sub(r":\w+:`~?(?:[\w.]+\.)?(\w+)`", r"\1", short).replace("``", "").rstrip(".")
    unnamed = [choice for choice in field.kind.choices if choice not in short]
    return f"{short}: {' or '.join(field.kind.choices)}" if unnamed else short


def listed(policies: Sequence[str]) -> str:
    """Name policies: all of them, or those that are missing where that is shorter."""
    missing = [name for name in POLICIES if name not in policies]
    if len(policies) > 1 and len(missing) < len(policies) / 2:
        return "all policies" if not missing else f"all but {', '.join(missing)}"
    return ", ".join(policies)


def _defaults(defaults: Mapping[str, Any]) -> str:
    """Return "; default …", for each policy where they differ; empty where there is none to show."""
    shown: dict[str, list[str]] = {}
    for policy, value in defaults.items():
        if value is not None and value is not UNKNOWN:
            shown.setdefault(_as_text(value), []).append(policy)
    if not shown:
        return ""
    if len(shown) == 1 and len(next(iter(shown.values()))) == len(defaults):
        return f"; default {next(iter(shown))}"
    return "; default " + ", ".join(f"{value} for {listed(policies)}" for value, policies in shown.items())


def _as_text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else f"{value:g}" if isinstance(value, float) else str(value)


def flag(name: str) -> str:
    """Return how an option is written."""
    return "--" + name.replace("_", "-")


def number_or_name(text: str) -> float | str:
    """Return a number where the text is one."""
    try:
        return int(text) if text.isascii() and text.isdigit() else float(text)
    except ValueError:
        return text
