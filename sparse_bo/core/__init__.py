"""The numerical core that everything else stands on: pure functions of tensors.

- :mod:`~sparse_bo.core.nystrom`: whitens a dictionary and gives points their features;
- :mod:`~sparse_bo.core.dtc`: the DTC posterior: fit, mean, variance, covariance, one-product form;
- :mod:`~sparse_bo.core.decoupled`: draws of it, from prior draws and an update at the dictionary;
- :mod:`~sparse_bo.core.stationary`: stationary kernels of scaled distances, with slopes;
- :mod:`~sparse_bo.core.stationary_likelihood`: the exact log-likelihood with one of them, gradient in closed form;
- :mod:`~sparse_bo.core.additive`: sums of a Gaussian correlation of each input alone, with slopes;
- :mod:`~sparse_bo.core.evidence`: hyper-parameters of an exact GP by gradients in closed form;
- :mod:`~sparse_bo.core.descent`: minimisation of few numbers within bounds from a known curvature;
- :mod:`~sparse_bo.core.improvement`: log expected improvement with derivatives;
- :mod:`~sparse_bo.core.likelihood`: the exact log-likelihood of merged pulls, and its derivatives;
- :mod:`~sparse_bo.core.woodbury`: exact, DTC and variational log-likelihoods of rows of data, summed block by block;
- :mod:`~sparse_bo.core.normal_equations`: sums of outer products of many rows, whitened row by row or once;
- :mod:`~sparse_bo.core.leverage`: effective dimension, inclusion probabilities;
- :mod:`~sparse_bo.core.pivoted`: greedy pivoted Cholesky by columns;
- :mod:`~sparse_bo.core.diversity`: subsets of data whose likelihood gradients point in diverse directions;
- :mod:`~sparse_bo.core.spectrum`: ``λ_max(K − Q)`` without ``K``, the variance certificate;
- :mod:`~sparse_bo.core.diagnostics`: leave-one-out residuals, trends in time, binomial tails;
- :mod:`~sparse_bo.core.variance_factor`: the factor that predicted variances ask for, by held-out rows;
- :mod:`~sparse_bo.core.quadratic`: ``yᵀ(Q + λI)⁻¹y`` of observations, and how large noise alone makes it;
- :mod:`~sparse_bo.core.quadrature`: quadrature Fourier features of the Gaussian kernel;
- :mod:`~sparse_bo.core.linalg`: Cholesky with reported jitter;
- :mod:`~sparse_bo.core.largest`: the largest entries of rows, of equal ones the first, on every device;
- :mod:`~sparse_bo.core.sums`: sums whose terms are added in one order on every device;
- :mod:`~sparse_bo.core.chunking`: rows from a byte budget, and a smaller budget where memory runs out;
- :mod:`~sparse_bo.core.shapes`: batch shapes.
"""

from sparse_bo.core import (
    additive,
    chunking,
    decoupled,
    descent,
    diagnostics,
    diversity,
    dtc,
    evidence,
    improvement,
    largest,
    leverage,
    likelihood,
    linalg,
    normal_equations,
    nystrom,
    pivoted,
    quadratic,
    quadrature,
    shapes,
    spectrum,
    stationary,
    stationary_likelihood,
    sums,
    variance_factor,
    woodbury,
)

__all__ = [
    "additive",
    "chunking",
    "decoupled",
    "descent",
    "diagnostics",
    "diversity",
    "dtc",
    "evidence",
    "improvement",
    "largest",
    "leverage",
    "likelihood",
    "linalg",
    "normal_equations",
    "nystrom",
    "pivoted",
    "quadratic",
    "quadrature",
    "shapes",
    "spectrum",
    "stationary",
    "stationary_likelihood",
    "sums",
    "variance_factor",
    "woodbury",
]
