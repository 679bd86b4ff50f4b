"""The sparse siblings of MixedSingleTaskGP, MultiTaskGP and SingleTaskMultiFidelityGP: exact, sparse, learning, bad input."""

import pytest
import torch
from botorch.exceptions.errors import UnsupportedError
from botorch.fit import fit_gpytorch_mll
from botorch.models import MixedSingleTaskGP, MultiTaskGP, SingleTaskMultiFidelityGP
from botorch.models.transforms import Normalize
from botorch.sampling import SobolQMCNormalSampler
from botorch.sampling.pathwise import draw_matheron_paths
from botorch.utils.datasets import MultiTaskDataset, SupervisedDataset
from gpytorch.kernels import MaternKernel
from gpytorch.mlls import ExactMarginalLogLikelihood

from sparse_bo import SparseMixedGP, SparseMultiFidelityGP, SparseMultiTaskGP
from sparse_bo.models.sparse_gp.diagnostics import left_out
from tests.models.sparse_problems import make_sparse

TOLERANCE = 1e-8
ROWS = torch.tensor([1, 4, 8, 15, 21, 28])

pytestmark = [
    # The last column is a category, a task or a fidelity: 0, 1 or 2.
    pytest.mark.filterwarnings(
        "ignore:Data .input features. is not contained to the unit cube:botorch.exceptions.InputDataWarning"
    ),
    # Of torch, once per process, at linear_operator's interpolation in GPyTorch's task kernel.
    pytest.mark.filterwarnings("ignore:Sparse invariant checks are implicitly disabled:UserWarning"),
]


def data(*, n=30, noise=False, seed=0, step=1.0):
    g = torch.Generator().manual_seed(seed)
    X = torch.rand(n, 3, generator=g, dtype=torch.float64)
    X[:, 2] = step * (3 * X[:, 2]).floor()
    Y = torch.sin(4 * X[:, :1]) + X[:, 1:2] * (1 + X[:, 2:]) + 0.1 * torch.randn(n, 1, generator=g, dtype=torch.float64)
    known = {"train_Yvar": 0.01 + 0.1 * torch.rand(n, 1, generator=g, dtype=torch.float64)} if noise else {}
    return {"train_X": X, "train_Y": Y, **known}


def points(*shape, seed=1):
    """Points whose last column is a category, a task or a fidelity that was seen."""
    X = torch.rand(*shape, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    X[..., 2] = (2 * X[..., 2]).floor()
    return X


MIXED, TASKS, FIDELITY = (
    (MixedSingleTaskGP, SparseMixedGP),
    (MultiTaskGP, SparseMultiTaskGP),
    (
        SingleTaskMultiFidelityGP,
        SparseMultiFidelityGP,
    ),
)
CASES = {
    "mixed": (MIXED, {"cat_dims": [2]}),
    "mixed, known noise": (MIXED, {"cat_dims": [-1], "noise": True}),
    "all categorical": (MIXED, {"cat_dims": [0, 1, 2]}),
    "mixed, another kernel": (MIXED, {"cat_dims": [2], "cont_kernel_factory": lambda **k: MaternKernel(nu=1.5, **k)}),
    "tasks": (TASKS, {"task_feature": 2}),
    "tasks, known noise": (TASKS, {"task_feature": -1, "noise": True}),
    "tasks, rank one, two outputs": (TASKS, {"task_feature": 2, "rank": 1, "output_tasks": [2, 0]}),
    "tasks, normalized": (TASKS, {"task_feature": 2, "input_transform": lambda: Normalize(3, indices=[0, 1])}),
    "fidelity": (FIDELITY, {"data_fidelities": [2]}),
    "fidelities, known noise": (FIDELITY, {"iteration_fidelity": 1, "data_fidelities": [2], "noise": True}),
    "fidelities, not truncated": (FIDELITY, {"iteration_fidelity": 1, "data_fidelities": [2], "linear_truncated": False}),
}


def pair(case, **own):
    """Return BoTorch's model and ours with the same, not quite default hyper-parameters."""
    (theirs, ours), options = CASES[case]
    options = {name: value() if name == "input_transform" else value for name, value in options.items() if name != "noise"}
    train = data(noise="known noise" in case, step=0.5 if "fidelit" in case else 1.0)  # a fidelity is at most 1
    exact, sparse = theirs(**train, **options), make_sparse(**train, **options, **own, kind=ours)
    with torch.no_grad():
        for parameter in exact.parameters():
            parameter.mul_(0.9)
    sparse.load_state_dict(exact.state_dict())
    return exact.eval(), sparse.eval()


def agree(one, two):
    torch.testing.assert_close(one.mean, two.mean, rtol=0, atol=TOLERANCE)
    torch.testing.assert_close(one.variance, two.variance, rtol=0, atol=TOLERANCE)
    ours, theirs = (p.distribution.covariance_matrix for p in (one, two))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=TOLERANCE)


@pytest.mark.sampled
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("shape", [(1,), (3,), (4, 1), (2, 3, 2)], ids=str)
def test_with_every_input_in_the_dictionary_it_is_the_sibling(case, shape):
    exact, sparse = pair(case)
    assert isinstance(sparse, type(exact))
    agree(sparse.posterior(points(*shape)), exact.posterior(points(*shape)))
    agree(sparse.posterior(points(*shape), observation_noise=True), exact.posterior(points(*shape), observation_noise=True))


@pytest.mark.parametrize("case", [case for case in CASES if "tasks" in case])
def test_all_tasks_at_once_are_the_siblings(case):
    exact, sparse = pair(case)
    agree(sparse.posterior(points(4)[:, :2]), exact.posterior(points(4)[:, :2]))
    agree(sparse.posterior(points(4)[:, :2], output_indices=[1]), exact.posterior(points(4)[:, :2], output_indices=[1]))


@pytest.mark.sampled(5)
@pytest.mark.parametrize("case", CASES)
def test_conditioning_and_fantasies_are_the_siblings(case):
    exact, sparse = pair(case)
    X, Y = points(2), torch.ones(2, 1, dtype=torch.float64)
    known = {"noise": torch.full_like(Y, 0.05)} if "known noise" in case else {}
    conditioned, fantasies = [], []
    for model in (sparse, exact):
        model.posterior(X)
        conditioned.append(model.condition_on_observations(X, Y, **known).posterior(points(5, seed=2)))
        sampler = SobolQMCNormalSampler(torch.Size([3]), seed=0)
        if case == "tasks, known noise":  # BoTorch averages noise over a dimension that tasks do not have
            with pytest.raises(IndexError):
                model.fantasize(points(4, 2, seed=3), sampler)
            continue
        fantasies.append(model.fantasize(points(4, 2, seed=3), sampler).posterior(points(5, seed=2)))
    agree(*conditioned)
    if fantasies:
        agree(*fantasies)


@pytest.mark.parametrize("case", CASES)
def test_over_a_dictionary_it_is_the_dense_dtc_posterior(case, scale):
    """The prior is read off the sibling's ``forward``, the formula is dense; the sweep is chunked."""
    scale(sums={"memory_bytes": 11 * 5 * 8 * len(ROWS)})
    exact, sparse = pair(case, dictionary=ROWS)
    T, n = sparse.transform_inputs(points(5)), 30
    (X,), y, noise = exact.train_inputs, exact.train_targets, exact.likelihood.noise.detach()
    if noise.numel() == 3:  # one for each task
        noise = noise[X[:, 2].long()]
    prior = exact.forward(torch.cat([X, T]))
    K, mean = prior.covariance_matrix.detach(), prior.mean.detach()
    Q = K[:, ROWS] @ torch.linalg.inv(K[ROWS][:, ROWS]) @ K[ROWS]
    C = torch.linalg.inv(Q[:n, :n] + torch.diag(noise.expand(n)))
    expected = mean[n:] + Q[n:, :n] @ C @ (y - mean[:n])
    covariance = K[n:, n:] - Q[n:, :n] @ C @ Q[:n, n:]
    posterior = sparse(T)
    torch.testing.assert_close(posterior.mean, expected, rtol=0, atol=TOLERANCE)
    torch.testing.assert_close(posterior.covariance_matrix, covariance, rtol=0, atol=TOLERANCE)


@pytest.mark.sampled
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("fit", ["exact", "subset", "vfe", "dtc"])
def test_every_way_to_learn_is_the_siblings_likelihood_or_its_dense_approximation(case, fit, scale):
    scale(learning={"subset": 12})
    exact, sparse = pair(case, dictionary=ROWS, fit=fit)
    for model in (exact, sparse):
        model.train()
    marginals = [model.likelihood(model(*model.train_inputs), *model.train_inputs) for model in (exact, sparse)]
    residuals = exact.train_targets - marginals[0].mean
    noisy = marginals[0].covariance_matrix
    K = exact(*exact.train_inputs).covariance_matrix
    noise = (noisy - K).diagonal()
    Q = K[:, ROWS] @ torch.linalg.inv(K[ROWS][:, ROWS]) @ K[ROWS]
    normal = torch.distributions.MultivariateNormal
    if fit == "exact":
        expected = marginals[0].log_prob(exact.train_targets)
    elif fit == "subset":
        marginals[1].log_prob(sparse.train_targets)
        rows = sparse.learner.rows(sparse)
        part = normal(torch.zeros(12).double(), noisy[rows][:, rows])
        expected = part.log_prob(residuals[rows]) * 30 / 12
    else:
        expected = normal(torch.zeros(30).double(), Q + torch.diag(noise)).log_prob(residuals)
        expected = expected - (0.5 * ((K - Q).diagonal() / noise).sum() if fit == "vfe" else 0.0)
    value = marginals[1].log_prob(sparse.train_targets)
    torch.testing.assert_close(value, expected, rtol=1e-8, atol=0)
    gradients = torch.autograd.grad(value, list(sparse.parameters()), allow_unused=True)
    others = torch.autograd.grad(expected, list(exact.parameters()), allow_unused=True)
    for name, one, two in zip(dict(sparse.named_parameters()), gradients, others, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-6, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("case", [*(pytest.param(case, marks=pytest.mark.slow) for case in ("mixed", "tasks")), "fidelity"])
def test_a_fit_beyond_the_subset_finds_what_predicts(case, scale):
    scale(learning={"subset": 60})
    (_, ours), options = CASES[case]
    model = make_sparse(**data(n=150), **options, max_dictionary=100, kind=ours)
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    test = data(n=100, seed=5)
    errors = model.posterior(test["train_X"]).mean - test["train_Y"]
    assert test["train_Y"].std() > 0.8
    assert errors.square().mean().sqrt() < 0.3  # the noise has a standard deviation of 0.1


@pytest.mark.parametrize("case", CASES)
def test_leave_one_out_is_that_of_refits(case):
    exact, sparse = pair(case, dictionary=ROWS)
    means, variances, _ = left_out(sparse, observation_noise=True)
    (X,), y = sparse.train_inputs, sparse.train_targets
    noise = exact.likelihood.noise.detach()
    noise = (noise[X[:, 2].long()] if noise.numel() == 3 else noise).expand(30)
    K, mean = (part.detach() for part in (exact.forward(X).covariance_matrix, exact.forward(X).mean))
    Q = K[:, ROWS] @ torch.linalg.inv(K[ROWS][:, ROWS]) @ K[ROWS]
    for i in (0, 4, 17):
        kept = torch.arange(30) != i
        C = torch.linalg.inv(Q[kept][:, kept] + torch.diag(noise[kept]))
        torch.testing.assert_close(means[i, 0], mean[i] + Q[i, kept] @ C @ (y - mean)[kept], rtol=0, atol=TOLERANCE)
        torch.testing.assert_close(variances[i, 0], K[i, i] - Q[i, kept] @ C @ Q[kept, i] + noise[i], rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("case", CASES)
def test_leave_one_out_has_a_row_for_each_observation(case):
    _, sparse = pair(case, dictionary=ROWS)
    means, variances, targets = left_out(sparse, observation_noise=True)
    results, outputs = sparse.leave_one_out(untransform=False), sparse.num_outputs
    for found, expected in (
        (results.posterior.mean, means.unsqueeze(-1)),
        (results.posterior.variance, variances.unsqueeze(-1)),
        (results.observed_Y, targets[:, None, None]),
    ):
        torch.testing.assert_close(found, expected, rtol=0, atol=0)
    assert sparse.leave_one_out().posterior.mean.shape == targets[:, None, None].shape
    assert sparse.num_outputs == outputs


def outcome(model, options, at):
    """Return the posterior mean, or the class of what was raised."""
    try:
        with torch.random.fork_rng():
            torch.manual_seed(0)  # the task kernel starts at random
            return model(**options).posterior(at).mean.detach()
    except Exception as error:  # whatever it is, the sibling must raise the same
        return type(error)


NOISE = torch.ones(29, 1, dtype=torch.float64)
STRANGE = {
    "no categorical column": (MIXED, {"cat_dims": []}, points(2)),
    "a categorical column that is not there": (MIXED, {"cat_dims": [3]}, points(2)),
    "a category that was never seen": (MIXED, {"cat_dims": [2]}, points(2) + torch.tensor([0.0, 0.0, 7.0])),
    "categories and noise of another shape": (MIXED, {"cat_dims": [2], "train_Yvar": NOISE}, points(2)),
    "categories and too few columns": (MIXED, {"cat_dims": [2]}, points(2)[:, :1]),
    "a task column that is not there": (TASKS, {"task_feature": 3}, points(2)),
    "a task column that is not there, from the end": (TASKS, {"task_feature": -4}, points(2)),
    "an output task without data": (TASKS, {"task_feature": 2, "output_tasks": [5]}, points(2)),
    "a task that was never seen": (TASKS, {"task_feature": 2}, points(2) + torch.tensor([0.0, 0.0, 7.0])),
    "a task that is not a number of a task": (TASKS, {"task_feature": 2}, points(2) - torch.tensor([0.0, 0.0, 3.0])),
    "tasks and noise of another shape": (TASKS, {"task_feature": 2, "train_Yvar": NOISE}, points(2)),
    "tasks and too few columns": (TASKS, {"task_feature": 2}, points(2)[:, :1]),
    "tasks and a batch of data sets": (
        TASKS,
        {"task_feature": 2, **{k: v.expand(2, -1, -1) for k, v in data().items()}},
        points(2),
    ),
    "no fidelity column": (FIDELITY, {}, points(2)),
    "a fidelity column that is not there": (FIDELITY, {"data_fidelities": [3]}, points(2)),
    "a fidelity column that is not there, not truncated": (
        FIDELITY,
        {"data_fidelities": [3], "linear_truncated": False},
        points(2),
    ),
    "a kernel beside the truncated one": (FIDELITY, {"data_fidelities": [2], "covar_module": MaternKernel()}, points(2)),
    "fidelities and noise of another shape": (FIDELITY, {"data_fidelities": [2], "train_Yvar": NOISE}, points(2)),
    "fidelities and too few columns": (FIDELITY, {"data_fidelities": [2]}, points(2)[:, :1]),
}


@pytest.mark.parametrize("name", STRANGE)
def test_strange_input_does_what_it_does_to_the_sibling(name):
    (theirs, ours), options, at = STRANGE[name]
    expected, got = (outcome(model, {**data(), **options}, at) for model in (theirs, ours))
    if isinstance(expected, type):
        assert got is expected
    else:
        torch.testing.assert_close(got, expected, rtol=0, atol=TOLERANCE)


def test_strange_input_is_mostly_refused():
    """The comparison above would pass if both took anything."""
    refused = [
        name for name, (pair, options, at) in STRANGE.items() if isinstance(outcome(pair[1], {**data(), **options}, at), type)
    ]
    assert len(refused) >= 15, set(STRANGE) - set(refused)


@pytest.mark.parametrize(
    ("model", "options"), [(pair[1], options) for pair, options in (CASES["mixed"], CASES["tasks"], CASES["fidelity"])]
)
def test_own_options_are_checked(model, options):
    for own in ({"max_dictionary": 0}, {"fit": "map"}, {"seed": -1}, {"dictionary": torch.tensor([0, 30])}):
        with pytest.raises(ValueError):
            model(**data(), **options, **own)


def test_construct_inputs_take_botorchs_options_and_the_own_ones():
    train = data()
    names = {"feature_names": ["a", "b", "c"], "outcome_names": ["y"]}
    dataset = SupervisedDataset(train["train_X"], train["train_Y"], **names)
    mixed = SparseMixedGP(**SparseMixedGP.construct_inputs(dataset, categorical_features=[2], dictionary=ROWS))
    fidelity = SparseMultiFidelityGP(**SparseMultiFidelityGP.construct_inputs(dataset, fidelity_features=[2], max_dictionary=6))
    parts = [
        SupervisedDataset(
            train["train_X"][:, [0, 1]].contiguous(), train["train_Y"], feature_names=["a", "b"], outcome_names=[name]
        )
        for name in ("y", "z")
    ]
    tasks = MultiTaskDataset(parts, target_outcome_name="y")
    multi = SparseMultiTaskGP(**SparseMultiTaskGP.construct_inputs(tasks, task_feature=-1, dictionary=ROWS))
    for model, at in ((mixed, points(2)), (fidelity, points(2)), (multi, points(2)[:, :2])):
        model.posterior(at)
        assert model.representation().points.shape[-2] == 6
    with pytest.raises(TypeError, match="categorical_features"):
        SparseMixedGP.construct_inputs(dataset)


def test_paths_need_a_kernel_that_features_stand_for():
    model = pair("tasks", dictionary=ROWS)[1]
    with pytest.raises(UnsupportedError, match="posterior"):
        draw_matheron_paths(model, torch.Size([2]))
