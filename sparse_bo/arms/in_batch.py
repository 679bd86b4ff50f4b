"""An arm posterior conditioned on picks whose results are pending, by either in-batch update.

Everything is in *leverage units* (covariance / λ, noise 1 per pick). With ``P`` the picks, ``c`` their counts and ``C`` the
reducible covariance at the batch start, ``L Lᵀ = I + √c C(P, P) √c`` and the gains ``v(x) = L⁻¹ √c C(P, x)`` leave

    covariance(x, x') = C(x, x') − v(x)ᵀ v(x')  (+ the residual (k − zᵀz)/λ of x = x' where picks do not reduce it)

The *process* update takes the posterior covariance for ``C``. The *fixed-dictionary* update (BBKB Alg. 1, lines 6–8: ``V ← V +
z zᵀ``) takes its explained part ``u(x)ᵀu(x')``, ``u(x) = L_B⁻¹ z(x)/√λ`` (r), so that the residual stays.

On a box pending points are conditioned on by :meth:`sparse_bo.gp.posterior.Posterior.condition`, over arms with expected
improvement by :class:`sparse_bo.policies.improvement.arm_acquisition.ConditionedArms`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from sparse_bo.arms.contenders import STEP, Collector, Contenders, Refusal
from sparse_bo.arms.posterior import ArmFit, ContenderPosterior
from sparse_bo.arms.sweep import sweep_rows
from sparse_bo.domains.sharded import ShardedArms, alone, first_here, group_of
from sparse_bo.gp import dtc
from sparse_bo.gp.posterior import CholeskyRoot
from sparse_bo.linalg.cholesky import safe_cholesky, solve_lower
from sparse_bo.linalg.chunking import row_slices

InBatch = Literal["fixed", "process"]
"""How a pending pick lowers variances: by the fixed-dictionary update, or by conditioning the process."""


class Block(NamedTuple):
    """The joint posterior of a few arms, given the picks so far."""

    covariance: Tensor
    """``b x b`` part that picks reduce (leverage units)."""
    residual: Tensor
    """``b`` part that they do not (leverage units, ≥ 0)."""
    start: Tensor
    """``b`` leverages at the batch start."""
    embedding: Tensor
    """``b x c``: rows from which covariances with other arms are computed."""
    gains: Tensor
    """``p x b``: ``v``."""


@dataclass(frozen=True, eq=False)
class Conditioner:
    """A posterior conditioned on picks. A value: :meth:`absorb` returns a new one."""

    fit: ArmFit
    """At the batch start."""
    in_batch: InBatch
    picked: Tensor
    """``p`` arms picked, block by block (an arm picked in two blocks stands there twice)."""
    weights: Tensor
    """``p``: ``√c``."""
    rows: Tensor
    """``p x c`` embeddings of the picks, scaled by ``√c``."""
    root: CholeskyRoot
    """``L``."""
    renewed: Tensor | None = None
    """``r x r`` lower ``A`` of the fixed-dictionary update; ``None``: the identity.

    Once more picks are held than features, they become a new ``A``: embeddings are ``A⁻¹u`` from then on, and ``p = 0``.
    """

    @staticmethod
    def at_start(fit: ArmFit, in_batch: InBatch) -> Conditioner:
        """Return the posterior at a batch start, without picks."""
        like, width = fit.observed_leverages, fit.state.factor.rank * (1 if in_batch == "fixed" else 2)
        none = torch.empty(0, dtype=torch.long, device=like.device)
        root = CholeskyRoot(like.new_zeros(0, 0))
        return Conditioner(fit, in_batch, none, like.new_zeros(0), like.new_zeros(0, width), root)

    def block(self, indices: Tensor) -> Block:
        """Return the joint posterior of the arms ``indices`` (``b``). O(b r² + b (p + b)(r + d) + p² b)."""
        start, residual, reducible, embedding, gains = self._at(indices)
        covariance = self._covariance(embedding, indices, embedding, indices)
        if len(gains):
            covariance -= gains.T @ gains
        if self.in_batch == "process":
            covariance = 0.5 * (covariance + covariance.T)
        covariance.diagonal().copy_(_reduced(reducible, gains))  # to the last bit as in leverages()
        return Block(covariance, residual, start, embedding, gains)

    def leverages(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Return the leverages of some arms, reducible and residual (``b`` each). O(b r² + b p (r + d) + p² b)."""
        _, residual, reducible, _, gains = self._at(indices)
        return _reduced(reducible, gains), residual

    def start(self, indices: Tensor) -> Tensor:
        """Return the leverages of some arms at the batch start, ``b``. O(b r²)."""
        residual, _, u = self._features(indices)
        return residual + u.square().sum(dim=-1)

    def absorb(self, indices: Tensor, block: Block, positions: Tensor, counts: Tensor) -> Conditioner:
        """Add picks: the arms at ``positions`` (``q``, distinct) of ``indices``, with joint posterior, each ``counts`` times.

        O(q p + q³); the fixed-dictionary update once in r picks O(r³).
        """
        scale = counts.sqrt()
        rows = torch.cat([self.rows, block.embedding[positions] * scale.unsqueeze(-1)])
        if self.in_batch == "fixed" and len(rows) > rows.shape[-1]:
            return self._renew(rows)
        noisy = block.covariance[positions][:, positions] * scale * scale.unsqueeze(-1)
        noisy.diagonal().add_(1.0)
        # Fixed: the identity and a Gram matrix have a factor, so no host waits to check it.
        corner = torch.linalg.cholesky_ex(noisy).L if self.in_batch == "fixed" else safe_cholesky(noisy)
        root = self.root.extended(block.gains[:, positions] * scale, corner)
        picked, weights = torch.cat([self.picked, indices[positions]]), torch.cat([self.weights, scale])
        return replace(self, picked=picked, weights=weights, rows=rows, root=root)

    def given(self, indices: Tensor, counts: Tensor) -> Conditioner:
        """Add picks made elsewhere: distinct arms ``indices`` (``p``), each picked ``counts`` times (``p``). O(p r² + p³)."""
        if self.in_batch == "fixed" and len(indices) > self.rows.shape[-1]:
            embedding = self._at(indices)[3]
            return self._renew(torch.cat([self.rows, embedding * counts.sqrt().unsqueeze(-1)]))
        return self.absorb(indices, self.block(indices), torch.arange(len(indices), device=indices.device), counts)

    def start_covariance(self, indices: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return ``(W, S)``, the reducible covariance *at the batch start* with the arms ``indices`` (``q``). O(m r q).

        That of arm x is ``k_D(x)ᵀ W`` (``W`` is ``m x q``), plus ``k(x, S)/λ`` where ``S`` (``q x d``) is not ``None``.
        """
        prior, state = self.fit.prior, self.fit.state
        features = state.factor.features(self.fit.kernel_rows(indices)).T
        solved = torch.cholesky_solve(features, state.gram_cholesky)
        if self.in_batch == "fixed":
            return state.factor.lift(solved) / prior.regularization, None
        return state.factor.lift(solved - features) / prior.regularization, prior.arms[indices]

    def _features(self, indices: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return residuals (``b``), ``z`` and ``u`` (``b x r`` each) of some arms at the batch start."""
        fit, prior = self.fit, self.fit.prior
        features = fit.state.factor.features(self.fit.kernel_rows(indices))
        solved = features @ fit.form.inverse_root.T if fit.exact.one_product else dtc.whitened(fit.state, features)
        residual = dtc.residual(features, prior.variances_at(indices)) / prior.regularization
        return residual, features, solved / prior.regularization**0.5

    def _at(self, indices: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Return start and residual and reducible leverages (``b`` each), embeddings (``b x c``) and gains (``p x b``)."""
        residual, features, u = self._features(indices)
        start = residual + u.square().sum(dim=-1)
        if self.in_batch == "process":
            embedding = torch.cat([features / self.fit.prior.regularization**0.5, u], dim=-1)  # [z/√λ, u]
            reducible, residual = start, torch.zeros_like(start)
        else:
            embedding = u if self.renewed is None else solve_lower(self.renewed, u.T).T
            reducible = embedding.square().sum(dim=-1)
        gains = embedding.new_zeros(0, len(indices))
        if len(self.rows):
            gains = self.root.columns(self._covariance(self.rows, self.picked, embedding, indices, weights=self.weights))
        return start, residual, reducible, embedding, gains

    def _covariance(
        self, left: Tensor, rows: Tensor, right: Tensor, columns: Tensor, *, weights: Tensor | None = None
    ) -> Tensor:
        """Return the reducible covariance at the batch start from embeddings, ``a x b``; rows scaled by ``weights``."""
        if self.in_batch == "fixed":
            return left @ right.T
        prior, r = self.fit.prior, left.shape[-1] // 2
        kernel = prior.covariance.cross(prior.arms[rows], prior.arms[columns]) / prior.regularization
        kernel = kernel if weights is None else kernel * weights.unsqueeze(-1)
        return kernel - left[:, :r] @ right[:, :r].T + left[:, r:] @ right[:, r:].T

    def _renew(self, rows: Tensor) -> Conditioner:
        """Return the same with all picks, ``rows``, in a new ``A``. O(p r² + r³)."""
        eye = torch.eye(rows.shape[-1], dtype=rows.dtype, device=rows.device)
        renewed = safe_cholesky(eye + rows.T @ rows)
        renewed = renewed if self.renewed is None else self.renewed @ renewed
        root = CholeskyRoot(self.root.lower[:0, :0])
        return replace(self, renewed=renewed, rows=rows[:0], root=root, picked=self.picked[:0], weights=self.weights[:0])


def _reduced(reducible: Tensor, gains: Tensor) -> Tensor:
    """Return the leverages, ``b``, after the picks behind ``gains`` (``p x b``)."""
    return (reducible - gains.square().sum(dim=0)).clamp_min(0.0) if len(gains) else reducible


def contenders_after(posterior: ContenderPosterior, conditioner: Conditioner, *, refuse: Refusal | None = None) -> Contenders:
    """Return the arms with the highest scores *now*, when the contenders of the batch start may no longer include the best.

    ``posterior`` is that of the batch start; the arms that ``refuse`` marks are left out, as long as another is left. A pass
    over all arms, of every rank over its own: O(a m (d + r)).
    """
    arms, here, m = posterior.prior.arms, posterior.prior.here, posterior.dictionary.m
    if isinstance(arms, ShardedArms) and conditioner.in_batch == "process":
        arms.cache(conditioner.picked)  # they need not be among the contenders any more
    with group_of(arms).shielded(STEP), alone(arms):
        first, count = first_here(arms), len(here.arms)
        collector = Collector(here.capacity, like=posterior.observed_leverages)
        for part in row_slices(count, chunk=sweep_rows(here, m=2 * m, step=m) if count else 1):
            indices = torch.arange(first + part.start, first + part.stop, device=arms.device)
            reducible, residual = conditioner.leverages(indices)
            scores = posterior.swept_means(indices) + posterior.width * (reducible + residual).clamp_min_(0.0).sqrt_()
            if refuse is not None:
                scores = scores.masked_fill_(refuse(indices), -math.inf)
            collector.add(first + part.start, scores, torch.full_like(scores, -math.inf))
        extremes = posterior.contenders.extremes
        found = Contenders(*collector.finish(), extremes)  # no bar: nothing is left out for a low score
    contenders = posterior.contenders_of_all_ranks(found)
    assert contenders.indices is not None
    if not len(contenders.indices):  # every arm is refused
        return contenders_after(posterior, conditioner)
    return replace(contenders, extremes=extremes)
