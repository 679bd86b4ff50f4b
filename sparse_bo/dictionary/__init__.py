"""Dictionaries (inducing sets) and the samplers that choose them."""

from sparse_bo.dictionary.base import Candidates, Covariance, Dictionary, Sampler, candidates_of
from sparse_bo.dictionary.certificate import Certificate, certify
from sparse_bo.dictionary.dpp import KDPPSampler
from sparse_bo.dictionary.greedy import GreedyVarianceSampler, IPASampler, IVMSampler
from sparse_bo.dictionary.incremental import IncrementalLeverageSampler
from sparse_bo.dictionary.kmeans import KMeansPlusPlusSampler
from sparse_bo.dictionary.leverage import LeverageSampler
from sparse_bo.dictionary.recursive import RecursiveRLSSampler
from sparse_bo.dictionary.residual import residual_bound
from sparse_bo.dictionary.simple import AllSampler, FirstSampler, FixedSampler, UniformSampler

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
