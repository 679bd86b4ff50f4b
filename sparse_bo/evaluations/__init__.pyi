from .batch import Batch, PlainBatch
from .executors import RayExecutor
from .pools import Workers
from .results import Measured

__all__ = ["Batch", "Measured", "PlainBatch", "RayExecutor", "Workers"]
