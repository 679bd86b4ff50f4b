"""Problems, policies, kernels and samplers by name, with the presets of the built-in problems."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

import torch
from gpytorch.kernels import Kernel, MaternKernel, RBFKernel, ScaleKernel

from sparse_bo import dictionary, policies, problems
from sparse_bo.arms.moments import PRECISIONS
from sparse_bo.cli import names
from sparse_bo.cli.names import KERNELS, MATERN, PRESETS, PROBLEMS, SAMPLERS
from sparse_bo.cli.options import OPTIONS_OF, flag, taken_by
from sparse_bo.dictionary import RecursiveRLSSampler, Sampler
from sparse_bo.planning.costs import available_bytes
from sparse_bo.planning.plans import bytes_text
from sparse_bo.policies import Policy
from sparse_bo.problems.base import BoxProblem, Problem
from sparse_bo.problems.names import SCALINGS, TABLES
from sparse_bo.problems.synthetic import SYNTHETIC
from sparse_bo.validation import check_choice, check_positive

POLICIES: Mapping[str, type] = {name: getattr(policies, written.name) for name, written in names.POLICIES.items()}
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
ELIMINATING = ("sbpe", "bpe")
ELIMINATION = {**PUBLISHED, "regularization": 0.01, "width": "tight", "failure_probability": 0.05}
"""S-BPE and BPE on tables: kernel, F and ξ² of BBKB §4, but λ = ξ² (free in S-BPE) and the tight constant of F: with λ = 0.2
and the paper's constant no arm is ever eliminated within 10⁴ evaluations."""
DRAWN = {"kernel": "rbf", "lengthscale": 0.3, "regularization": 0.01, "width": "gaussian", "failure_probability": 0.05}
"""S-BPE and BPE on gp-draw: the prior that the objective is drawn from, so that what the bounds assume is true."""
FEATURES = 2048
"""Cosines in the sum that a draw of gp-draw is."""


def make_problem(name: str, *, scaling: str | None, noise_sd: float, arms: int, dims: int, seed: int) -> Problem | BoxProblem:
    """Return a problem by name.

    Args:
        name: One of :data:`sparse_bo.cli.names.PROBLEMS`.
        scaling: Of the inputs of the two data sets (default ``"unit"``); a draw lives in the unit cube.
        noise_sd: Of an evaluation.
        arms: Number of arms of a draw.
        dims: Inputs of a draw.
        seed: Of a draw.

    Raises:
        ValueError: If a name or number is out of range, or a scaling is asked of a draw or a box.
        MemoryError: If the arms of a draw do not fit into memory.
    """
    check_choice("problem", name, PROBLEMS)
    if name in SYNTHETIC:
        if scaling is not None:
            raise ValueError(f"{name} is searched in its own box; drop the scaling {scaling!r}")
        return problems.synthetic(name, noise_sd=noise_sd)
    if name == "gp-draw":
        if scaling not in (None, "none", "unit"):
            raise ValueError(f"gp-draw lives in the unit cube; drop the scaling {scaling!r}")
        check_room(8 * (arms * (dims + 1) + FEATURES * dims), f"gp-draw with --arms {arms} --dims {dims}")
        return problems.gp_draw(arms=arms, dims=dims, noise_sd=noise_sd, seed=seed, features=FEATURES)
    chosen = check_choice("scaling", scaling or "unit", SCALINGS)
    make = problems.cadata if name == "cadata" else problems.abalone
    return make(scaling=chosen, noise_sd=noise_sd)  # type: ignore[arg-type]  # checked one line above


def check_room(needed: int, what: str) -> None:
    """Check that so many bytes are free in the machine's memory.

    Raises:
        MemoryError: If they are not.
    """
    free = available_bytes(torch.device("cpu"))
    if needed > free:
        raise MemoryError(f"{what} needs {bytes_text(needed)}, and {bytes_text(free)} are free; choose fewer")


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
        name: One of :data:`sparse_bo.cli.names.SAMPLERS`.
        size: Number of points.

    Raises:
        ValueError: If the name is unknown, or the size is missing, not positive or not used.
        TypeError: If the size is not an integer.
    """
    check_choice("dictionary", name, SAMPLERS)
    if name == "leverage":
        if size is not None:
            raise ValueError("a leverage dictionary finds its own size (--oversampling scales it); drop --dictionary-size")
        return None
    if name == "recursive-rls":
        return RecursiveRLSSampler(size=size)
    if size is None:
        raise ValueError(f"--dictionary {name} needs --dictionary-size")
    return SIZED_SAMPLERS[name](size=size)


def make_policy(name: str, options: Mapping[str, Any], *, problem: str, budget: int, preset: str = "published") -> Policy:
    """Return a policy by name, with the problem's preset wherever ``options`` say ``None``.

    On Cadata and Abalone the published preset is :data:`PUBLISHED`; a learned kernel (the preset of the others) switches it
    off. Policies that eliminate have :data:`ELIMINATION`, on gp-draw :data:`DRAWN`, elsewhere bounds of three standard
    deviations; and the budget as their horizon: what they promise, they promise for a kernel that is given.

    Args:
        name: A key of :data:`POLICIES`.
        options: Command-line choices by field name, and ``kernel``, ``lengthscale``, ``outputscale``, ``precision``.
        problem: Whose preset to use.
        budget: δ = 1/budget in the published preset.
        preset: One of :data:`sparse_bo.cli.names.PRESETS`, for the two data sets.

    Raises:
        ValueError: If the policy has no such option, or a value does not fit.
        TypeError: If a value has the wrong kind.
    """
    check_choice("policy", name, tuple(POLICIES))
    check_choice("preset", preset, PRESETS)
    policy = POLICIES[name]
    given = {key: value for key, value in options.items() if value is not None}
    accepted = {field.name for field in fields(policy)}
    modelled = "covar_module" in accepted
    known = accepted.union(*(options for field, options in OPTIONS_OF.items() if field in accepted))
    foreign = sorted(set(given) - known)
    if foreign:
        flags, taken = (", ".join(map(flag, options)) for options in (foreign, taken_by(names.POLICIES[name])))
        raise ValueError(f"policy {name!r} has no option {flags}; it takes {taken}")
    if {"dictionary", "dictionary_size"} & set(given):
        given["dictionary"] = make_sampler(given.get("dictionary", "leverage"), given.pop("dictionary_size", None))
    if modelled:
        completion = {**PUBLISHED, "failure_probability": min(1.0 / max(budget, 2), 0.5)} if preset == "published" else {}
        default = "rbf" if problem in TABLES and preset == "published" else "learned"
        if name in ELIMINATING:
            given = {"horizon": budget, **given}
            completion = DRAWN if problem == "gp-draw" else ELIMINATION
            if problem not in (*TABLES, "gp-draw"):
                given = {"width": 3.0, **given}  # a learned prior promises nothing, whatever the bounds are
            else:
                default = "rbf"
        of_the_policy = accepted | {"kernel", "lengthscale"}
        completion = {key: value for key, value in completion.items() if key in of_the_policy}
        given = _with_kernel(given, preset=completion, default=default)
    chosen: Policy = policy(**given)
    return chosen


def _with_kernel(given: dict[str, Any], *, preset: Mapping[str, Any], default: str) -> dict[str, Any]:
    """Complete options by a preset, which a learned kernel switches off, and by the ``default`` kernel."""
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
