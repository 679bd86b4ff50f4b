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
    "posterior",
    "priors",
    "quadratic",
    "roots",
    "stationary_likelihood",
    "variance_factor",
    "woodbury",
]
