"""Tests of sparse_bo, and the number of threads in which they run: one."""

import os

# Before NumPy and PyTorch are imported. The matrices of the tests are small: one thread is faster, and does not stall where
# other processes hold the cores. A process with one thread can be forked: the threads of OpenBLAS may hang in a fork.
os.environ.setdefault("OMP_NUM_THREADS", "1")
