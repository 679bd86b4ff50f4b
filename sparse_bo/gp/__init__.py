"""Gaussian processes: priors and hyper-parameters, likelihoods, and posteriors, exact and DTC."""

__all__: list[str] = []
