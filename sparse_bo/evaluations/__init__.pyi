from .executors import RayExecutor
from .job import Batch, PlainBatch
from .pools import Workers
from .results import Measured

__all__ = ["Batch", "Measured", "PlainBatch", "RayExecutor", "Workers"]
