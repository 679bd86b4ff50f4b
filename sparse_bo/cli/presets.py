"""Policies, kernels and samplers by name; presets of the built-in problems; settings of a policy as text."""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, Literal, NamedTuple

from gpytorch.kernels import Kernel, MaternKernel, RBFKernel, ScaleKernel

from sparse_bo import dictionary, policies
from sparse_bo.arms.sweep import PRECISIONS
from sparse_bo.cli import shared_options as names
from sparse_bo.cli.shared_options import KERNELS, MATERN, PRESETS, SAMPLERS
from sparse_bo.dictionary import RecursiveRLSSampler, Sampler
from sparse_bo.domains import check_domain
from sparse_bo.kernels import TanimotoKernel
from sparse_bo.policies import BBKB, Policy, TrustRegion, TwoStage
from sparse_bo.policies.settings import Goal
from sparse_bo.problems import TABLES
from sparse_bo.runs.default_policy import ChosenPolicy, chosen_policy
from sparse_bo.validation import check_choice, check_positive, nearest

POLICIES: Mapping[str, type] = {name: getattr(policies, kind) for name, kind in names.POLICIES.items()}
SIZED_SAMPLERS: Mapping[str, type[Any]] = {name: getattr(dictionary, kind) for name, kind in names.SIZED_SAMPLERS.items()}

PUBLISHED = {
    "lengthscale": 5.0**0.5,
    "regularization": 0.2,
    "noise_variance": 0.01,
    "rkhs_norm": 20.0,
    "width": "authors",
    "in_batch": "fixed",
}
"""BBKB §4: Gaussian kernel with σ² = 5, λ = 0.2, F = 20, ξ² = 0.1², its in-batch update; δ = 1/T is set from the budget."""
ELIMINATION = {**PUBLISHED, "regularization": 0.01, "width": "tight", "failure_probability": 0.05}
"""S-BPE and BPE on tables: kernel, F and ξ² of BBKB §4, but λ = ξ² (free in S-BPE) and the tight constant of F: with λ = 0.2
and the paper's constant no arm is ever eliminated within 10⁴ evaluations."""
DRAWN = {"lengthscale": 0.3, "regularization": 0.01, "width": "gaussian", "failure_probability": 0.05}
"""S-BPE and BPE on gp-draw: the prior that the objective is drawn from, so that the assumptions of the bounds hold."""
SCALES = ("lengthscale", "outputscale")
OPTIONS_OF: Mapping[str, tuple[str, ...]] = {
    "covar_module": ("kernel", *SCALES),
    "dictionary": ("dictionary", "dictionary_size"),
    "sweep_dtype": ("precision",),
    "goal": ("goal",),
}
"""Fields of policies -> the options that stand for them, where ``--set`` does not."""
SETTINGS = ("batch_size", "initial_design", "width", "rkhs_norm", "failure_probability", "regularization", "noise_variance")
"""Settings of policies with an option of the same name, which is short for ``--set``."""
FLAGS = (*SETTINGS, *(option for options in OPTIONS_OF.values() for option in options))
"""Settings of policies with an option of their own; all others are set by ``--set``."""


class Setting(NamedTuple):
    """A setting of a policy that can be written as text."""

    hint: Any
    """Type of its field."""
    admitted: str
    """Its values in words."""
    default: Any


def make_kernel(name: str, *, lengthscale: float | None, outputscale: float | None) -> Kernel | None:
    """Return a GPyTorch kernel by name; ``None`` for ``"learned"``."""
    check_choice("kernel", name, KERNELS)
    if name == "learned":
        if lengthscale is not None or outputscale is not None:
            raise ValueError("--lengthscale and --outputscale are of a named --kernel; add --kernel rbf, say, or drop them")
        return None
    if name == "tanimoto":
        if lengthscale is not None:
            raise ValueError("--kernel tanimoto compares fingerprints and has no lengthscale; drop --lengthscale")
        kernel = TanimotoKernel()
    else:
        kernel = (RBFKernel() if name == "rbf" else MaternKernel(nu=MATERN[name])).double()
        kernel.lengthscale = check_positive("lengthscale", 1.0 if lengthscale is None else lengthscale)
    if outputscale is not None:
        kernel = ScaleKernel(kernel).double()
        kernel.outputscale = check_positive("outputscale", outputscale)
    return kernel


def make_sampler(name: str, size: int | None) -> Sampler | None:
    """Return a dictionary sampler by name; ``None`` for ``"leverage"``, which every policy builds from its own options.

    ``"recursive-rls"`` without a size is the variant with confidence (S-BPE Lemma 3.8, δ = 0.01), which finds its own.
    """
    check_choice("dictionary", name, SAMPLERS)
    if name == "leverage":
        if size is not None:
            raise ValueError("a leverage dictionary finds its own size (--set oversampling scales it); drop --dictionary-size")
        return None
    if name == "recursive-rls":
        return RecursiveRLSSampler(size=size)
    if size is None:
        raise ValueError(f"--dictionary {name} needs --dictionary-size")
    return SIZED_SAMPLERS[name](size=size)


def make_policy(name: str, given: Mapping[str, Any], *, problem: str, budget: int, preset: str = "published") -> Policy:
    """Return a policy by name; settings that ``given`` lacks are those of the problem's preset.

    On Cadata and Abalone the published preset is :data:`PUBLISHED`; a learned kernel (the preset of the others) switches it
    off. Policies that eliminate have :data:`ELIMINATION`, on gp-draw :data:`DRAWN`, elsewhere bounds of three standard
    deviations. Their horizon is the budget. Their guarantees need a kernel that is not learned. ``given`` has settings by field
    name, also as text; those of :data:`OPTIONS_OF` as on the command line.
    """
    kind = POLICIES[check_choice("policy", name, tuple(POLICIES))]
    check_choice("preset", preset, PRESETS)
    given = read_settings(given, kind)
    accepted = {field.name for field in fields(kind)}
    if "dictionary_size" in given or isinstance(given.get("dictionary"), str):
        given["dictionary"] = make_sampler(given.get("dictionary", "leverage"), given.pop("dictionary_size", None))
    if {"covar_module", "regularization"} <= accepted:  # else a kernel alone, without the preset of a prior
        chosen: dict[str, Any] = {}
        if name in ("sbpe", "bpe"):
            chosen = DRAWN if problem == "gp-draw" else ELIMINATION if problem in TABLES else {}
            # no bound is proven for a learned prior
            given = {"horizon": budget, **({} if problem in (*TABLES, "gp-draw") else {"width": 3.0}), **given}
        elif preset == "published":
            chosen = {**PUBLISHED, "failure_probability": min(1.0 / max(budget, 2), 0.5)}
        fixed = chosen and (problem in TABLES or chosen is DRAWN)
        kernel = given.get("kernel", "rbf" if fixed else "learned")
        own_kernel = not {"kernel", *SCALES}.isdisjoint(given)
        taken = accepted if own_kernel else accepted | {"lengthscale"}
        completion = {} if kernel == "learned" else {key: value for key, value in chosen.items() if key in taken}
        given = {**completion, **given, "kernel": kernel}
        precision = check_choice("precision", given.pop("precision", "float64"), tuple(PRECISIONS))
        given["sweep_dtype"] = PRECISIONS[precision]
    if "covar_module" in accepted:
        scales = {scale: given.pop(scale, None) for scale in SCALES}
        given["covar_module"] = make_kernel(given.pop("kernel", "learned"), **scales)
    policy: Policy = kind(**given)
    return policy


def policy_of(
    policy: str | None,
    given: Mapping[str, Any],
    *,
    domain: Mapping[str, Any],
    name: str,
    goal: str,
    budget: int,
    preset: str,
    workers: int | None = None,
    certified: bool = False,
    observed: int = 0,
    several: bool = False,
) -> ChosenPolicy:
    """Return the policy of a run and the reason for it; ``observed`` counts the initial observations.

    Without a name it is the default, or with one outcome BBKB if the default lacks one of the settings, certificates or a plan.
    """
    check_choice("goal", goal, typing.get_args(Goal))
    build: dict[str, Any] = {"problem": name, "budget": budget, "preset": preset}
    if policy is not None:
        goals = {"goal": goal} if POLICIES.get(policy) is TrustRegion else {}
        if goal != "best" and not goals and policy in POLICIES:
            raise ValueError(
                f"policy {policy!r} has no --goal {goal}, which is of trust-region and of the default policy; drop it"
            )
        return ChosenPolicy(make_policy(policy, {**given, **goals}, **build), "")
    how: dict[str, Any] = {"goal": goal, "budget": budget, "workers": workers, "observed": observed, "several": several}
    chosen, why = chosen_policy(check_domain(**domain), own_batches=given.get("batch_size") not in (None, "none"), **how)
    firsts = _fields(chosen.first) if isinstance(chosen, TwoStage) else {}  # the first policy takes settings too
    own = {key: value for key, value in given.items() if key not in firsts}
    first = {key: value for key, value in given.items() if key in firsts}
    if several and (certified or (other := own.keys() - _fields(chosen))):
        wrong = "certificates and plans are" if certified else f"{', '.join(sorted(other))} is"
        raise ValueError(f"{wrong} of policies for one outcome, got several by --objectives; drop that")
    if not isinstance(chosen, TrustRegion | BBKB):
        has = [*["certificates and plans"] * certified, *["the published preset"] * (preset == "published")]
        if has := has + sorted(map(flag, own.keys() - _fields(chosen))):
            return ChosenPolicy(make_policy("bbkb", given, **build), f"it has {', '.join(has)}")
    if isinstance(chosen, BBKB):
        return ChosenPolicy(make_policy("bbkb", given, **build), why)
    if isinstance(chosen, TwoStage):
        own["first"] = replace(chosen.first, **read_settings(first, type(chosen.first)))
        both = {key: value for key, value in first.items() if key in ("batch_size", "repeats")}  # of the whole run
        own["then"] = BBKB(width=chosen.then.width, **read_settings(both, BBKB))
    return ChosenPolicy(make_policy(chosen.name, {**_fields(chosen), **own}, **build), why)


def _fields(policy: Policy) -> dict[str, Any]:
    return {field.name: getattr(policy, field.name) for field in fields(policy)}  # type: ignore[arg-type]  # all are dataclasses


def given_settings(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a policy among the options of a command, those of ``--set`` as text."""
    given = {name: options[name] for name in FLAGS if name != "goal" and options.get(name) is not None}
    for text in options["set_"] or []:
        name, equals, value = text.partition("=")
        name = name.strip().replace("-", "_")
        if not equals or not name:
            raise ValueError(f"expected --set name=value, as in --set stop_rule=local, got {text!r}")
        if name in given:
            raise ValueError(f"{flag(name)} is set twice; drop one")
        if own := next((taken for field, taken in OPTIONS_OF.items() if name in (field, *taken)), None):
            raise ValueError(f"{name} is set by {', '.join(map(flag, own))}; use that in place of --set")
        given[name] = value.strip()
    return given


def read_settings(given: Mapping[str, Any], kind: type) -> dict[str, Any]:
    """Return settings with the values that their texts stand for."""
    settings = settings_of(kind)
    accepted = {field.name for field in fields(kind)}
    accepted.update(*(options for field, options in OPTIONS_OF.items() if field in accepted))
    read = {}
    for name, value in given.items():
        if name not in accepted or (isinstance(value, str) and name not in settings and name not in FLAGS):
            raise _unknown(name, kind)
        read[name] = _value(name, value, settings[name]) if isinstance(value, str) and name in settings else value
    return read


def settings_of(kind: type) -> dict[str, Setting]:
    """Return the settings of a policy that can be written as text, by name."""
    hints = typing.get_type_hints(kind)
    every = {f.name: Setting(hints[f.name], _admitted(hints[f.name]), f.default) for f in fields(kind) if f.init}
    return {name: one for name, one in every.items() if name not in OPTIONS_OF and one.admitted not in ("", "none")}


def flag(name: str) -> str:
    """Return how a setting is written on the command line."""
    return "--" + name.replace("_", "-") if name in FLAGS else f"--set {name}"


def _unknown(name: str, kind: type) -> ValueError:
    """Return the error about a setting that a policy lacks: its settings, and the policies that have it."""
    (policy,) = (policy for policy, cls in POLICIES.items() if cls is kind)
    takes = sorted([*settings_of(kind), *(option for field in fields(kind) for option in OPTIONS_OF.get(field.name, ()))])
    options, others = [flag(known) for known in takes if known in FLAGS], [known for known in takes if known not in FLAGS]
    field = next((field for field, translated in OPTIONS_OF.items() if name in translated), name)
    having = [policy for policy, cls in POLICIES.items() if field in {known.name for known in fields(cls)}]
    found = f"is of {', '.join(having)}" if having else "no policy has"
    return ValueError(
        f"policy {policy!r} has no {flag(name)}, which {found}; "
        f"it takes {', '.join(options)}" + (f"; with --set {', '.join(others)}" if others else "") + nearest(name, takes)
    )


def _alternatives(hint: Any) -> tuple[Any, ...]:
    return typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)


def _choices(hint: Any) -> list[str]:
    return [name for kind in _alternatives(hint) if typing.get_origin(kind) is Literal for name in typing.get_args(kind)]


def _admitted(hint: Any) -> str:
    """Return the values that a type admits, in words; empty if none can be written as text."""
    kinds = _alternatives(hint)
    words = {bool: "yes or no", int: "a whole number", float: "a number", Sequence[int]: "whole numbers such as 100,300,600"}
    parts = [text for kind, text in words.items() if kind in kinds] + [repr(name) for name in _choices(hint)]
    return " or ".join([*parts, *(["a name"] if str in kinds else []), *(["none"] if type(None) in kinds else [])])


def _value(name: str, text: str, setting: Setting) -> Any:
    kinds = _alternatives(setting.hint)
    if text == "none" and type(None) in kinds:
        return None
    if text in _choices(setting.hint):
        return text
    if bool in kinds and text.casefold() in ("yes", "no", "true", "false"):
        return text.casefold() in ("yes", "true")
    if Sequence[int] in kinds and re.fullmatch(r"[0-9]{1,18}( *, *[0-9]{1,18})*", text):
        return [int(part) for part in text.split(",")]
    try:
        number = float(text)
    except ValueError:
        if str in kinds and text:
            return text
    else:
        if int in kinds and abs(number) < 2**62 and number.is_integer():
            return int(text) if re.fullmatch("[+-]?[0-9]+", text) else int(number)
        if float in kinds:
            return number
    raise ValueError(f"expected {flag(name)} to be {setting.admitted}, got {text!r}")
