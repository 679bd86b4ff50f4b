"""Snapshots of states: the fields that are stored, and the error where one is missing."""

from dataclasses import dataclass, field, replace

import pytest
import torch
from gpytorch.kernels import Kernel, RBFKernel, ScaleKernel

from sparse_bo.dictionary import Dictionary
from sparse_bo.errors import StorageError
from sparse_bo.gp.objective_prior import KnownPrior, Prior
from sparse_bo.gp.observations import add_observations, no_observations
from sparse_bo.policies.persistence import (
    KEPT,
    PARTLY,
    freeze_dictionary,
    freeze_fields,
    freeze_observations,
    freeze_prior,
    kept,
    on_device,
    part_of,
    thaw_dictionary,
    thaw_fields,
    thaw_observations,
    thaw_prior,
    under,
)


@dataclass(frozen=True)
class Base:
    count: int = field(metadata=KEPT)
    made_again: str = "empty"


@dataclass(frozen=True)
class Derived(Base):
    width: float | None = field(default=None, metadata=KEPT)


def test_the_fields_that_a_class_and_its_bases_declare_are_kept_and_no_others():
    state = Derived(3, made_again="costly", width=2.0)
    frozen = freeze_fields(state)
    assert frozen == {"count": 3, "width": 2.0}
    assert Derived(**thaw_fields(Derived, frozen | {"other": 1})) == replace(state, made_again="empty")


def test_a_field_that_was_not_frozen_is_named():
    with pytest.raises(StorageError, match="expected width in the snapshot, got none: another version"):
        thaw_fields(Derived, {"count": 3})


@dataclass(frozen=True)
class Outer:
    part: Base = field(metadata=kept(Base))
    many: tuple[Derived, ...] = field(default=(), metadata=PARTLY)


def test_marked_fields_of_fields_are_kept_and_one_without_default_must_be_there():
    state = Outer(Base(1), many=(Derived(2, made_again="costly"), Derived(3, width=2.0)))
    frozen = freeze_fields(state)
    assert part_of(frozen, "many.1") == {"count": 3, "width": 2.0}
    assert thaw_fields(Outer, frozen) == {"part": Base(1)}
    with pytest.raises(StorageError, match="expected count, made_again in the snapshot, got none"):
        thaw_fields(Outer, {})


def test_parts_of_a_kind_lie_beside_each_other():
    frozen = under("one", {"count": 1, "inner.count": 2}) | under("one more", {"count": 3})
    assert part_of(frozen, "one") == {"count": 1, "inner.count": 2}
    assert part_of(part_of(frozen, "one"), "inner") == {"count": 2}
    assert part_of(frozen, "one more") == {"count": 3}


def test_only_tensors_are_moved(device):
    moved = on_device({"a": torch.ones(2), "b": None, "c": [1]}, torch.device(device))
    assert moved["a"].device.type == torch.device(device).type
    assert (moved["b"], moved["c"]) == (None, [1])


def test_observations_come_back_without_their_inputs_being_kept(generator):
    arms = torch.rand(9, 2, generator=generator, dtype=torch.float64)
    y = torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64)
    seen = add_observations(no_observations(arms), arms, torch.tensor([7, 2, 7]), y)
    frozen = freeze_observations(seen)
    assert all(value.dim() == 1 for value in frozen.values())
    again = thaw_observations(frozen, arms)
    assert again.rows.tolist() == [2, 7]
    assert torch.equal(again.X, arms[[2, 7]])
    assert again.sums.tolist() == [2.0, 5.0]
    assert again.scatter.tolist() == [0.0, 4.5]
    assert again.first_pull.tolist() == [1, 0]


@pytest.mark.parametrize("chosen", [torch.tensor([1, 4]), None], ids=["arms", "external"])
def test_a_dictionary_comes_back_from_rows_or_from_its_points(chosen, generator):
    arms = torch.rand(9, 2, generator=generator, dtype=torch.float64)
    points = torch.ones(2, 2, dtype=torch.float64) if chosen is None else arms[chosen]
    frozen = freeze_dictionary(Dictionary(points, torch.tensor([0.5, 1.0]), chosen))
    assert ("points" in frozen) == (chosen is None)
    again = thaw_dictionary(frozen, arms)
    assert torch.equal(again.points, points)
    assert again.probabilities.tolist() == [0.5, 1.0]
    assert (again.indices is None) == (chosen is None)


class Unknown(Kernel):
    """A kernel that no description rebuilds."""

    has_lengthscale = True


def test_a_prior_comes_back_with_its_kernel_or_with_the_policys():
    kernel, other = RBFKernel().double(), RBFKernel().double()
    kernel.lengthscale = 0.3
    frozen = freeze_prior(KnownPrior(kernel, 1.5, 0.1))
    again = thaw_prior(frozen, given=Prior(None, None, None))
    assert (again.prior_mean, again.regularization) == (1.5, 0.1)
    assert again.covar_module.lengthscale.item() == pytest.approx(0.3)
    assert thaw_prior(frozen, given=Prior(other, None, 0.1)).covar_module is other
    with pytest.raises(ValueError, match="cannot be rebuilt"):
        thaw_prior(freeze_prior(KnownPrior(Unknown(), 0.0, 0.1)), given=Prior(None, None, None))


def test_the_part_of_a_kernel_that_is_not_known_is_named():
    frozen = freeze_prior(KnownPrior(ScaleKernel(Unknown()), 0.0, 0.1))
    with pytest.raises(ValueError, match=r"test_persistence\.Unknown cannot be rebuilt"):
        thaw_prior(frozen, given=Prior(None, None, None))
