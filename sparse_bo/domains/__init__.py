"""Domains: boxes, arms in memory, in a file or of a product grid, and spaces of named parameters."""

from sparse_bo.domains.arms import Arms, NamedArms, column_units, modelled_arms, with_names
from sparse_bo.domains.base import Box, Domain
from sparse_bo.domains.encoded import SpaceArms, SpaceBox, check_domain, space_domain
from sparse_bo.domains.lazy import ArmSet, LazyArms, MemmapArms, ProductGrid
from sparse_bo.domains.parameters import Choice, Float, Int
from sparse_bo.domains.sharded import ShardedArms
from sparse_bo.domains.space import Feasible, Space
from sparse_bo.domains.values import Parameter

__all__ = [
    "ArmSet",
    "Arms",
    "Box",
    "Choice",
    "Domain",
    "Feasible",
    "Float",
    "Int",
    "LazyArms",
    "MemmapArms",
    "NamedArms",
    "Parameter",
    "ProductGrid",
    "ShardedArms",
    "Space",
    "SpaceArms",
    "SpaceBox",
    "check_domain",
    "column_units",
    "modelled_arms",
    "space_domain",
    "with_names",
]
