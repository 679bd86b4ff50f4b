"""Optuna's own conformance suite for samplers, on ``SparseBOSampler``; it comes with the installed Optuna.

Left out is ``SingleOnlySamplerTestCase``, which asks that a sampler refuses several objectives.
"""

import pytest

pytest.importorskip("optuna", reason="Optuna is not installed: pip install '.[optuna]'")

from optuna.testing import pytest_samplers as suite

from sparse_bo import BBKB, TrustRegion
from sparse_bo.adapters import SparseBOSampler
from sparse_bo.policies import RandomSearch

pytestmark = pytest.mark.slow
POLICIES = {"default": None, "trust-region": TrustRegion(), "random": RandomSearch(batch_size=1), "bbkb": BBKB()}


class Sampler:
    @pytest.fixture(params=POLICIES)
    def sampler(self, request):
        return lambda: SparseBOSampler(policy=POLICIES[request.param], seed=0)


class TestBasic(Sampler, suite.BasicSamplerTestCase):
    pass


class TestRelative(Sampler, suite.RelativeSamplerTestCase):
    pass


class TestMultiObjective(Sampler, suite.MultiObjectiveSamplerTestCase):
    pass
