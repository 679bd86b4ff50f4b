"""All ways to take a sparse model apart and to put it together again give the same posterior."""

import copy
import pickle

import pytest
import torch
from botorch.exceptions.errors import UnsupportedError
from botorch.models import ModelListGP
from botorch.models.transforms import Normalize
from gpytorch.kernels import MaternKernel, ScaleKernel

from sparse_bo import SparseMultiTaskGP
from sparse_bo.models import SparseModelListGP
from tests.models.sparse_problems import D, N, data, make_sparse, points

T = points(7, seed=5)
SAME = {"rtol": 1e-9, "atol": 1e-10}


def model_of(kind, **options):
    """A model of two outputs whose kernels ask for other dictionaries."""
    train = data(outputs=2, batch=(3,) if kind == "batch" else (), noise=kind == "known noise")
    if kind == "transformed inputs":
        options["input_transform"] = Normalize(D)
    model = make_sparse(**train, max_dictionary=N if kind == "exact" else 8, **options)
    lengthscales = torch.tensor([[[0.1, 1.0]], [[1.5, 2.0]]], dtype=torch.float64)
    model.covar_module.lengthscale = lengthscales.expand_as(model.covar_module.lengthscale)
    if kind != "known noise":
        model.likelihood.noise = torch.tensor([[0.02], [0.3]], dtype=torch.float64).expand_as(model.likelihood.noise)
    model.eval()
    if kind == "fantasy":
        model.posterior(T)
        model = model.condition_on_observations(T[:2], torch.ones(2, 2, dtype=torch.float64))
    if kind == "calibrated":
        X = points(100, seed=9)
        Y = torch.stack([torch.sin(3 * X).sum(dim=-1), torch.sin(4 * X).sum(dim=-1)], dim=-1)
        model = model.calibrated(X, Y, torch.zeros_like(Y))
    return model


KINDS = ["plain", "known noise", "transformed inputs", "batch", "fantasy", "calibrated", "exact"]


def moments(model, outputs=slice(None)):
    posterior = model.posterior(T)
    return posterior.mean[..., outputs].detach(), posterior.variance[..., outputs].detach()


@pytest.mark.sampled(21)
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("outputs", [[0], [1], [1, 0]], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_a_subset_of_outputs_is_the_same_posterior(kind, outputs, training):
    model = model_of(kind)
    expected = moments(model, outputs)
    if training and kind != "fantasy":  # a fantasy model that is trained is one of all its data
        model.train()
    subset = model.subset_output(outputs)
    assert subset.training == model.training
    assert subset.num_outputs == len(outputs)
    for _ in range(2):
        for one, other in zip(moments(subset), expected, strict=True):
            torch.testing.assert_close(one, other, **SAME)
        if kind == "fantasy":
            break
        subset.train()  # the next posterior is made anew, over the same dictionary
    for one, other in zip(moments(model, outputs), expected, strict=True):
        torch.testing.assert_close(one, other, **SAME)


WAYS = {
    "deep copy": copy.deepcopy,
    "pickle": lambda model: pickle.loads(pickle.dumps(model)),
    "double": lambda model: model.double(),
    "to": lambda model: model.to(torch.device("cpu")),
    "nothing observed": lambda model: model.condition_on_observations(
        T[:0].expand(*model.batch_shape, 0, D), torch.ones(*model.batch_shape, 0, 2, dtype=torch.float64)
    ),
    "all outputs": lambda model: model.subset_output([0, 1]),
    "list of outputs": lambda model: SparseModelListGP(*(model.subset_output([index]) for index in (0, 1))),
    "BoTorch's list of outputs": lambda model: ModelListGP(*(model.subset_output([index]) for index in (0, 1))),
    "list and back": lambda model: SparseModelListGP(model.subset_output([0]), model).subset_output([0, 2]),
    "twice": lambda model: model.subset_output([1, 0]).subset_output([1, 0]),
    "copied list": lambda model: copy.deepcopy(SparseModelListGP(*(model.subset_output([index]) for index in (0, 1)))),
}


@pytest.mark.sampled(27)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("known noise", "batch")])
def test_a_model_put_together_again_is_the_same_posterior(kind, way):
    model = model_of(kind)
    expected = moments(model)
    for one, other in zip(moments(WAYS[way](model)), expected, strict=True):
        torch.testing.assert_close(one, other, **SAME)


def test_a_state_dict_is_the_same_posterior():
    model, other = model_of("plain"), make_sparse(**data(outputs=2), max_dictionary=8)
    other.load_state_dict(model.state_dict())
    for one, two in zip(moments(other), moments(model), strict=True):
        torch.testing.assert_close(one, two, **SAME)


def test_models_that_botorch_cannot_cut_are_refused_as_there():
    own = make_sparse(**data(outputs=2), covar_module=ScaleKernel(MaternKernel()))
    with pytest.raises(NotImplementedError, match="subset_output"):
        own.subset_output([0])
    X = torch.cat([points(10), torch.arange(10, dtype=torch.float64).remainder(2).unsqueeze(-1)], dim=-1)
    with pytest.raises(UnsupportedError, match="Subsetting outputs"):
        SparseMultiTaskGP(X, X[:, :1], task_feature=-1).subset_output([0])
