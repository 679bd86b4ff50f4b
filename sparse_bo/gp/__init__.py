"""Gaussian processes: priors and hyper-parameters, likelihoods, and posteriors, exact and DTC."""

__all__ = [
    "diagnostics",
    "diversity",
    "dtc",
    "expected_improvement",
    "hyperparameters",
    "hypervolume",
    "learn",
    "likelihood",
    "nystrom",
    "objective_prior",
    "observations",
    "posterior",
    "priors",
    "woodbury",
]
