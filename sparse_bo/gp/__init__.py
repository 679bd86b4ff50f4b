"""Gaussian processes: priors and hyper-parameters, likelihoods, and posteriors, exact and DTC."""

__all__ = [
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
    "woodbury",
]
