"""Confidence widths: multipliers for upper-confidence scores, and simultaneous bounds for elimination."""

from sparse_bo.widths.bounds import (
    BatchConfidence,
    BatchWidth,
    BiasConstant,
    Bounds,
    GaussianBounds,
    SBPELightTailed,
    SBPEOnBox,
    SBPETheory,
)
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
    Width,
    botorch_beta,
)

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
    "Confidence",
    "ConstantWidth",
    "GSSBOTheory",
    "GaussianBounds",
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
]
