"""Other libraries' loops with this package's policies and models: Optuna, Ax. Each is imported when it is used.

scikit-learn needs none: :func:`sparse_bo.maximize` over a space whose objective calls ``cross_val_score`` is the whole of it
(``tests/adapters/test_sklearn.py`` has the recipe as it is run).
"""

from __future__ import annotations

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
