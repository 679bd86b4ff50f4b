"""Gaussian processes: priors and hyper-parameters, likelihoods, and posteriors, exact and DTC."""

__all__ = [
    "decoupled",
    "diagnostics",
    "diversity",
    "dtc",
    "evidence",
    "learning",
    "leverage",
    "likelihood",
    "nystrom",
    "observations",
    "priors",
    "quadratic",
    "stationary_likelihood",
    "variance_factor",
    "woodbury",
]
