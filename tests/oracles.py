"""Dense, slow and obvious versions of what the package computes: each is a formula of the papers in a few lines.

All take kernel matrices over *pulls* (a repeated input is a repeated row) and know nothing of features, counts or chunks.
"""

from __future__ import annotations

import itertools
import math
from typing import NamedTuple

import torch
from torch import Tensor


def tolerance(dtype: torch.dtype, *, condition: float = 1.0) -> float:
    """Relative error that computing in ``dtype`` may cost when the linear systems have this condition number."""
    return 1e3 * torch.finfo(dtype).eps * max(condition, 1.0)


def rbf(X: Tensor, Y: Tensor, *, lengthscale: float = 0.5, scale: float = 1.0) -> Tensor:
    return scale * torch.exp(-0.5 * (X.unsqueeze(-2) - Y.unsqueeze(-3)).square().sum(dim=-1) / lengthscale**2)


class Gaussian(NamedTuple):
    mean: Tensor
    covariance: Tensor

    @property
    def variance(self) -> Tensor:
        return self.covariance.diagonal()


def exact_gp(K_XX: Tensor, K_XA: Tensor, K_AA: Tensor, y: Tensor, *, noise: float, prior_mean: float = 0.0) -> Gaussian:
    """Condition a GP on the pulls ``y`` at ``X``: posterior over ``A``."""
    solved = torch.linalg.solve(K_XX + noise * torch.eye(len(y), dtype=y.dtype, device=y.device), K_XA)
    return Gaussian(prior_mean + solved.T @ (y - prior_mean), K_AA - K_XA.T @ solved)


def normal_log_density(K_XX: Tensor, y: Tensor, *, noise: float, prior_mean: float = 0.0) -> Tensor:
    """``log N(y | μ₀, K + λI)``."""
    C = K_XX + noise * torch.eye(len(y), dtype=y.dtype, device=y.device)
    residual = y - prior_mean
    quadratic = residual @ torch.linalg.solve(C, residual)
    return -0.5 * (quadratic + torch.linalg.slogdet(C).logabsdet + len(y) * math.log(2 * math.pi))


def nystrom(K_DD: Tensor, K_DX: Tensor, K_DY: Tensor) -> Tensor:
    """``Q(X, Y) = k(X, D) k(D, D)⁺ k(D, Y)``."""
    return K_DX.T @ torch.linalg.pinv(K_DD, hermitian=True) @ K_DY


def dtc(
    K_DD: Tensor, K_DX: Tensor, K_DA: Tensor, K_AA: Tensor, y: Tensor, *, noise: float, prior_mean: float = 0.0
) -> Gaussian:
    """DTC: the likelihood sees ``Q`` in place of ``k`` on the data and between data and test; the prior at test stays ``k``."""
    return exact_gp(nystrom(K_DD, K_DX, K_DX), nystrom(K_DD, K_DX, K_DA), K_AA, y, noise=noise, prior_mean=prior_mean)


def residual_ratio(K_DD: Tensor, K_DX: Tensor, K_XX: Tensor, *, noise: float) -> float:
    """``ρ = λ_max(K − Q)/λ`` over the pulls."""
    residual = K_XX - nystrom(K_DD, K_DX, K_DX)
    return max(float(torch.linalg.eigvalsh(residual)[-1]), 0.0) / noise


def certificate_factor(ratio: float) -> float:
    """``1 + t`` with ``t = ρ + ρ/t``, which balances both terms of the proof."""
    t = ratio
    for _ in range(200):
        t = ratio + (ratio / t if t > 0 else 0.0)
    return 1.0 + t


def inclusion_law(p: float, count: int) -> float:
    """Probability that at least one of ``count`` independent coins of probability ``p`` shows heads, by enumeration."""
    outcomes = itertools.product([True, False], repeat=count)
    return sum(math.prod(p if head else 1.0 - p for head in coins) for coins in outcomes if any(coins))


class BatchTrace(NamedTuple):
    """A batch picked by recomputing every arm after every pick."""

    picks: list[int]
    scores: list[Tensor]
    """Of every arm before each pick."""
    leverages: list[Tensor]
    """Of every arm before each pick."""
    gap: float
    """Smallest distance between the best score and the best of an arm that does not tie with it."""


class DenseArms(NamedTuple):
    """Everything about a bandit round as dense matrices. ``X`` are the pulls, ``A`` the arms, ``D`` the dictionary."""

    K_DD: Tensor
    K_DX: Tensor
    K_DA: Tensor
    K_AA: Tensor
    K_XX: Tensor
    K_XA: Tensor
    y: Tensor
    noise: float
    prior_mean: float

    def exact(self) -> Gaussian:
        return exact_gp(self.K_XX, self.K_XA, self.K_AA, self.y, noise=self.noise, prior_mean=self.prior_mean)

    def dtc(self, picks: list[int] | None = None) -> Gaussian:
        """The posterior; ``picks`` are more pulls of arms at this dictionary (their values do not matter for variances)."""
        picks = picks or []
        y = torch.cat([self.y, self.y.new_zeros(len(picks))])
        K_DX = torch.cat([self.K_DX, self.K_DA[:, picks]], dim=1)
        return dtc(self.K_DD, K_DX, self.K_DA, self.K_AA, y, noise=self.noise, prior_mean=self.prior_mean)

    def process_covariance(self, picks: list[int]) -> Tensor:
        """The covariance of the DTC process conditioned on ``picks`` as an exact GP is."""
        C = self.dtc().covariance
        noisy = C[picks][:, picks] + self.noise * torch.eye(len(picks), dtype=C.dtype, device=C.device)
        return C - C[:, picks] @ torch.linalg.solve(noisy, C[picks]) if picks else C

    def leverages_after(self, picks: list[int], in_batch: str) -> Tensor:
        covariance = self.dtc(picks).covariance if in_batch == "fixed" else self.process_covariance(picks)
        return covariance.diagonal().clamp_min(0.0) / self.noise

    def local_ratios(self, picks: list[int], in_batch: str) -> Tensor:
        """``1 + Σ_s (covariance(x, x_s)/λ)²/leverage(x)`` at the batch start's posterior, of every arm."""
        covariance = self.dtc().covariance
        leverages = covariance.diagonal() / self.noise
        if in_batch == "fixed":  # only what the dictionary explains is updated
            covariance = covariance - (self.K_AA - nystrom(self.K_DD, self.K_DA, self.K_DA))
        shares = (covariance[:, picks] / self.noise).square().sum(dim=1)
        return 1.0 + torch.where(leverages > 1e-12, shares / leverages, torch.zeros_like(shares))

    def batch(
        self,
        *,
        width: float,
        kind: str,
        threshold: float,
        in_batch: str,
        max_q: int,
        tie: float = 1e-12,
        given: list[int] | None = None,
    ) -> BatchTrace:
        """Pick the best arm (the first within ``tie``), recompute every arm, and again, until the rule of ``kind`` ends it.

        Evaluations of the arms ``given`` are out already.
        """
        mean, start = self.dtc().mean, self.leverages_after([], in_batch)
        given = given or []
        picks = list(given)
        all_scores, all_leverages, gap = [], [], math.inf
        while len(picks) < max_q + len(given):
            if picks and self._used_up(picks, start, kind, threshold, in_batch):
                break
            leverages = self.leverages_after(picks, in_batch)
            scores = mean + width * leverages.sqrt()
            best = scores.max()
            ties = scores >= best - tie * best.abs().clamp_min(1.0)
            if not bool(ties.all()):
                gap = min(gap, float(best - scores[~ties].max()))
            all_scores.append(scores)
            all_leverages.append(leverages)
            picks.append(int(ties.nonzero()[0]))
        return BatchTrace(picks[len(given) :], all_scores, all_leverages, gap)

    def _used_up(self, picks: list[int], start: Tensor, kind: str, threshold: float, in_batch: str) -> bool:
        costs = start[picks]
        over = {
            "single": True,
            "global": 1.0 + float(costs.sum()) > threshold,
            "gp-bucb": float((1.0 + costs).prod()) > threshold,
            "local": float(self.local_ratios(picks, in_batch).max()) > threshold,
        }[kind]
        return over or threshold == 1.0


def first_best(variance: Tensor) -> tuple[int, float]:
    """Return the first of the arms that tie for the highest variance, and the distance to the best that does not."""
    best = variance.max()
    ties = variance >= best - 1e-12
    gap = math.inf if bool(ties.all()) else float(best - variance[~ties].max())
    return int(ties.nonzero()[0]), gap


def exact_design(K: Tensor, noise: float, q: int) -> tuple[list[int], float]:
    """``argmax`` of the exact posterior variance over arms, ``q`` times over; and the smallest distance to a second best.

    ``K`` is over the arms: a pick that repeats an arm repeats its row.
    """
    picks: list[int] = []
    smallest = math.inf
    for _ in range(q):
        variance = exact_gp(K[picks][:, picks], K[picks], K, K.new_zeros(len(picks)), noise=noise).variance
        pick, gap = first_best(variance)
        picks.append(pick)
        smallest = min(smallest, gap)
    return picks, smallest


def sparse_design(K: Tensor, noise: float, q: int, *, size: int, threshold: float) -> tuple[list[int], float]:
    """The same with the first ``size`` distinct picks as dictionary, taken anew when ``1 + Σ leverage > threshold``.

    Between two dictionaries the DTC process is conditioned on the picks.
    """
    picks: list[int] = []
    smallest = math.inf
    while len(picks) < q:
        D = list(dict.fromkeys(picks))[:size] or [0]
        Q = nystrom(K[D][:, D], K[D], K[D])
        C = K - Q + exact_gp(Q[picks][:, picks], Q[picks], Q, K.new_zeros(len(picks)), noise=noise).covariance
        start, spent, fresh = C.diagonal() / noise, 0.0, []
        while len(picks) + len(fresh) < q and (spent <= threshold - 1.0 or not fresh):
            now = exact_gp(C[fresh][:, fresh], C[fresh], C, C.new_zeros(len(fresh)), noise=noise).variance
            pick, gap = first_best(now)
            fresh.append(pick)
            smallest = min(smallest, gap)
            spent += float(start[pick])
        picks += fresh
    return picks, smallest
