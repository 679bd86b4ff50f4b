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
from sparse_bo.gp import dtc
from sparse_bo.linalg.cholesky import safe_cholesky


@dataclass(frozen=True, eq=False)
class FixedDictionary:
    """The paper's update (BBKB Alg. 1, lines 6–8): ``V ← V + z zᵀ``, dictionary and residual unchanged.

    With ``e(x) = A⁻¹u(x)`` and ``E`` the rows ``√count · e`` of the picks, Woodbury leaves ``e(x)ᵀe(x') − v(x)ᵀv(x')``,
    ``v(x) = L⁻¹E e(x)``, where ``L Lᵀ = I + E Eᵀ``: grown by block with what the block has computed, no factorisation of size
    r. ``A`` is the identity until more picks are held than there are features; then they become a new ``A``.
    """

    posterior: ArmPosterior
    root: Tensor | None
    """``r x r`` lower: ``A``; ``None`` for the identity."""
    rows: Tensor
    """``p x r``: ``E``."""
    factor: Tensor
    """``p x p`` lower: ``L``."""

    def block(self, indices: Tensor) -> Block:
        """O(b r² + b r (p + b) + p² b)."""
        residual, start, embedding, columns = self._solve(indices)
        covariance = embedding @ embedding.T
        if len(columns):
            covariance -= columns.T @ columns
        covariance.diagonal().copy_(_left(embedding, columns))  # to the last bit what leverages() gives
        return Block(covariance, residual, start, torch.cat([embedding, columns.T], dim=1))

    def leverages(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """O(b r² + b r p + p² b)."""
        residual, _, embedding, columns = self._solve(indices)
        return _left(embedding, columns), residual

    def _solve(self, indices: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return residuals, leverages at the start (``b`` each), ``e`` (``b x r``) and ``v`` (``p x b``) of some arms."""
        residual, embedding = self._at_start(indices)
        start = residual + embedding.square().sum(dim=-1)
        if self.root is not None:
            embedding = torch.linalg.solve_triangular(self.root, embedding.T, upper=False).T
        columns = self.rows @ embedding.T
        if len(columns):
            columns = torch.linalg.solve_triangular(self.factor, columns, upper=False)
        return residual, start, embedding, columns

    def _at_start(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Return residuals (``b``) and ``u`` (``b x r``) of some arms."""
        features, embedding = _embed(self.posterior, indices)
        prior = self.posterior.prior
        return dtc.residual(features, prior.prior_variance[indices]) / prior.regularization, embedding

    def start(self, indices: Tensor) -> Tensor:
        """O(b r²)."""
        residual, embedding = self._at_start(indices)
        return residual + embedding.square().sum(dim=-1)

    def absorb(self, indices: Tensor, block: Block, positions: Tensor, counts: Tensor) -> FixedDictionary:
        """O(q p + q³); once in r picks O(r³)."""
        scale, (held, r) = counts.sqrt().unsqueeze(-1), self.rows.shape
        taken = block.embedding[positions] * scale
        rows = torch.cat([self.rows, taken[:, :r]])
        if len(rows) > r:
            return self._renewed(rows)
        eye = torch.eye(len(positions), dtype=scale.dtype, device=scale.device)
        # The identity and something positive semi-definite: nothing here can fail, so nobody waits to hear that it did not.
        corner = torch.linalg.cholesky_ex(eye + scale * block.covariance[positions][:, positions] * scale.T).L
        factor = self.factor.new_zeros(len(rows), len(rows))
        factor[:held, :held], factor[held:, :held], factor[held:, held:] = self.factor, taken[:, r:], corner
        return replace(self, rows=rows, factor=factor)

    def _renewed(self, rows: Tensor) -> FixedDictionary:
        """Return the same with all picks, ``rows``, in a new ``A``. O(p r² + r³)."""
        eye = torch.eye(rows.shape[-1], dtype=rows.dtype, device=rows.device)
        root = safe_cholesky(eye + rows.T @ rows).factor
        root = root if self.root is None else self.root @ root
        return replace(self, root=root, rows=rows[:0], factor=self.factor[:0, :0])

    def given(self, indices: Tensor, counts: Tensor) -> FixedDictionary:
        """O(p r² + p² r), for more picks than features O(p r² + r³)."""
        if len(indices) <= self.rows.shape[-1]:
            return self.absorb(indices, self.block(indices), torch.arange(len(indices), device=indices.device), counts)
        _, _, embedding, _ = self._solve(indices)
        return self._renewed(torch.cat([self.rows, embedding * counts.sqrt().unsqueeze(-1)]))

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


def _left(embedding: Tensor, columns: Tensor) -> Tensor:
    """Return the reducible leverages, ``b``, of arms with embeddings ``b x r`` after the picks of ``columns`` (``p x b``)."""
    start = embedding.square().sum(dim=-1)
    return (start - columns.square().sum(dim=0)).clamp_min(0.0) if len(columns) else start


def _reduced(start: Tensor, columns: Tensor) -> Tensor:
    """Return the leverages left after the picks behind ``columns`` (``p x b``), ``b``."""
    return (start - columns.square().sum(dim=0)).clamp_min(0.0)


def conditioner_of(posterior: ArmPosterior, in_batch: InBatch) -> Conditioner:
    """Return the conditioner of an in-batch update, with no picks."""
    return fixed_dictionary(posterior) if in_batch == "fixed" else process(posterior)


def fixed_dictionary(posterior: ArmPosterior) -> FixedDictionary:
    """Return the fixed-dictionary conditioner with no picks."""
    like, r = posterior.observed_leverages, posterior.state.factor.rank
    return FixedDictionary(posterior, None, like.new_zeros(0, r), like.new_zeros(0, 0))


def process(posterior: ArmPosterior) -> Process:
    """Return the process conditioner with no picks."""
    like = posterior.observed_leverages
    return Process(posterior, torch.empty(0, dtype=torch.long, device=like.device), like.new_zeros(0, 0))


def _embed(posterior: ArmPosterior, indices: Tensor) -> tuple[Tensor, Tensor]:
    """Return the features ``z`` and ``u = L_B⁻¹ z/√λ`` of some arms, each ``b x r``."""
    features = posterior.state.factor.features(posterior.kernel_rows(indices))
    fit = posterior.fit
    solved = features @ fit.form.inverse_root.T if fit.exact.one_product else dtc.whitened(fit.state, features)
    return features, solved / fit.prior.regularization**0.5


def _start_covariance(posterior: ArmPosterior, rows: Tensor, cols: Tensor) -> Tensor:
    """Return the joint covariance at the batch start between two lists of arms, in leverage units, ``|rows| x |cols|``."""
    prior, factor = posterior.prior, posterior.state.factor
    kernel = prior.covariance.cross(prior.arms[rows], prior.arms[cols])
    left, right = factor.features(posterior.kernel_rows(rows)), factor.features(posterior.kernel_rows(cols))
    return dtc.covariance(posterior.state, left, right, kernel) / prior.regularization
