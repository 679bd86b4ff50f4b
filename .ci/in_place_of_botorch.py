"""A plugin of pytest for BoTorch's own tests: the sparse models stand where its exact ones do, in this process alone."""

import botorch.models
import botorch.models.gp_regression
import botorch.models.gp_regression_fidelity
import botorch.models.gp_regression_mixed
import botorch.models.model_list_gp_regression
import pytest

from sparse_bo import SparseGP
from sparse_bo.models import SparseMixedGP, SparseModelListGP, SparseMultiFidelityGP

OURS = {
    "gp_regression": ("SingleTaskGP", SparseGP),
    "gp_regression_fidelity": ("SingleTaskMultiFidelityGP", SparseMultiFidelityGP),
    "gp_regression_mixed": ("MixedSingleTaskGP", SparseMixedGP),
    "model_list_gp_regression": ("ModelListGP", SparseModelListGP),
}
for module, (name, model) in OURS.items():
    setattr(getattr(botorch.models, module), name, model)
    setattr(botorch.models, name, model)

LEFT_OUT = {
    "TestSingleTaskMultiFidelityGP::test_gp": "compares float32 to 1e-8",
    "TestFixedNoiseSingleTaskMultiFidelityGP::test_gp": "likewise",
    "TestSingleTaskMultiFidelityGP::test_init_error": "expects a message with the name of BoTorch's class",
    "TestModelListGP::test_ModelListGP": "expects that transformed members have no joint posterior; here they have one",
    "TestModelListGP::test_with_different_batch_shapes": "has a fully Bayesian member, which needs JAX",
}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests of :data:`LEFT_OUT`, which must exist."""
    dropped = [item for item in items if item.nodeid.partition("::")[2] in LEFT_OUT]
    assert len(dropped) == len(LEFT_OUT), "a test of LEFT_OUT is not there; take it out of the list"
    config.hook.pytest_deselected(items=dropped)
    items[:] = [item for item in items if item not in dropped]
