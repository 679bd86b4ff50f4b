from .batch import Batch
from .ray import RayExecutor
from .worker import PlainBatch
from .workers import Workers

__all__ = ["Batch", "PlainBatch", "RayExecutor", "Workers"]
