"""Two ways to condition an arm posterior on picks whose results are still out (algorithms §1): fixed dictionary, and process.

Both work on *leverage units* (covariance / λ, noise 1 per pick) and answer one question: given the picks so far, what is
the joint covariance of a few arms? Notation: ``u(x) = L_B⁻¹ z(x)/√λ`` (r), so ``u(x)ᵀu(x') = z(x)ᵀB⁻¹z(x')/λ``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sparse_bo.arms.conditioner import Block, Conditioner, InBatch
from sparse_bo.arms.posterior import ArmPosterior
from sparse_bo.core import dtc
from sparse_bo.core.linalg import safe_cholesky


@dataclass(frozen=True, eq=False)
class FixedDictionary:
    """The paper's update (BBKB Alg. 1, lines 6–8): ``V ← V + z zᵀ``, dictionary and residual unchanged."""

    posterior: ArmPosterior
    gram: Tensor | None
    """``r x r``: ``I + Σ u uᵀ`` over the picks; ``None`` before the first."""

    def block(self, indices: Tensor) -> Block:
        """O(b r² + r³ + b² r)."""
        residual, embedding, solved = self._solve(indices)
        covariance = solved.T @ solved
        covariance.diagonal().copy_(solved.square().sum(dim=0))  # to the last bit what leverages() gives
        return Block(covariance, residual, residual + embedding.square().sum(dim=-1), embedding)

    def leverages(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """O(b r² + r³)."""
        residual, _, solved = self._solve(indices)
        return solved.square().sum(dim=0), residual

    def _solve(self, indices: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        features, embedding = _embed(self.posterior, indices)
        prior = self.posterior.prior
        residual = dtc.residual(features, prior.prior_variance[indices]) / prior.regularization
        if self.gram is None:
            return residual, embedding, embedding.T
        return residual, embedding, torch.linalg.solve_triangular(safe_cholesky(self.gram).factor, embedding.T, upper=False)

    def start(self, indices: Tensor) -> Tensor:
        """O(b r²)."""
        features, embedding = _embed(self.posterior, indices)
        prior = self.posterior.prior
        residual = dtc.residual(features, prior.prior_variance[indices]) / prior.regularization
        return residual + embedding.square().sum(dim=-1)

    def absorb(self, indices: Tensor, block: Block, positions: Tensor, counts: Tensor) -> FixedDictionary:
        """O(q r²)."""
        return self._added(block.embedding[positions], counts)

    def given(self, indices: Tensor, counts: Tensor) -> FixedDictionary:
        """O(p r²)."""
        return self._added(_embed(self.posterior, indices)[1], counts)

    def _added(self, rows: Tensor, counts: Tensor) -> FixedDictionary:
        gram = self.gram
        if gram is None:
            gram = torch.eye(rows.shape[-1], dtype=rows.dtype, device=rows.device)
        return replace(self, gram=gram + (rows * counts.unsqueeze(-1)).T @ rows)

    def start_covariance(self, indices: Tensor) -> tuple[Tensor, Tensor | None]:
        """``z(x)ᵀB⁻¹z(q)/λ = k_D(x)ᵀ P B⁻¹ z(q)/λ``. O(m r q)."""
        state = self.posterior.state
        features = state.factor.features(self.posterior.kernel_rows(indices))
        solved = torch.cholesky_solve(features.T, state.gram_cholesky)
        return state.factor.lift(solved) / self.posterior.prior.regularization, None


@dataclass(frozen=True, eq=False)
class Process:
    """Condition the DTC *process*: picked arms join the representation, so their residual shrinks too.

    Kept as Cholesky columns of the picks' covariance, grown by block: ``L ← [[L, 0], [V_Qᵀ, L_Q]]`` with
    ``V_Q = L⁻¹C(P, Q)`` and ``L_Q L_Qᵀ = C_t(Q, Q) + diag(1/count)``.
    """

    posterior: ArmPosterior
    picked: Tensor
    """``p`` arms picked, block by block (an arm picked in two blocks stands there twice)."""
    factor: Tensor
    """``p x p`` lower."""

    def block(self, indices: Tensor) -> Block:
        """O(b (b + p)(r + d) + p² b)."""
        columns = self._columns(indices)
        covariance = _start_covariance(self.posterior, indices, indices) - columns.T @ columns
        start = self.start(indices)
        covariance = 0.5 * (covariance + covariance.T)
        covariance.diagonal().copy_(_reduced(start, columns))  # to the last bit what leverages() gives
        return Block(covariance, torch.zeros_like(start), start, columns.T)

    def leverages(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """O(b p (r + d) + p² b + b r²)."""
        reduced = _reduced(self.start(indices), self._columns(indices))
        return reduced, torch.zeros_like(reduced)

    def start(self, indices: Tensor) -> Tensor:
        """In the two-term form. O(b r²)."""
        prior, state = self.posterior.prior, self.posterior.state
        features = state.factor.features(self.posterior.kernel_rows(indices))
        return dtc.variance(state, features, prior.prior_variance[indices]) / prior.regularization

    def _columns(self, indices: Tensor) -> Tensor:
        """Return ``L⁻¹ C(P, indices)``, ``p x b``."""
        return torch.linalg.solve_triangular(self.factor, _start_covariance(self.posterior, self.picked, indices), upper=False)

    def absorb(self, indices: Tensor, block: Block, positions: Tensor, counts: Tensor) -> Process:
        """O(q³ + p q)."""
        noisy = block.covariance[positions][:, positions] + torch.diag(1.0 / counts)
        corner = safe_cholesky(noisy).factor
        above = corner.new_zeros(len(self.picked), len(positions))
        factor = torch.cat(
            [torch.cat([self.factor, above], dim=1), torch.cat([block.embedding[positions], corner], dim=1)], dim=0
        )
        return replace(self, picked=torch.cat([self.picked, indices[positions]]), factor=factor)

    def given(self, indices: Tensor, counts: Tensor) -> Process:
        """O(p³ + p² (r + d))."""
        return self.absorb(indices, self.block(indices), torch.arange(len(indices), device=indices.device), counts)

    def start_covariance(self, indices: Tensor) -> tuple[Tensor, Tensor | None]:
        """``[k(x,q) − k_D(x)ᵀ P (I − B⁻¹) z(q)]/λ``. O(m r q)."""
        prior, state = self.posterior.prior, self.posterior.state
        features = state.factor.features(self.posterior.kernel_rows(indices)).T
        shrunk = torch.cholesky_solve(features, state.gram_cholesky) - features
        return state.factor.lift(shrunk) / prior.regularization, prior.arms[indices]


def _reduced(start: Tensor, columns: Tensor) -> Tensor:
    """Return the leverages left after the picks behind ``columns`` (``p x b``), ``b``."""
    return (start - columns.square().sum(dim=0)).clamp_min(0.0)


def conditioner_of(posterior: ArmPosterior, in_batch: InBatch) -> Conditioner:
    """Return the conditioner of an in-batch update, with no picks."""
    return fixed_dictionary(posterior) if in_batch == "fixed" else process(posterior)


def fixed_dictionary(posterior: ArmPosterior) -> FixedDictionary:
    """Return the fixed-dictionary conditioner with no picks."""
    return FixedDictionary(posterior, None)


def process(posterior: ArmPosterior) -> Process:
    """Return the process conditioner with no picks."""
    like = posterior.observed_leverages
    return Process(posterior, torch.empty(0, dtype=torch.long, device=like.device), like.new_zeros(0, 0))


def _embed(posterior: ArmPosterior, indices: Tensor) -> tuple[Tensor, Tensor]:
    """Return the features ``z`` and ``u = L_B⁻¹ z/√λ`` of some arms, each ``b x r``."""
    features = posterior.state.factor.features(posterior.kernel_rows(indices))
    return features, dtc.whitened(posterior.state, features) / posterior.prior.regularization**0.5


def _start_covariance(posterior: ArmPosterior, rows: Tensor, cols: Tensor) -> Tensor:
    """Return the joint covariance at the batch start between two lists of arms, in leverage units, ``|rows| x |cols|``."""
    prior, factor = posterior.prior, posterior.state.factor
    kernel = prior.covariance.cross(prior.arms[rows], prior.arms[cols])
    left, right = factor.features(posterior.kernel_rows(rows)), factor.features(posterior.kernel_rows(cols))
    return dtc.covariance(posterior.state, left, right, kernel) / prior.regularization
