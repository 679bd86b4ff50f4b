"""Arguments of a wrong kind are refused where they are passed, before any work, and the message names what is expected."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from botorch.exceptions import InputDataError

from sparse_bo import BBKB, BKB, GSSBO, SBPE, AskTell, Int, MemmapArms, ProductGrid, SparseGP, plan
from sparse_bo.dictionary import IPASampler
from sparse_bo.models.sparse_gp.base import SparseSettings
from sparse_bo.models.sparse_gp.learning import LearningSettings
from sparse_bo.policies import BPE, QFFTS, BoTorchUCB

X = torch.linspace(0.0, 1.0, 12, dtype=torch.float64).reshape(6, 2)
WRONG: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "a name for a sampler": (lambda: BBKB(dictionary="x"), TypeError, "sampler"),
    "a number for a sampler": (lambda: BKB(dictionary=5), TypeError, "sampler"),
    "a tensor for a sampler": (lambda: BBKB(dictionary=X), TypeError, "sampler"),
    "a width beyond floats": (lambda: BBKB(width=10**400), ValueError, "width"),
    "a width beyond floats, elimination": (lambda: BPE(horizon=20, width=10**400), ValueError, "width"),
    "a word for a flag": (lambda: GSSBO(warm_start="no"), TypeError, "True or False"),
    "none for a flag": (lambda: QFFTS(warm_start=None), TypeError, "True or False"),
    "a number for a flag": (lambda: BoTorchUCB(warm_start=1), TypeError, "True or False"),
    "a word for a flag of a sampler": (lambda: IPASampler(size=5, maximize="x"), TypeError, "True or False"),
    "a word for a flag of a policy": (lambda: BBKB(repeats="no"), TypeError, "True or False"),
    "a number for a schedule": (lambda: SBPE(horizon=20, schedule=5), TypeError, "list of batch sizes"),
    "nothing for axes": (lambda: ProductGrid(None), TypeError, "list of tensors"),
    "nothing for a path": (lambda: MemmapArms(None), TypeError, "path of a .npy file"),
    "integers beyond floats": (lambda: Int(0, 10**400), ValueError, r"below 2\^53"),
    "a budget beyond floats": (lambda: plan(X, budget=10**400), ValueError, "budget of at most"),
    "a name for a kernel": (lambda: SparseGP(X, X[:, :1], covar_module="x"), TypeError, "covar_module"),
    "a number for a mean": (lambda: SparseGP(X, X[:, :1], mean_module=5), TypeError, "mean_module"),
    "a name for a size": (lambda: SparseSettings(learning=LearningSettings(subset="x")), TypeError, "learning.subset"),
    "a negative size": (lambda: SparseSettings(learning=LearningSettings(subset=-1)), ValueError, "learning.subset"),
    "a negative tolerance": (lambda: SparseSettings(learning=LearningSettings(gain=-1.0)), ValueError, "learning.gain"),
    "a number for arms": (lambda: AskTell(5), TypeError, "arms"),
}


@pytest.mark.parametrize("case", WRONG)
def test_an_argument_of_a_wrong_kind_is_refused_where_it_is_passed(case):
    make, kind, expected = WRONG[case]
    with pytest.raises(kind, match=expected):
        make()


@pytest.mark.parametrize("transformed", [True, False])
@pytest.mark.parametrize("name", ["train_X", "train_Y", "train_Yvar"])
def test_an_infinite_entry_of_the_data_is_called_so(name, transformed):
    data = {"train_X": X.clone(), "train_Y": X[:, :1].clone(), "train_Yvar": torch.full((6, 1), 0.1, dtype=torch.float64)}
    data[name][4, 0] = float("inf")
    with pytest.raises(InputDataError, match=f"finite {name}, got an infinite entry in row 4"):
        SparseGP(**data, **({} if transformed else {"outcome_transform": None}))
