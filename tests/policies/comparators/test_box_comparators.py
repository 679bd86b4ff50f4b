"""The comparators on boxes: embeddings, Thompson sampling, sparse and Vecchia surrogates."""

import pytest
import torch
from botorch.models import SingleTaskGP
from botorch.sampling.pathwise import draw_matheron_paths

from sparse_bo import AskTell, Float, Int
from sparse_bo.dictionary import FirstSampler
from sparse_bo.domains.base import Box
from sparse_bo.policies import QFFTS, REMBO, SGPTS, BoTorchUCB, HeSBO, RandomSearch, SparseUCB, VecchiaUCB
from sparse_bo.policies.subset.surrogate_models import exact_gp, sparse_gp
from tests.policies.builders import SMALL, bowl, box, keep_parameters

CHEAP = {**SMALL, "fitter": keep_parameters}
INNER = BoTorchUCB(**CHEAP)


def corner(X):
    """Its optimum is the middle of the box; only the first two inputs matter."""
    return -(X[:, :2] - 3.0).square().sum(-1)


def wide(d=12, device="cpu"):
    return torch.stack([torch.full((d,), 1.0), torch.full((d,), 5.0)]).double().to(device)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "policy",
    [
        VecchiaUCB(**CHEAP, neighbors=6),
        SparseUCB(**CHEAP, dictionary=FirstSampler(size=6)),
        SGPTS(**CHEAP, max_dictionary=8),
        QFFTS(**CHEAP),
    ],
    ids=lambda p: p.name,
)
def test_they_climb_repeat_and_leave_the_global_generators_alone(policy, device):
    before = torch.get_rng_state()
    runs = [AskTell(policy=policy, bounds=box(device), seed=seed).run(bowl, 8) for seed in (0, 0, 1)]
    assert torch.equal(torch.get_rng_state(), before)
    assert runs[0].history.points == runs[1].history.points != runs[2].history.points
    first = max(runs[0].history.rows[0].values)
    assert runs[0].best_observed_mean > first


@pytest.mark.parametrize("policy", [SGPTS(**CHEAP, batch_size=3), QFFTS(**CHEAP, batch_size=3)], ids=lambda p: p.name)
def test_each_point_of_a_batch_has_its_own_function(policy):
    rows = AskTell(policy=policy, bounds=box(), seed=0).run(lambda X: 0.0 * X[:, 0], 7).history.rows
    assert [row.batch_size for row in rows] == [4, 3]
    assert len({tuple(x) for x in rows[1].points}) == 3


def test_drawn_functions_follow_the_posterior(device):
    X = torch.rand(5, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(device)
    model = sparse_gp(X, (5.0 * X).sin().sum(-1, keepdim=True), max_dictionary=64)
    keep_parameters(model)
    test = torch.rand(4, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(device)
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(0)
        draws = draw_matheron_paths(model, torch.Size([200]))(test).reshape(200, 4)
        posterior = model.posterior(test)
    sd = posterior.variance.sqrt().squeeze(-1)
    assert float(((draws.mean(0) - posterior.mean.squeeze(-1)) / sd).abs().max()) < 0.3
    assert float((draws.std(0) / sd - 1.0).abs().max()) < 0.2


@pytest.mark.parametrize("policy", [REMBO, HeSBO])
def test_an_embedding_searches_its_subspace(policy, device):
    chosen = policy(inner=INNER, target_dims=4, embedding_seed=3)
    result = AskTell(policy=chosen, bounds=wide(device=device), seed=0).run(corner, 9)
    state = result.state
    assert state.X.shape == (9, 12)
    assert state.inner.X.shape == (9, 4)
    lifted = state.lifted(state.inner.X)
    torch.testing.assert_close(lifted, state.X, rtol=0.0, atol=1e-5)
    assert bool(((state.X >= 1.0) & (state.X <= 5.0)).all())
    assert result.best_x.shape == (12,)
    assert result.best_observed_mean == pytest.approx(float(corner(state.X).max()))


@pytest.mark.parametrize("policy", [REMBO, HeSBO])
@pytest.mark.parametrize(("dims", "target"), [(3, 3), (12, 4), (40, 5), (6, 5)])
def test_preimages_are_lifted_to_where_they_came_from(policy, dims, target, generator, device):
    embedding = policy(target_dims=target).embedding(Box(wide(dims, device)))
    inside = embedding.box.uniform(20, generator=generator)
    X = embedding.lift(inside)
    back, misses = embedding.preimage(X)
    assert float(misses.max()) < 1e-7
    torch.testing.assert_close(embedding.lift(back), X, rtol=0.0, atol=1e-6)
    assert bool((back.abs() <= embedding.box.upper + 1e-9).all())


def test_embeddings_are_those_of_the_papers(device):
    gaussian = REMBO(target_dims=5, embedding_seed=1).embedding(Box(wide(4000, device)))
    assert gaussian.matrix.shape == (4000, 5)
    assert float(gaussian.matrix.mean()) == pytest.approx(0.0, abs=0.02)
    assert float(gaussian.matrix.std()) == pytest.approx(1.0, abs=0.02)
    assert float(gaussian.box.upper[0]) == pytest.approx(5.0**0.5)
    hashed = HeSBO(target_dims=5, embedding_seed=1).embedding(Box(wide(4000, device)))
    shares = torch.bincount(hashed.hashes, minlength=5) / 4000
    assert float((shares - 0.2).abs().max()) < 0.03
    assert abs(float(hashed.signs.mean())) < 0.05
    U = torch.tensor([[0.1, -0.2, 0.3, -0.4, 0.5]], dtype=torch.float64, device=device)
    assert hashed.lift(U)[0, 7] == hashed.signs[7] * U[0, hashed.hashes[7]]


def test_pending_points_reach_the_inner_policy(generator):
    search = REMBO(inner=INNER, target_dims=4).on(Box(wide()))
    state = search.init()
    asked = search.ask(state, max_q=9, pending=state.X, generator=generator).picks
    assert asked.shape == (4, 12)  # the inner policy's initial design
    assert len(search.ask(state, max_q=9, pending=asked[:1], generator=generator).picks) == 3


def test_a_batch_without_results_counts_as_a_round_inside_too():
    loop = AskTell(policy=HeSBO(inner=RandomSearch(), target_dims=2), bounds=wide(), seed=0)
    loop.fail(loop.ask().tickets)
    assert loop.state.round == loop.state.inner.round == 1


def test_bad_settings():
    X = torch.rand(5, 12, generator=torch.Generator().manual_seed(0)).double() * 4.0 + 1.0
    with pytest.raises(ValueError, match="target_dims <= the 12 dimensions of the box, got 13"):
        AskTell(policy=REMBO(target_dims=13), bounds=wide())
    with pytest.raises(ValueError, match="target_dims >= 1"):
        HeSBO(target_dims=0)
    with pytest.raises(TypeError, match="inner to be a policy"):
        REMBO(inner="gssbo")
    for policy in (REMBO, HeSBO):
        with pytest.raises(ValueError, match="half-widths of the box outside; tell only points that were asked"):
            AskTell(policy=policy(inner=INNER, target_dims=2), bounds=wide(), initial=(X, corner(X)))
    with pytest.raises(TypeError, match="searches a box"):
        AskTell(X, HeSBO(target_dims=2))
    with pytest.raises(ValueError, match=r"takes boxes of d <= 3, got d = 12; use SGPTS"):
        AskTell(policy=QFFTS(), bounds=wide())
    with pytest.raises(ValueError, match="those of a Gaussian kernel over all inputs, got MaternKernel"):
        AskTell(policy=QFFTS(**CHEAP, surrogate=exact_gp), bounds=box(), seed=0).run(bowl, 5)
    with pytest.raises(ValueError, match="order >= 1"):
        QFFTS(order=0)
    with pytest.raises(ValueError, match="max_dictionary >= 1"):
        SGPTS(max_dictionary=0)
    with pytest.raises(ValueError, match="neighbors >= 1"):
        VecchiaUCB(neighbors=0)
    for make in (SGPTS, SparseUCB):
        with pytest.raises(TypeError, match="dictionary to be a sampler"):
            make(dictionary=5)


def test_quadrature_learns_from_few_and_regresses_on_all(generator):
    X = Box(box()).uniform(510, generator=generator)
    policy = QFFTS(**CHEAP, surrogate=lambda X, Y: SingleTaskGP(X, Y), order=8)
    loop = AskTell(policy=policy, bounds=box(), seed=0, initial=(X, bowl(X)))
    assert len(loop.state.subset) == len(loop.state.surrogate.train_targets) == 500
    assert loop.state.pulls == 510


@pytest.mark.parametrize("kind", [REMBO, HeSBO])
def test_parameters_that_are_rounded_are_refused_before_any_evaluation(kind):
    space = {"a": Int(1, 200), "b": Float(0.0, 1.0), "c": Float(0.0, 1.0)}
    with pytest.raises(TypeError, match="space of Float alone for .*, got parameters that are rounded"):
        AskTell(space=space, policy=kind(target_dims=2))
    space = {name: Float(0.0, 1.0) for name in "abc"}
    with pytest.raises(TypeError, match="space of Float alone for .*, got feasible=, which moves points to others"):
        AskTell(space=space, feasible=lambda p: p["a"] + p["b"] < 1.0, policy=kind(target_dims=2))


@pytest.mark.parametrize("policy", [SGPTS(**CHEAP), QFFTS(**CHEAP)], ids=lambda policy: policy.name)
def test_the_size_of_outcomes_changes_no_maximum_of_a_drawn_function(policy):
    """The tolerances of a search are absolute."""
    points = []
    for size in (1.0, 2.0**-40):
        loop = AskTell(bounds=box(), policy=policy, seed=0)
        loop.run(lambda X, size=size: size * bowl(X), 12)
        points.append(torch.tensor(loop.history.points))
    torch.testing.assert_close(*points)
