from .batch import Batch, PlainBatch
from .executors import RayExecutor
from .pools import Workers

__all__ = ["Batch", "PlainBatch", "RayExecutor", "Workers"]
