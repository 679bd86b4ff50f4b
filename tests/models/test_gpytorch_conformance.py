"""GPyTorch's own test case of exact models, on ``SparseGP``; it comes with the installed GPyTorch. BoTorch installs none."""

import unittest

import pytest
import torch
from gpytorch.test.model_test_case import BaseModelTestCase

from sparse_bo import SparseGP

pytestmark = pytest.mark.slow


class TestSparseGP(BaseModelTestCase, unittest.TestCase):
    def create_model(self, train_x, train_y, likelihood):
        return SparseGP(train_x, train_y.unsqueeze(-1))

    def create_test_data(self):
        return torch.rand(20, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def create_likelihood_and_labels(self):
        return None, self.create_test_data().sum(dim=-1).sin()

    def create_batch_test_data(self, batch_shape=(3,)):
        return torch.rand(*batch_shape, 20, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def create_batch_likelihood_and_labels(self, batch_shape=(3,)):
        return None, self.create_batch_test_data(batch_shape).sum(dim=-1).sin()
