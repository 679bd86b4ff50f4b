"""Gaussian processes: priors and hyper-parameters, likelihoods, and posteriors, exact and DTC."""
