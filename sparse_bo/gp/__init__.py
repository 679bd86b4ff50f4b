"""Gaussian processes: priors and hyper-parameters, likelihoods, and posteriors, exact and DTC."""

__all__ = [
    "decoupled",
    "diagnostics",
    "diversity",
    "dtc",
    "hyperparameters",
    "learn",
    "leverage",
    "likelihood",
    "nystrom",
    "observations",
    "posterior",
    "priors",
    "quadratic",
    "roots",
    "variance_factor",
    "woodbury",
]
