from .ax import AdaptiveAcquisition, sparse_generation_strategy
from .optuna import SparseBOSampler

__all__ = ["AdaptiveAcquisition", "SparseBOSampler", "sparse_generation_strategy"]
