"""``optimize_batch``: BoTorch's ``optimize_acqf`` with the variance-ratio rule in place of q."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Never

import torch
from botorch.acquisition import AcquisitionFunction
from botorch.models.model import Model
from torch import Tensor

from sparse_bo.acquisition import botorch_functions
from sparse_bo.acquisition.feasible import LinearConstraint, NonlinearConstraint, Refusal, check_feasible
from sparse_bo.acquisition.picking import BoxChooser, BoxSearch, Chooser, UpperConfidence, best_choice, cost, pick_until
from sparse_bo.acquisition.posteriors import ClosedForm, batch_posterior
from sparse_bo.arms import InBatch, StopRule
from sparse_bo.seeding import seeded
from sparse_bo.validation import check_choice, check_count, check_like, check_number, check_points, nearest

BoxRule = Literal["global", "gp-bucb", "single"]


def optimize_batch(
    model: Model,
    bounds: Tensor | None = None,
    *,
    acq_function: AcquisitionFunction | None = None,
    ratio_threshold: float = 2.0,
    max_q: int = 256,
    min_q: int = 0,
    stop_rule: BoxRule = "global",
    in_batch: InBatch = "process",
    beta: float = 4.0,
    choices: Tensor | None = None,
    X_pending: Tensor | None = None,
    num_restarts: int = 8,
    raw_samples: int = 512,
    options: Mapping[str, Any] | None = None,
    inequality_constraints: Sequence[LinearConstraint] | None = None,
    equality_constraints: Sequence[LinearConstraint] | None = None,
    nonlinear_inequality_constraints: Sequence[NonlinearConstraint] | None = None,
    fixed_features: Mapping[int, float] | None = None,
    post_processing_func: Callable[[Tensor], Tensor] | None = None,
    refuse: Refusal | None = None,
    generator: torch.Generator | None = None,
    **unknown: Never,  # so that type checkers refuse it, too
) -> tuple[Tensor, Tensor]:
    """Choose a batch one point after another, conditioning on each, until the variance ratio says that results are needed.

    With σ² the posterior variance at the batch start and λ the noise variance, the picks end with the first for which
    ``1 + Σ_s σ²(x_s)/λ > ratio_threshold``. Up to that pick no posterior variance anywhere has fallen, by the hallucinated
    observations, below ``1/ratio_threshold`` of what it was (Calandriello et al. 2020, BBKB Alg. 1 and Lemma 4; Desautels et
    al. 2014 for ``"gp-bucb"``): the point chosen last was chosen with bounds that are still valid.

    By default a pick maximises ``mean + √beta · √variance`` with means frozen (GP-BUCB), in closed form for
    :class:`~sparse_bo.SparseGP` and ``SingleTaskGP``: O(raw_samples · m r) once, then per pick a few searches of O(m r) per
    step with m dictionary points (all data of an exact GP), whatever the size of the batch. With ``choices`` it is the exact
    lazy argmax. Any other model is conditioned by its own ``condition_on_observations``.

    With ``acq_function``, each pick maximises it with the points before it in ``X_pending``. BoTorch's qUCB, qEI, qLogEI, qPI
    and qSimpleRegret on a model in closed form are sampled at the joint posterior of a point and the picks: O(m r + q r + q³)
    a value, searched as above but only until 20 steps or a relative change of 1e-4 (``options`` overrides). Any other
    function or model is maximised by ``optimize_acqf(q=1)``.

    Args:
        model: A BoTorch model with one output, no batch shape, and observation noise.
        bounds: ``2 x d`` finite lower and upper corner of a box.
        acq_function: An acquisition function of BoTorch, built on ``model``, that takes ``X_pending``, such as
            ``qLogExpectedImprovement(model, best_f=best_f)``. It is left as it was; points that it has pending already stay
            so, but only those of the argument ``X_pending`` count towards the ratio. ``None``: upper confidence bounds. Pass
            ``best_f`` as a float64 tensor: BoTorch rounds a Python number to float32. Sobol samples are drawn in float32,
            torch's default dtype, whatever it was when the function was built.
        ratio_threshold: C̃ ≥ 1. 1 gives batches of one; ``math.inf`` gives ``max_q`` points.
        max_q: The batch has at most so many points.
        min_q: The batch has at least so many points; ``min_q=8, max_q=8`` for eight idle workers. Points beyond the first that
            exceeds the ratio are conditioned on the others too, but variances may have fallen further than the ratio says.
        stop_rule: ``"global"`` (above), ``"gp-bucb"``: ``Π_s (1 + σ²(x_s)/λ) ≤ ratio_threshold``, or ``"single"``.
        in_batch: ``"process"``: condition the posterior process on each pick; ``"fixed"``: the paper's fixed-dictionary update
            (:class:`~sparse_bo.SparseGP` only), under which the residual of a picked point stays. For upper confidence bounds.
        beta: β ≥ 0 as in ``UpperConfidenceBound``: multiplies the variance under the root.
        choices: ``n x d`` candidates in place of ``bounds``; repeats of a choice within a batch are allowed.
        X_pending: ``p x d`` points without results yet: variances are conditioned on them, and their leverages count.
        num_restarts: Searches that are made for each pick.
        raw_samples: Points among which the searches find their starts.
        options: Options of the searches, as in ``gen_candidates_scipy`` (``maxiter``, ``ftol``, …); if ``optimize_acqf`` makes
            the searches, its ``options``.
        inequality_constraints: As in ``optimize_acqf``, on single points: ``(indices, coefficients, rhs)`` with ``Σ ≥ rhs``.
        equality_constraints: As ``inequality_constraints``, with ``=`` in place of ``≥``.
        nonlinear_inequality_constraints: ``(callable, True)`` with ``callable(x) ≥ 0`` for a point (``d``).
        fixed_features: Maps columns to the values that they are fixed to.
        post_processing_func: Applied to each pick (``… x 1 x d``), before it is conditioned on.
        refuse: A function from points (``n x d``) to ``n`` booleans, true for those not to pick, such as points where
            evaluations fail. If it refuses all samples of the box, none is refused. A search that ends in a refused point is
            discarded. For upper confidence bounds.
        generator: CPU generator, the only source of randomness; default: a new one with seed 0. torch's own is not touched.
        **unknown: Any other argument is refused.

    Returns:
        Points ``q x d``, and the acquisition value of each when it was picked (``q``). Without ``min_q`` nothing (``0 x d``) if
        the pending points alone exceed the ratio: results are needed first.

    Raises:
        TypeError: If an argument has the wrong kind, dtype or device; ``acq_function`` is not an instance.
        ValueError: If bounds, constraints, choices or settings are not valid, no point satisfies the constraints, or the
            acquisition function was built on another model, or is logarithmic and the outcomes exceed 1e77 (float32: 4e9).
        UnsupportedError: If the model cannot be conditioned, or the acquisition function takes no pending points.

    Example:
        >>> X_next, values = optimize_batch(model, bounds, ratio_threshold=2.0, max_q=256)
    """
    if unknown:
        name, known = next(iter(unknown)), inspect.signature(optimize_batch).parameters
        fix = "; max_q= and min_q= limit the batch" if name == "q" else nearest(name, known)
        raise TypeError(f"optimize_batch got an unexpected argument {name!r}{fix}")
    _check_settings(model, beta=beta, max_q=max_q, num_restarts=num_restarts, raw_samples=raw_samples, in_batch=in_batch)
    if str(stop_rule) == "local":
        raise ValueError(
            "the local stop rule needs the largest ratio over all points, which on a box is a search of its own at every "
            "pick; use stop_rule='global'"
        )
    check_choice("stop_rule", stop_rule, ("global", "gp-bucb", "single"))
    rule = StopRule(stop_rule, ratio_threshold)
    if check_count("min_q", min_q, minimum=0) > (most := 1 if stop_rule == "single" else max_q):
        source = "stop_rule='single'" if stop_rule == "single" else "max_q"
        raise ValueError(f"expected min_q of at most {most} ({source}), got {min_q}; change one of them")
    if refuse is not None and (choices is not None or acq_function is not None):
        raise ValueError("refuse is for upper confidence bounds on a box; leave choices= and acq_function= out, or filter them")
    feasible = None
    constraints = (inequality_constraints, equality_constraints, nonlinear_inequality_constraints, fixed_features)
    if choices is None:
        if bounds is None:
            raise ValueError("expected either bounds (2 x d corners of a box) or choices= (n x d candidates), got neither")
        feasible = check_feasible(bounds, *constraints, refuse)
        domain = feasible.box.bounds
    else:
        _check_choices(choices, bounds, [*constraints, post_processing_func])
        domain = choices
    _check_model(model, domain)
    if X_pending is not None and not (isinstance(X_pending, Tensor) and not len(X_pending)):
        check_points("X_pending", X_pending, like=domain)
    else:
        X_pending = None
    generator = _checked_generator(generator)
    function = None if acq_function is None else botorch_functions.check_acquisition(acq_function, model)
    posterior, spent = batch_posterior(model, in_batch=in_batch, like=domain), 0.0
    if function is not None:
        botorch_functions.check_scale(function, posterior, domain)
    if X_pending is not None:
        with torch.no_grad():
            points = posterior.prepare(X_pending)
            spent = cost(points, posterior, rule)
            for row in range(len(points) if function is None else 0):
                posterior = posterior.condition(points[row : row + 1])
        if not min_q and (spent > rule.allowance or rule.allowance <= 0.0):
            return domain[:0], domain.new_empty(0)
    end: dict[str, Any] = {"stop_rule": rule, "spent": spent, "max_q": max_q, "min_q": min_q}
    search = None
    if feasible is not None:
        search = BoxSearch(feasible, num_restarts, raw_samples, options or {}, post_processing_func, generator)
    if function is None:
        with torch.no_grad():
            pool = domain if search is None else search.feasible.sample(raw_samples, generator=generator)
            scores = UpperConfidence(posterior, pool, width=math.sqrt(beta))
        chooser: Chooser = best_choice(scores) if search is None else BoxChooser(scores, search)
        return pick_until(posterior, chooser, condition=True, **end)
    with botorch_functions.unchanged(function):
        with seeded(generator, device=domain.device):
            botorch_functions.draw_again(function)
            pending = botorch_functions.Pending(function, X_pending)
        if search is None:
            chooser = botorch_functions.choices_chooser(pending, domain)
        elif isinstance(posterior, ClosedForm) and botorch_functions.is_sampled(function, model, posterior):
            chooser = botorch_functions.sampled_chooser(pending, posterior, search)
        else:
            chooser = botorch_functions.box_chooser(pending, search)
        chooser = botorch_functions.seeded_chooser(chooser, generator, domain.device)
        return pick_until(posterior, chooser, condition=False, **end)


def _checked_generator(generator: torch.Generator | None) -> torch.Generator:
    if generator is None:
        return torch.Generator().manual_seed(0)
    if not isinstance(generator, torch.Generator) or generator.device.type != "cpu":
        got = generator.device if isinstance(generator, torch.Generator) else type(generator).__name__
        raise TypeError(f"expected generator to be a torch.Generator on the CPU, got {got}; use torch.Generator()")
    return generator


def _check_settings(model: Model, *, beta: float, max_q: int, num_restarts: int, raw_samples: int, in_batch: str) -> None:
    if not isinstance(model, Model):
        raise TypeError(f"expected a botorch Model such as sparse_bo.SparseGP, got {type(model).__name__}")
    for name, count in (("max_q", max_q), ("num_restarts", num_restarts), ("raw_samples", raw_samples)):
        check_count(name, count)
    check_choice("in_batch", in_batch, ("process", "fixed"))
    check_number("beta", beta, minimum=0.0)


def _check_choices(choices: Tensor, bounds: Tensor | None, for_boxes: Sequence[Any]) -> None:
    if bounds is not None:
        raise ValueError("expected either bounds or choices=, got both")
    if any(for_boxes):
        raise ValueError(
            "constraints, fixed_features and post_processing_func are for boxes; filter or change the choices beforehand"
        )
    check_points("choices", choices)


def _check_model(model: Model, domain: Tensor) -> None:
    """Check dtype, device and width of the domain against the model, as far as the model shows them."""
    for parameter in model.parameters():
        check_like("bounds or choices", domain, parameter)
    train_inputs = getattr(model, "train_inputs", None)
    if train_inputs and isinstance(train_inputs[0], Tensor):
        model.eval()
        original = getattr(model, "_original_train_inputs", None)
        width = (train_inputs[0] if original is None else original).shape[-1]
        if domain.shape[-1] != width:
            task = getattr(model, "_task_feature", None)  # BoTorch's own posterior takes points without it
            fix = "" if task is None else f"; with the task in column {task}, in a box fixed by fixed_features={{{task}: …}}"
            raise ValueError(
                f"expected bounds or choices with {width} columns, as the model's inputs, got {domain.shape[-1]}{fix}"
            )
