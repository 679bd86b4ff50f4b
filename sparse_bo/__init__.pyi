# What a user needs first, and where it is defined. Everything else is in its subpackage.
from . import adapters, dictionary, errors, policies, problems, widths
from .acquisition import optimize_batch
from .dictionary import certify
from .domains import Choice, Float, Int, MemmapArms, ProductGrid, Space
from .errors import ContradictionError, ObjectiveError, RunInterrupted
from .evaluations import Batch, Measured, Workers
from .journal import Storage
from .models import SparseGP, SparseMixedGP, SparseMultiFidelityGP, SparseMultiTaskGP, gradient_subset, register_with_ax
from .planning import plan
from .policies import BBKB, BKB, BPE, GPBUCB, GPUCB, GSSBO, SBPE, TrustRegion
from .runs import AskTell, History, Result, maximize, minimize, observations_of, optimize

__all__ = [
    "BBKB",
    "BKB",
    "BPE",
    "GPBUCB",
    "GPUCB",
    "GSSBO",
    "SBPE",
    "AskTell",
    "Batch",
    "Choice",
    "ContradictionError",
    "Float",
    "History",
    "Int",
    "Measured",
    "MemmapArms",
    "ObjectiveError",
    "ProductGrid",
    "Result",
    "RunInterrupted",
    "Space",
    "SparseGP",
    "SparseMixedGP",
    "SparseMultiFidelityGP",
    "SparseMultiTaskGP",
    "Storage",
    "TrustRegion",
    "Workers",
    "__version__",
    "adapters",
    "certify",
    "dictionary",
    "errors",
    "gradient_subset",
    "maximize",
    "minimize",
    "observations_of",
    "optimize",
    "optimize_batch",
    "plan",
    "policies",
    "problems",
    "register_with_ax",
    "widths",
]

__version__: str
