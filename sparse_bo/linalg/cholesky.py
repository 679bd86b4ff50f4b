"""Cholesky factorisation: with a jitter that is scaled, bounded and reported; sums whitened by a factor; greedy pivots."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from sparse_bo.linalg.reductions import first_largest


def round_off(A: Tensor, *, scale: float | None = None) -> float:
    """Return ``n · eps · max|diag A|``: the error that factorising ``A`` in its own dtype commits anyway.

    ``scale`` is ``max|diag A|``, where it is known: reading it makes the host wait for the device.
    """
    if A.shape[-1] == 0:
        return 0.0
    if scale is None:
        scale = float(A.detach().diagonal(dim1=-2, dim2=-1).abs().amax())
    return A.shape[-1] * torch.finfo(A.dtype).eps * scale


def try_cholesky(A: Tensor, *, jitter: float) -> Tensor | None:
    """Return the Cholesky factor of ``A + jitter · I``, or ``None`` if it is not positive definite. O(n³)."""
    if jitter:
        A = A + jitter * torch.eye(A.shape[-1], dtype=A.dtype, device=A.device)
    factor, info = torch.linalg.cholesky_ex(A)
    return factor if _went_well(factor, info) else None


def _went_well(factor: Tensor, info: Tensor) -> bool:
    """Return whether a factorisation did: CUDA answers NaN with NaN and ``info = 0``, so both are asked, in one wait."""
    total = factor.detach().diagonal(dim1=-2, dim2=-1).sum()
    if factor.device.type == "cpu":  # reading costs nothing there, every operation more does
        return math.isfinite(float(total)) and not bool(info.any())
    failures = info if info.dim() == 0 else info.abs().sum()
    found, failed = torch.stack([total, failures.to(total)]).tolist()
    return math.isfinite(found) and failed == 0.0


def safe_cholesky(A: Tensor, *, scale: Tensor | None = None, least: float = 0.0) -> Tensor:
    """Return the lower Cholesky factor of a positive semi-definite matrix (``batch_shape x n x n``). O(n³).

    To the diagonal it adds as little as it takes: first nothing, then ``10, 10³, 10⁵, …`` times the round-off of the matrix
    itself (:func:`round_off`), so the scale follows dtype, size and units.

    Args:
        A: The matrix.
        scale: Largest number (0-dim) that entries of ``A`` are a difference of, where they are: their round-off is that of it.
        least: Lower bound on the eigenvalues of ``A``, such as the noise on the diagonal of a kernel matrix. No square of the
            factor's diagonal is below it: one below half of it is round-off, by which solutions would be divided.

    Raises:
        ValueError: If ``A`` has NaN or infinite entries, or is not positive semi-definite even with the largest jitter.
    """
    factor, info = torch.linalg.cholesky_ex(A)
    if _went_well(factor, info) and _is_above(factor, 0.5 * least):
        return factor
    # All of A, not its diagonal: CUDA factorises NaN without saying so.
    if not bool(A.detach().isfinite().all()):
        raise ValueError("expected a finite matrix to factorise, got NaN or infinite entries; check inputs and kernel")
    unit, jitter = round_off(A, scale=None if scale is None else float(scale)), 0.0
    # In units of the largest diagonal entry; in float32 the last jitter would be a thousand times as large as the matrix.
    most = unit * 1e-2 / (A.shape[-1] * torch.finfo(A.dtype).eps)
    # Five jitters, each a hundred times the one before.
    for attempt in range(5):
        jitter = unit * 10.0 ** (2 * attempt + 1)
        if jitter > most:
            break
        jittered = try_cholesky(A, jitter=jitter)
        if jittered is not None and _is_above(jittered, 0.5 * (least + jitter)):
            return jittered
    hint = "" if A.dtype == torch.float64 else ", and use torch.float64"
    raise ValueError(
        f"a matrix of shape {tuple(A.shape)} is not positive semi-definite even with jitter {min(jitter, most):.1e}; "
        f"check that the kernel is positive definite and that inputs are finite{hint}"
    )


def _is_above(factor: Tensor, least: float) -> bool:
    """Return whether the squares of a factor's diagonal are at least so large. Waits for a device if ``least`` is above 0."""
    return not least or bool((factor.detach().diagonal(dim1=-2, dim2=-1).square() >= least).all())


def safe_factors(A: Tensor) -> Tensor:
    """Return the factors of ``b x n x n`` matrices as :func:`safe_cholesky` does of each, with a jitter of its own. O(b n³)."""
    factors, info = torch.linalg.cholesky_ex(A)
    return factors if _went_well(factors, info) else torch.stack([safe_cholesky(one) for one in A])


WIDEST = 2**17
"""Columns of one triangular solution on a GPU: of a 13 x 13 triangle cuBLAS solves 2^18 in 0.1 ms, but did not come back from
2^19 in ten seconds, nor from 10^6 in a hundred (H200, PyTorch 2.11, CUDA 13)."""


def solve_lower(L: Tensor, B: Tensor) -> Tensor:
    """Return ``L⁻¹ B`` of lower triangles, ``… x n x c`` from ``… x n x n`` and ``… x n x c``. O(n² c)."""
    if B.device.type == "cpu" or B.shape[-1] <= WIDEST:
        return torch.linalg.solve_triangular(L, B, upper=False)
    return torch.cat([torch.linalg.solve_triangular(L, part, upper=False) for part in torch.split(B, WIDEST, dim=-1)], dim=-1)


def triangular_inverse(L: Tensor, *, block: int = 512) -> Tensor:
    """Return ``L⁻¹`` of lower triangles (``batch_shape x n x n``), by blocks of columns: O(n³/3), a third of one solution.

    For a root that many right-hand sides are to be multiplied with; to solve once, solve.
    """
    n = L.shape[-1]
    if n <= block:
        return torch.linalg.solve_triangular(L, torch.eye(n, dtype=L.dtype, device=L.device), upper=False)
    inverse = torch.zeros_like(L)
    for start in range(0, n, block):
        columns = slice(start, min(start + block, n))
        eye = torch.eye(n - start, columns.stop - start, dtype=L.dtype, device=L.device)
        below = L[..., start:, start:]
        inverse[..., start:, columns] = torch.linalg.solve_triangular(below, eye.expand(*below.shape[:-2], -1, -1), upper=False)
    return inverse


def add_lower_gram(gram: Tensor, S: Tensor, *, blocks: int = 16, smallest: int = 128) -> None:
    """Add ``S Sᵀ`` of ``… x m x n`` to ``gram`` (``… x m x m``) in place, up to its diagonal blocks. O(n m²), no memory.

    With 16 blocks of rows, each computed up to its diagonal, 17/32 of the work is left; blocks below ``smallest`` cost calls.
    """
    m = S.shape[-2]
    step = max(-(-m // blocks), smallest)
    for total, rows in zip(gram.view(-1, m, m), S.reshape(-1, *S.shape[-2:]), strict=True):
        for start in range(0, m, step):
            stop = min(start + step, m)
            total[start:stop, :stop].addmm_(rows[start:stop], rows[:stop].mT)


def whitened_gram(L: Tensor, A: Tensor) -> Tensor:
    """Return ``L⁻¹ A L⁻ᵀ``, ``… x m x m``, exactly symmetric. O(m³).

    With ``A = S Sᵀ``, ``S = K_DX N^{−½}``, it is the sum ``ZᵀN⁻¹Z`` of a DTC posterior: whitened once, and not row by row in
    O(n m²). :func:`whitening_error` bounds the loss.
    """
    half = torch.linalg.solve_triangular(L, A, upper=False)
    whole = torch.linalg.solve_triangular(L, half.mT, upper=False)
    return 0.5 * (whole + whole.mT)


def whitening_error(L: Tensor, trace: Tensor) -> float:
    """Return how far, in the spectral norm, :func:`whitened_gram` may be off by round-off: ``eps · tr A · ‖L⁻¹‖²``. O(m²)."""
    vector = torch.ones_like(L[..., :1])
    norm = torch.ones_like(vector[..., 0, 0])
    # Of the power method: the norm comes out a few per cent low at most, and the bound it goes into is a hundredfold too
    # large.
    for _ in range(12):
        vector = vector / vector.norm(dim=-2, keepdim=True)
        half = torch.linalg.solve_triangular(L, vector, upper=False)
        vector = torch.linalg.solve_triangular(L.mT, half, upper=True)
        norm = vector.norm(dim=-2).squeeze(-1)
    return float((torch.finfo(L.dtype).eps * trace * norm).amax())


def pivoted_cholesky(
    column: Callable[[Tensor], Tensor],
    diagonal: Tensor,
    *,
    size: int,
    score: Callable[[Tensor], Tensor] | None = None,
    noise: Tensor | None = None,
) -> Tensor:
    """Return up to ``size`` rows of ``A``, each the one of highest score given those before. O(n m²), ``n x m`` memory.

    ``d_i``, the variance of row i given the chosen rows, falls by ``c²`` with ``c = A(·, p | chosen)/√(d_p + ν_p)`` for each
    chosen row p. Without noise ν that is the pivoted Cholesky factorisation.

    A row is chosen at most once, the lowest of those that tie (but for round-off); rows whose variance is down to the round-off
    ``10 · size · eps · max(diagonal)`` not at all: where no other is left, fewer rows are returned.

    Args:
        column: Row number (scalar tensor) to its column of ``A``, ``n``; called once per chosen row.
        diagonal: ``n`` numbers, the diagonal of ``A``.
        size: At most so many rows are chosen, m ≥ 1.
        score: ``n`` variances given the chosen rows to ``n`` scores, −∞ for rows not to be chosen; ``None``: the variances
            (the greedy MAP of a determinantal point process; Chen, Zhang & Zhou 2018).
        noise: ``n`` noise variances ν ≥ 0; ``None``: there is no noise.

    Raises:
        ValueError: If ``size`` < 1, or the diagonal is not finite.
    """
    if size < 1:
        raise ValueError(f"expected size >= 1, got {size}")
    if not bool(torch.isfinite(diagonal).all()):
        raise ValueError("expected finite variances, got NaN or infinite ones; check inputs and kernel parameters")
    n = diagonal.shape[0]
    size = min(size, n)
    floor = 10.0 * size * torch.finfo(diagonal.dtype).eps * diagonal.max()
    factor = diagonal.new_empty(size, n)
    residuals, closed = diagonal.clone(), torch.zeros_like(diagonal, dtype=torch.bool)
    chosen: list[Tensor] = []
    scale = diagonal.new_zeros(())
    for j in range(size):
        scores = residuals if score is None else score(residuals)
        scores = scores.masked_fill(closed | (residuals <= floor), -torch.inf)
        scale = scores.max().abs() if j == 0 else scale
        if not bool(scores.max() > -torch.inf):
            break
        # One entry, so that it stays on the device: as an index, a scalar would be read by the host.
        p = first_largest(scores, scale=scale).unsqueeze(0)
        row = factor[j]
        torch.sub(column(p.squeeze(0)), factor[:j].index_select(1, p).squeeze(-1) @ factor[:j], out=row)
        row.div_((residuals[p] if noise is None else residuals[p] + noise[p]).sqrt())
        residuals.addcmul_(row, row, value=-1.0).clamp_min_(0.0)
        closed.index_fill_(0, p, True)
        chosen.append(p)
    return torch.cat(chosen) if chosen else torch.empty(0, dtype=torch.long, device=diagonal.device)
