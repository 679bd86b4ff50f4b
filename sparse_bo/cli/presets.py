"""Policies, kernels and samplers by name; presets of the built-in problems; settings of a policy as text."""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any, Literal

from gpytorch.kernels import Kernel, MaternKernel, RBFKernel, ScaleKernel

from sparse_bo import dictionary, policies
from sparse_bo.arms.moments import PRECISIONS
from sparse_bo.cli import options as names
from sparse_bo.cli.options import KERNELS, MATERN, PRESETS, SAMPLERS
from sparse_bo.dictionary import RecursiveRLSSampler, Sampler
from sparse_bo.policies import Policy
from sparse_bo.problems.names import TABLES
from sparse_bo.validation import check_choice, check_positive

POLICIES: Mapping[str, type] = {name: getattr(policies, kind) for name, kind in names.POLICIES.items()}
SIZED_SAMPLERS: Mapping[str, Callable[..., Sampler]] = {
    name: getattr(dictionary, kind) for name, kind in names.SIZED_SAMPLERS.items()
}

PUBLISHED = {
    "kernel": "rbf",
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
DRAWN = {"kernel": "rbf", "lengthscale": 0.3, "regularization": 0.01, "width": "gaussian", "failure_probability": 0.05}
"""S-BPE and BPE on gp-draw: the prior that the objective is drawn from, so that the assumptions of the bounds hold."""
OPTIONS_OF: Mapping[str, tuple[str, ...]] = {
    "covar_module": ("kernel", "lengthscale", "outputscale"),
    "dictionary": ("dictionary", "dictionary_size"),
    "sweep_dtype": ("precision",),
    "goal": ("goal",),
}
"""Fields of policies -> the options that stand for them, where ``--set`` does not."""
SETTINGS = ("batch_size", "initial_design", "width", "rkhs_norm", "failure_probability", "regularization", "noise_variance")
"""Settings of policies with an option of the same name, which is short for ``--set``."""
FLAGS = {*SETTINGS, *(option for options in OPTIONS_OF.values() for option in options)}
"""Settings of policies with an option of their own; all others are set by ``--set``."""


def make_kernel(name: str, *, lengthscale: float | None, outputscale: float | None) -> Kernel | None:
    """Return a GPyTorch kernel by name; ``None`` for ``"learned"``.

    Raises:
        ValueError: If the name is unknown, a number is not positive, or is given for a learned kernel.
    """
    check_choice("kernel", name, KERNELS)
    if name == "learned":
        if lengthscale is not None or outputscale is not None:
            raise ValueError(
                "a learned kernel takes no --lengthscale and no --outputscale; drop them or choose another --kernel"
            )
        return None
    kernel = RBFKernel() if name == "rbf" else MaternKernel(nu=MATERN[name])
    kernel = kernel.double()
    kernel.lengthscale = check_positive("lengthscale", 1.0 if lengthscale is None else lengthscale)
    if outputscale is None:
        return kernel
    kernel = ScaleKernel(kernel).double()
    kernel.outputscale = check_positive("outputscale", outputscale)
    return kernel


def make_sampler(name: str, size: int | None) -> Sampler | None:
    """Return a dictionary sampler by name; ``None`` for ``"leverage"``, which every policy builds from its own options.

    ``"recursive-rls"`` without a size is the variant with confidence (S-BPE Lemma 3.8, δ = 0.01), which finds its own.

    Args:
        name: One of :data:`sparse_bo.cli.options.SAMPLERS`.
        size: Number of points.

    Raises:
        ValueError: If the name is unknown, or the size is missing, not positive or not used.
        TypeError: If the size is not an integer.
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


def make_policy(name: str, options: Mapping[str, Any], *, problem: str, budget: int, preset: str = "published") -> Policy:
    """Return a policy by name; settings that ``options`` lack are those of the problem's preset.

    On Cadata and Abalone the published preset is :data:`PUBLISHED`; a learned kernel (the preset of the others) switches it
    off. Policies that eliminate have :data:`ELIMINATION`, on gp-draw :data:`DRAWN`, elsewhere bounds of three standard
    deviations. Their horizon is the budget. Their guarantees need a kernel that is not learned.

    Args:
        name: A key of :data:`POLICIES`.
        options: Settings by field name, and ``kernel``, ``lengthscale``, ``outputscale``, ``precision``.
        problem: Name of the problem, for its preset.
        budget: Evaluations; δ = 1/budget in the published preset.
        preset: One of :data:`sparse_bo.cli.options.PRESETS`, for the two data sets.

    Raises:
        ValueError: If the policy has no such setting, or a value does not fit.
        TypeError: If a value has the wrong kind.
    """
    check_choice("policy", name, tuple(POLICIES))
    check_choice("preset", preset, PRESETS)
    policy = POLICIES[name]
    given = dict(options)
    accepted = {field.name for field in fields(policy)}
    modelled = "covar_module" in accepted
    known = accepted.union(*(options for field, options in OPTIONS_OF.items() if field in accepted))
    for foreign in sorted(set(given) - known):
        raise _unknown(foreign, policy)
    if {"dictionary", "dictionary_size"} & set(given):
        given["dictionary"] = make_sampler(given.get("dictionary", "leverage"), given.pop("dictionary_size", None))
    if modelled:
        completion = {**PUBLISHED, "failure_probability": min(1.0 / max(budget, 2), 0.5)} if preset == "published" else {}
        default = "rbf" if problem in TABLES and preset == "published" else "learned"
        if name in ("sbpe", "bpe"):
            given = {"horizon": budget, **given}
            completion = DRAWN if problem == "gp-draw" else ELIMINATION
            if problem not in (*TABLES, "gp-draw"):
                given = {"width": 3.0, **given}  # no bound is proven for a learned prior
            else:
                default = "rbf"
        of_the_policy = accepted | {"kernel", "lengthscale"}
        completion = {key: value for key, value in completion.items() if key in of_the_policy}
        given = _with_kernel(given, preset=completion, default=default)
    chosen: Policy = policy(**given)
    return chosen


def _with_kernel(given: dict[str, Any], *, preset: Mapping[str, Any], default: str) -> dict[str, Any]:
    """Return options with a preset, which a learned kernel switches off, and the ``default`` kernel."""
    learned = given.get("kernel", default) == "learned"
    preset = {} if learned else dict(preset)
    if {"kernel", "lengthscale", "outputscale"} & set(given):
        preset.pop("lengthscale", None)
    merged: dict[str, Any] = {"kernel": "learned", **preset, **given} if learned else {**preset, **given}
    merged["covar_module"] = make_kernel(
        merged.pop("kernel"), lengthscale=merged.pop("lengthscale", None), outputscale=merged.pop("outputscale", None)
    )
    precision = check_choice("precision", merged.pop("precision", "float64"), tuple(PRECISIONS))
    return {**merged, "sweep_dtype": PRECISIONS[precision]}


def given_settings(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the settings of a policy among the options of a command: model and dictionary, and all others as text.

    Raises:
        ValueError: As :func:`split_texts` does.
    """
    translated = [option for field in ("covar_module", "sweep_dtype", "dictionary") for option in OPTIONS_OF[field]]
    texts = [f"{name}={options[name]}" for name in SETTINGS if options.get(name) is not None]
    return (
        {name: options[name] for name in translated if options.get(name) is not None},
        split_texts([*texts, *(options["set_"] or [])]),
    )


def split_texts(texts: Sequence[str]) -> dict[str, str]:
    """Return the settings in the texts of ``--set``: name -> value.

    Raises:
        ValueError: If a text has another form, or a name is set twice.
    """
    values: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        name = name.strip().replace("-", "_")
        if not equals or not name:
            raise ValueError(f"expected --set name=value, as in --set stop_rule=local, got {text!r}")
        if name in values:
            raise ValueError(f"{flag(name)} is set twice; drop one")
        values[name] = value.strip()
    return values


def read_settings(texts: Mapping[str, str], *kinds: type) -> dict[str, Any]:
    """Return settings of a policy from text.

    Args:
        texts: Name -> value as text.
        kinds: The class of the policy, and classes whose settings it takes too.

    Raises:
        ValueError: If no class has such a setting, an option of its own sets it, or its type does not admit the value.
    """
    read: dict[str, Any] = {}
    for name, text in texts.items():
        if options := [option for field, options in OPTIONS_OF.items() if name in (field, *options) for option in options]:
            raise ValueError(f"{name} is set by {', '.join(map(flag, options))}; use that in place of --set")
        types_of = [typing.get_type_hints(kind)[name] for kind in kinds if _is_setting(name, kind)]
        if not types_of:
            raise _unknown(name, kinds[0])
        read[name] = _value(name, text, types_of[0])
    return read


def settings_of(kind: type) -> dict[str, tuple[str, Any]]:
    """Return the settings of a policy that ``--set`` takes: name -> (admitted values in words, default)."""
    hints = typing.get_type_hints(kind)
    return {
        field.name: (_admitted(hints[field.name]), field.default) for field in fields(kind) if _is_setting(field.name, kind)
    }


def flag(name: str) -> str:
    """Return how a setting is written on the command line."""
    return "--" + name.replace("_", "-") if name in FLAGS else f"--set {name}"


def _is_setting(name: str, kind: type) -> bool:
    """Return whether a class has a field that can be written as text."""
    has = name not in OPTIONS_OF and name in {field.name for field in fields(kind) if field.init}
    return has and _admitted(typing.get_type_hints(kind)[name]) not in ("", "none")


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
        f"it takes {', '.join(options)}" + (f"; with --set {', '.join(others)}" if others else "")
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


def _value(name: str, text: str, hint: Any) -> Any:
    """Return the value that a text stands for.

    Raises:
        ValueError: If the type does not admit it.
    """
    kinds = _alternatives(hint)
    if text == "none" and type(None) in kinds:
        return None
    if text in _choices(hint):
        return text
    if text in ("yes", "no") and bool in kinds:
        return text == "yes"
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
    raise ValueError(f"expected {flag(name)} to be {_admitted(hint)}, got {text!r}")
