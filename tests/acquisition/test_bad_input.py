"""What optimize_batch refuses, before it does any work, and what it says."""

import math

import pytest
import torch
from botorch.acquisition import qExpectedImprovement, qLogExpectedImprovement, qLogNoisyExpectedImprovement
from botorch.exceptions.errors import UnsupportedError
from botorch.models import ModelListGP, SingleTaskGP, SingleTaskVariationalGP
from botorch.models.deterministic import GenericDeterministicModel
from botorch.models.transforms import Log
from botorch.models.transforms.input import InputPerturbation
from botorch.sampling import SobolQMCNormalSampler

from sparse_bo import SparseGP, SparseMultiTaskGP, optimize_batch
from sparse_bo.models import SparseModelListGP
from tests.acquisition.dense import BOUNDS, Ordinary, build, data, grid

ONE = torch.tensor([1.0], dtype=torch.float64)
BOTH = torch.tensor([0, 1])
ONES = torch.ones(2, dtype=torch.float64)


def logarithmic(Y):
    """Return values whose logarithms are standardised."""
    return ((Y - Y.mean()) / Y.std()).exp()


def nothing(X):
    raise AssertionError("the model was asked before the arguments were checked")


@pytest.fixture
def model():
    model = build(SparseGP)
    model.posterior = nothing
    model.representation = nothing
    return model


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"bounds": None}, ValueError, "either bounds .* or choices"),
        ({"bounds": BOUNDS.T[:1]}, ValueError, r"shape 2 x d"),
        ({"bounds": BOUNDS.tolist()}, TypeError, "torch.Tensor of shape 2 x d, got list"),
        ({"bounds": torch.tensor([[0.0, math.nan], [1.0, 1.0]], dtype=torch.float64)}, ValueError, "finite bounds, got .nan"),
        ({"bounds": torch.tensor([[0.0, -math.inf], [1.0, 1.0]], dtype=torch.float64)}, ValueError, "finite bounds"),
        ({"bounds": BOUNDS.flip(0)}, ValueError, "lower < upper"),
        ({"bounds": BOUNDS.float()}, TypeError, r"dtype torch.float64 on cpu, got torch.float32"),
        ({"bounds": torch.cat([BOUNDS, BOUNDS], dim=1)}, ValueError, "2 columns, as the model's inputs, got 4"),
        ({"choices": grid(3)}, ValueError, "either bounds or choices=, got both"),
        ({"bounds": None, "choices": torch.zeros(0, 2, dtype=torch.float64)}, ValueError, "at least one row"),
        ({"bounds": None, "choices": torch.zeros(3, 5, dtype=torch.float64)}, ValueError, "2 columns, as the model's inputs"),
        ({"bounds": None, "choices": torch.full((3, 2), math.nan, dtype=torch.float64)}, ValueError, "finite choices"),
        ({"bounds": None, "choices": grid(3), "fixed_features": {0: 0.5}}, ValueError, "filter or change the choices"),
        ({"max_q": 0}, ValueError, "max_q >= 1, got 0"),
        ({"max_q": 2.0}, TypeError, "max_q to be an integer"),
        ({"min_q": -1}, ValueError, "min_q >= 0, got -1"),
        ({"min_q": 5, "max_q": 4}, ValueError, r"min_q of at most 4 \(max_q\), got 5; change one of them"),
        ({"min_q": 2, "stop_rule": "single"}, ValueError, r"min_q of at most 1 \(stop_rule='single'\), got 2"),
        ({"num_restarts": 0}, ValueError, "num_restarts >= 1"),
        ({"raw_samples": 0}, ValueError, "raw_samples >= 1"),
        ({"ratio_threshold": 0.99}, ValueError, "ratio_threshold >= 1"),
        ({"ratio_threshold": math.nan}, ValueError, "finite ratio_threshold"),
        ({"ratio_threshold": "2"}, TypeError, "ratio_threshold to be a number"),
        ({"stop_rule": "local"}, ValueError, "use stop_rule='global'"),
        ({"stop_rule": "never"}, ValueError, "'global', 'gp-bucb', 'single'"),
        ({"in_batch": "joint"}, ValueError, "'process', 'fixed'"),
        ({"beta": -1.0}, ValueError, "beta >= 0"),
        ({"beta": math.nan}, ValueError, "finite beta"),
        ({"X_pending": torch.zeros(2, 3, dtype=torch.float64)}, ValueError, "X_pending with 2 columns"),
        ({"X_pending": torch.full((1, 2), math.nan, dtype=torch.float64)}, ValueError, "finite X_pending"),
        ({"X_pending": [0.0, 0.0]}, TypeError, "X_pending to be a torch.Tensor"),
        ({"generator": 3}, TypeError, "torch.Generator on the CPU, got int"),
        ({"fixed_features": {2: 0.5}}, ValueError, r"columns of fixed_features in \[0, 2\), got 2"),
        ({"fixed_features": {0: 1.5}}, ValueError, r"within its bounds \[0.0, 1.0\], got 1.5"),
        ({"fixed_features": {0: math.nan}}, ValueError, "finite fixed_features"),
        ({"fixed_features": {"x": 0.5}}, TypeError, "the key 'x'"),
        ({"inequality_constraints": [(BOTH, ONES)]}, TypeError, "(indices, coefficients, rhs)"),
        ({"inequality_constraints": [([0, 1], ONES, 0.0)]}, TypeError, "tensor of column indices"),
        ({"inequality_constraints": [(BOTH, ONE, 0.0)]}, ValueError, "as many indices as coefficients"),
        ({"equality_constraints": [(torch.tensor([0, 2]), ONES, 0.0)]}, ValueError, r"indices of equality_constraints\[0\] in"),
        ({"equality_constraints": [(torch.tensor([[0, 0], [1, 1]]), ONES, 0.0)]}, ValueError, "ties several points together"),
        ({"inequality_constraints": [(BOTH, ONES * math.nan, 0.0)]}, ValueError, "finite coefficients"),
        ({"inequality_constraints": [(BOTH, ONES, math.inf)]}, ValueError, "finite right-hand side"),
        ({"nonlinear_inequality_constraints": [lambda x: x.sum()]}, TypeError, r"to be \(callable, True\)"),
        ({"nonlinear_inequality_constraints": [(lambda x: x.sum(), False)]}, ValueError, "one after another"),
    ],
)
def test_bad_arguments_are_refused_before_any_work(model, options, error, match):
    with pytest.raises(error, match=match):
        optimize_batch(model, **{"bounds": BOUNDS, **options})


@pytest.mark.parametrize(
    "constraints",
    [
        {"inequality_constraints": [(BOTH, ONES, 2.5)]},
        {"equality_constraints": [(BOTH, ONES, -1.0)]},
        {"inequality_constraints": [(BOTH, ONES, 1.5)], "fixed_features": {0: 0.1}},
        {"nonlinear_inequality_constraints": [(lambda x: -1.0 - x.square().sum(), True)]},
    ],
)
def test_constraints_that_leave_no_point_are_refused(constraints):
    with pytest.raises(ValueError, match="constraints that some point of the bounds satisfies"):
        optimize_batch(build(SparseGP), BOUNDS, **constraints)


def test_a_model_that_is_none_is_refused():
    with pytest.raises(TypeError, match="expected a botorch Model such as sparse_bo.SparseGP, got function"):
        optimize_batch(lambda X: X, BOUNDS)


@pytest.mark.parametrize(("name", "fix"), [("q", "max_q= and min_q= limit"), ("max_qs", "did you mean 'max_q'")])
def test_an_argument_of_another_name_is_refused_with_its_own(name, fix):
    with pytest.raises(TypeError, match=f"optimize_batch got an unexpected argument '{name}'; {fix}"):
        optimize_batch(SingleTaskGP(*data()), BOUNDS, **{name: 8})


@pytest.mark.parametrize("kind", [SparseGP, SingleTaskGP])
def test_several_outputs_and_batches_are_refused(kind):
    X, Y = data()
    with pytest.raises(UnsupportedError, match=r"no batch shape, got 2 outputs .* optimize_acqf\(q=8, sequential=True\)"):
        optimize_batch(kind(X, torch.cat([Y, Y], dim=-1)), BOUNDS)
    with pytest.raises(UnsupportedError, match=r"batch shape \(3,\)"):
        optimize_batch(kind(X.expand(3, -1, -1), Y.expand(3, -1, -1)), BOUNDS)


@pytest.mark.parametrize("domain", [{"bounds": BOUNDS}, {"choices": grid(3)}], ids=["box", "choices"])
@pytest.mark.parametrize(("kind", "members"), [(SparseModelListGP, SparseGP), (ModelListGP, SingleTaskGP)])
def test_a_list_of_one_model_is_refused_with_its_member(kind, members, domain):
    with pytest.raises(UnsupportedError, match=rf"got a {kind.__name__} of one; pass its member, model.models\[0\]"):
        optimize_batch(kind(members(*data())), **domain)


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
def test_a_box_of_tasks_has_the_column_of_the_task():
    X, Y = data()
    tasks = torch.cat([X, (torch.arange(len(X)) % 2).double().unsqueeze(-1)], dim=-1)
    model = SparseMultiTaskGP(tasks, Y, task_feature=-1, output_tasks=[1])
    fix = r"; with the task in column 2, in a box fixed by fixed_features=\{2: …\}"
    with pytest.raises(ValueError, match=f"3 columns, as the model's inputs, got 2{fix}"):
        optimize_batch(model, BOUNDS)
    of_task = torch.cat([BOUNDS, torch.tensor([[0.0], [1.0]], dtype=torch.float64)], dim=-1)
    picks, _ = optimize_batch(model, of_task, fixed_features={2: 1.0}, max_q=2, raw_samples=8, num_restarts=1)
    assert bool((picks[:, 2] == 1.0).all())


@pytest.mark.parametrize("domain", [{"bounds": BOUNDS}, {"choices": grid(3)}], ids=["box", "choices"])
@pytest.mark.parametrize("cls", [SparseGP, SingleTaskGP])
def test_a_model_that_makes_several_inputs_of_a_point_is_refused(cls, domain):
    X, Y = data()
    perturbed = InputPerturbation(torch.tensor([[0.0, 0.0], [0.05, 0.05]], dtype=torch.float64))
    with pytest.raises(UnsupportedError, match="makes 2 inputs of each"):
        optimize_batch(cls(X, Y, input_transform=perturbed), **domain)


def test_the_fixed_update_needs_a_dictionary():
    with pytest.raises(ValueError, match="updates a fixed dictionary, got SingleTaskGP; use SparseGP"):
        optimize_batch(build(SingleTaskGP), BOUNDS, in_batch="fixed")
    X, Y = data()
    with pytest.raises(ValueError, match="no outcome transform but Standardize"):
        optimize_batch(SparseGP(X, logarithmic(Y), outcome_transform=Log()), BOUNDS, in_batch="fixed")


def test_a_model_without_noise_is_refused():
    with pytest.raises(ValueError, match="expected observations with noise"):
        optimize_batch(GenericDeterministicModel(lambda X: X.sum(dim=-1, keepdim=True)), BOUNDS)


def test_a_model_that_cannot_be_conditioned_is_refused():
    X, Y = data()
    variational = SingleTaskVariationalGP(X, (Y - Y.mean()) / Y.std(), inducing_points=X[:10]).double()
    with pytest.raises(UnsupportedError, match="SingleTaskVariationalGP cannot be conditioned on a pick; use SparseGP"):
        optimize_batch(variational, choices=grid(5), ratio_threshold=math.inf, max_q=2)


LARGE = {
    "qLogEI": lambda model, X, Y: qLogExpectedImprovement(model, best_f=Y.max()),
    "qLogNEI": lambda model, X, Y: qLogNoisyExpectedImprovement(model, X),
}


@pytest.mark.parametrize("domain", [{"bounds": BOUNDS}, {"choices": grid(5)}], ids=["box", "choices"])
@pytest.mark.parametrize("function", LARGE)
@pytest.mark.parametrize(("kind", "scale"), [(SparseGP, 1e100), (SingleTaskGP, 1e148)])
def test_outcomes_beyond_the_temperature_of_a_logarithm_are_refused(kind, scale, function, domain):
    X, Y = data()
    model = kind(X, scale * Y).eval()
    with pytest.raises(ValueError, match=r"outcomes within ±1\.2e\+77 for qLog.*, got about .*; divide the outcomes by their"):
        optimize_batch(model, **domain, acq_function=LARGE[function](model, X, scale * Y))


@pytest.mark.filterwarnings("ignore::botorch.exceptions.warnings.NumericsWarning")  # BoTorch prefers the logarithm
@pytest.mark.parametrize("function", ["qLogEI", "qEI"])
def test_the_scale_of_outcomes_does_not_move_the_maximum(function):
    (X, Y), picks = data(), []
    for scale in (1.0, 1e60, *([1e140] if function == "qEI" else [])):
        model = SparseGP(X, scale * Y).eval()
        kind = qLogExpectedImprovement if function == "qLogEI" else qExpectedImprovement
        sampler = SobolQMCNormalSampler(torch.Size([64]), seed=0)
        acquisition = kind(model, best_f=scale * Y.mean(), sampler=sampler)
        picks.append(optimize_batch(model, choices=grid(9), acq_function=acquisition, max_q=1)[0])
    assert all(torch.equal(other, picks[0]) for other in picks)


def test_post_processing_must_return_a_point():
    with pytest.raises(ValueError, match="post_processing_func to return points of shape 1 x 1 x 2, got"):
        optimize_batch(build(SparseGP), BOUNDS, post_processing_func=lambda X: X[..., :1], raw_samples=8, num_restarts=1)


def test_a_log_transformed_model_is_rescored_everywhere():
    """Its variance in the user's units depends on the mean: no bound on old scores holds, so none is used."""
    X, Y = data()
    model = Ordinary(X, logarithmic(Y), outcome_transform=Log()).eval()
    choices = grid(7)
    got, values = optimize_batch(model, choices=choices, ratio_threshold=math.inf, max_q=3)
    mean = model.posterior(choices.unsqueeze(-2)).mean.flatten()
    conditioned = model
    for i in range(3):
        with torch.no_grad():
            scores = mean + 2.0 * conditioned.posterior(choices.unsqueeze(-2)).variance.flatten().sqrt()
            assert float(values[i]) == pytest.approx(float(scores.max()), rel=1e-9)
            row = (got[i] == choices).all(dim=-1)
            conditioned = conditioned.condition_on_observations(got[i : i + 1], mean[row].unsqueeze(-1))
