"""Dictionaries (inducing sets) and the samplers that choose them."""

from sparse_bo.dictionary.base import (
    AllSampler,
    Candidates,
    Dictionary,
    FirstSampler,
    FixedSampler,
    Sampler,
    UniformSampler,
    candidates_of,
)
from sparse_bo.dictionary.certificate import Certificate, certify, residual_bound
from sparse_bo.dictionary.diverse_samplers import (
    GreedyVarianceSampler,
    IPASampler,
    IVMSampler,
    KDPPSampler,
    KMeansPlusPlusSampler,
)
from sparse_bo.dictionary.leverage_samplers import IncrementalLeverageSampler, LeverageSampler, RecursiveRLSSampler
from sparse_bo.gp.posterior import Covariance

__all__ = [
    "AllSampler",
    "Candidates",
    "Certificate",
    "Covariance",
    "Dictionary",
    "FirstSampler",
    "FixedSampler",
    "GreedyVarianceSampler",
    "IPASampler",
    "IVMSampler",
    "IncrementalLeverageSampler",
    "KDPPSampler",
    "KMeansPlusPlusSampler",
    "LeverageSampler",
    "RecursiveRLSSampler",
    "Sampler",
    "UniformSampler",
    "candidates_of",
    "certify",
    "residual_bound",
]
