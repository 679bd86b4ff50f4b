"""Confidence widths: multipliers for upper-confidence scores, and simultaneous bounds for elimination."""

from sparse_bo.widths.bounds import (
    BatchConfidence,
    BatchWidth,
    BiasConstant,
    Bounds,
    GaussianBounds,
    RefutableWidth,
    SBPELightTailed,
    SBPEOnBox,
    SBPETheory,
)
from sparse_bo.widths.calibration import Calibration
from sparse_bo.widths.gp_ucb import (
    GSSBOTheory,
    SrinivasCompact,
    SrinivasFinite,
    SubsetErrors,
    SurrogateConfidence,
    SurrogateWidth,
)
from sparse_bo.widths.leverage import (
    BBKBAuthors,
    BBKBTheory,
    BKBAuthors,
    BKBTheory,
    CalibratedWidth,
    Confidence,
    ConstantWidth,
    NormWidth,
    Width,
    botorch_beta,
)
from sparse_bo.widths.norms import NormEstimate, estimate_rkhs_norm

__all__ = [
    "BBKBAuthors",
    "BBKBTheory",
    "BKBAuthors",
    "BKBTheory",
    "BatchConfidence",
    "BatchWidth",
    "BiasConstant",
    "Bounds",
    "CalibratedWidth",
    "Calibration",
    "Confidence",
    "ConstantWidth",
    "GSSBOTheory",
    "GaussianBounds",
    "NormEstimate",
    "NormWidth",
    "RefutableWidth",
    "SBPELightTailed",
    "SBPEOnBox",
    "SBPETheory",
    "SrinivasCompact",
    "SrinivasFinite",
    "SubsetErrors",
    "SurrogateConfidence",
    "SurrogateWidth",
    "Width",
    "botorch_beta",
    "estimate_rkhs_norm",
]
