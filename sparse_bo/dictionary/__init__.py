"""Dictionaries (inducing sets) and the samplers that choose them."""

from sparse_bo.dictionary.base import Candidates, Dictionary, Sampler
from sparse_bo.dictionary.leverage import LeverageSampler
from sparse_bo.dictionary.simple import AllSampler, FirstSampler, FixedSampler, UniformSampler

__all__ = [
    "AllSampler",
    "Candidates",
    "Dictionary",
    "FirstSampler",
    "FixedSampler",
    "LeverageSampler",
    "Sampler",
    "UniformSampler",
]
