"""Pure functions of tensors (torch only): the numerical core that everything else stands on.

- :mod:`~sparse_bo.core.nystrom`: whiten a dictionary, features of points;
- :mod:`~sparse_bo.core.dtc`: the DTC posterior — fit, add rows, mean, variance, covariance, one-product form;
- :mod:`~sparse_bo.core.likelihood`: DTC and VFE log-likelihoods over merged pulls;
- :mod:`~sparse_bo.core.leverage`: effective dimension, inclusion probabilities;
- :mod:`~sparse_bo.core.pivoted`: greedy pivoted Cholesky by columns;
- :mod:`~sparse_bo.core.spectrum`: ``λ_max(K − Q)`` without ``K``, the variance certificate;
- :mod:`~sparse_bo.core.linalg`, :mod:`~sparse_bo.core.chunking`: Cholesky with reported jitter, rows from a byte budget.
"""

from sparse_bo.core import chunking, dtc, leverage, likelihood, linalg, nystrom, pivoted, spectrum

__all__ = ["chunking", "dtc", "leverage", "likelihood", "linalg", "nystrom", "pivoted", "spectrum"]
