import math

import numpy as np
import pytest
import torch

from sparse_bo import AskTell, Float, Int, MemmapArms, ProductGrid, Space, TrustRegion, maximize
from sparse_bo.domains import check_domain
from sparse_bo.domains.base import Box
from sparse_bo.policies import BoxState, EpsilonGreedy, RandomSearch


def bounds(**kwargs):
    return torch.tensor([[-1.0, 0.0], [1.0, 10.0]], **{"dtype": torch.float64, **kwargs})


def test_draws_lie_inside_and_follow_the_generator(device):
    box = Box(bounds(device=device))
    for draw in (box.uniform, box.sobol):
        X = draw(64, generator=torch.Generator().manual_seed(1))
        assert X.shape == (64, 2)
        assert X.device.type == torch.device(device).type
        assert bool((box.lower <= X).all())
        assert bool((box.upper >= X).all())
        assert torch.equal(X, draw(64, generator=torch.Generator().manual_seed(1)))
        assert not torch.equal(X, draw(64, generator=torch.Generator().manual_seed(2)))


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        ([[0.0], [1.0]], ValueError, r"bounds as d pairs \[\(lower, upper\), …\], got shape \(2, 1\)"),
        (torch.zeros(3, 2), ValueError, "bounds of shape 2 x d"),
        (torch.tensor([[False], [True]]), TypeError, "use bounds.double"),
        (torch.tensor([[0.0, math.nan], [1.0, 1.0]]), ValueError, "finite bounds"),
        (torch.tensor([[0.0, 2.0], [1.0, 2.0]]), ValueError, "lower < upper bounds, got .2.0, 2.0. for input 1; exchange"),
    ],
    ids=["list", "shape", "booleans", "nan", "order"],
)
def test_bad_bounds_are_named(wrong, error, message):
    with pytest.raises(error, match=message):
        AskTell(bounds=wrong, policy=RandomSearch())


@pytest.mark.parametrize("policy", [RandomSearch(), TrustRegion()], ids=lambda policy: policy.name)
def test_initial_observations_may_require_gradients(policy):
    X = torch.tensor([[0.5, 1.0], [-0.5, 9.0], [0.0, 2.0]], dtype=torch.float64, requires_grad=True)
    loop = AskTell(bounds=bounds(), policy=policy, initial=(X, X.square().sum(dim=-1)), seed=0)
    batch = loop.ask(3)
    loop.tell(batch.tickets, [1.0] * len(batch))
    assert not loop.state.X.requires_grad
    assert loop.state.X[:3].tolist() == X.tolist()


HUGE = torch.tensor([[-1.7e308, 0.0], [1.7e308, 1.0]], dtype=torch.float64)


def test_ranges_beyond_the_largest_number_are_refused_before_any_evaluation(tmp_path):
    """Their differences are infinite: points between them are, too."""
    (tmp_path / "space.toml").write_text('x = {type = "float", low = -1.7e308, high = 1.7e308}\n')
    np.save(tmp_path / "arms.npy", HUGE.numpy())
    calls: list[int] = []
    for domain in (
        lambda: {"bounds": HUGE},
        lambda: {"arms": HUGE},
        lambda: {"arms": torch.full((50, 1), 1e307, dtype=torch.float64)},  # centring them takes their sum
        lambda: {"arms": ProductGrid([HUGE[:, 0], HUGE[:, 1]])},
        lambda: {"arms": ProductGrid.linspace(HUGE, [3, 3])},
        lambda: {"arms": MemmapArms(tmp_path / "arms.npy")},
        lambda: {"space": {"x": Float(-1.7e308, 1.7e308)}},
        lambda: {"space": Space.load(tmp_path / "space.toml")},
    ):
        with pytest.raises(
            ValueError, match=r"below 1.8e308, got .*1[.e].*; (divide this input|search it divided) by its larg"
        ):
            maximize(calls.append, **domain(), budget=3)
    assert not calls


@pytest.mark.sampled(1)
@pytest.mark.parametrize("scale", [8e307, 1e-308, 1e-320])
def test_boxes_of_any_other_size_are_searched(scale):
    box = torch.tensor([[-scale, 0.0], [scale, 1.0]], dtype=torch.float64)
    result = maximize(lambda X: -(X / box[1]).square().sum(dim=-1), bounds=box, budget=14, seed=0)
    assert abs(float(result.best_x[0])) < 0.6 * scale


def test_bounds_and_points_in_float32_may_be_far_apart():
    box = Box(torch.tensor([[-3e38], [3e38]]))
    assert box.check("points", torch.tensor([[3e38], [-1e38]])).tolist() == [
        [float(np.float32(3e38))],
        [float(np.float32(-1e38))],
    ]
    small = Box(torch.tensor([[-3e38, 0.0], [3e38, 1.0]]))
    with pytest.raises(ValueError, match="inside the bounds"):
        small.check("points", torch.tensor([[0.0, 1.1]]))


@pytest.mark.parametrize(
    ("domain", "given"),
    [
        ({"bounds": bounds()}, lambda: (row for row in bounds())),
        ({"arms": bounds()}, lambda: (i for i in range(2))),
        ({"space": {"n": Int(0, 9)}}, lambda: ({"n": i} for i in range(2))),
    ],
    ids=["box", "arms", "space"],
)
def test_initial_inputs_of_a_generator_are_refused_with_the_fix(domain, given):
    with pytest.raises(TypeError, match="expected initial inputs as a list, an array or a tensor, got generator; use list"):
        AskTell(**domain, initial=(given(), [0.0, 1.0]))


def test_either_arms_or_bounds():
    with pytest.raises(ValueError, match="got none of them"):
        check_domain(None, None)
    with pytest.raises(ValueError, match="got both"):
        check_domain(bounds(), bounds())


@pytest.mark.parametrize(
    ("X", "error", "message"),
    [
        (torch.zeros(1, 3, dtype=torch.float64), ValueError, "shape n x 2"),
        (torch.zeros(1, 2), TypeError, "dtype torch.float64"),
        (
            torch.tensor([[0.0, 0.0], [0.0, 11.0]], dtype=torch.float64),
            ValueError,
            "inside the bounds, got 1 outside, .* row 1",
        ),
        (torch.tensor([[0.0, math.inf]], dtype=torch.float64), ValueError, "finite initial inputs"),
        ([0.0, 0.0], ValueError, "shape n x 2, got shape"),
    ],
    ids=["width", "dtype", "outside", "infinite", "list"],
)
def test_bad_initial_points_are_named(X, error, message):
    with pytest.raises(error, match=message):
        AskTell(bounds=bounds(), policy=RandomSearch(), initial=(X, torch.zeros(len(X), dtype=torch.float64)))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_box_run_hands_out_points_in_the_users_dtype(dtype):
    seen = []

    def objective(X):
        seen.append(X)
        return -(X - 0.5).square().sum(dim=-1)

    start = (torch.tensor([[0.5, 1.0]], dtype=dtype), torch.tensor([-9.0]))
    result = maximize(
        objective, bounds=bounds(dtype=dtype), budget=25, policy=RandomSearch(batch_size=10), seed=3, initial=start
    )
    X = torch.cat(seen)
    y = objective(X)
    assert X.dtype == result.best_x.dtype == dtype
    assert torch.equal(result.best_x, X[y.argmax()])
    assert result.best_mean == pytest.approx(float(y.max()))
    assert result.best_index is None
    assert result.history.indices == []
    assert torch.equal(torch.tensor(result.history.points[1:], dtype=dtype), X)
    assert [row.batch_size for row in result.history.rows] == [1, 10, 10, 5]
    assert isinstance(result.state, BoxState)
    assert result.state.pulls == 26
    assert result.state.X.dtype == torch.float64


def test_failed_evaluations_on_a_box_are_dropped():
    result = maximize(lambda X: torch.full((len(X),), math.nan), bounds=bounds(), budget=3, policy=RandomSearch())
    assert result.best_x is None
    assert [row.failed for row in result.history.rows] == [1, 1, 1]


def test_indices_of_a_box_are_refused():
    with pytest.raises(Exception, match="expected call_with='indices' with arms="):
        maximize(lambda i: i, bounds=bounds(), budget=1, policy=RandomSearch(), call_with="indices")


def test_a_policy_over_arms_says_so():
    with pytest.raises(TypeError, match="chooses among arms, got a box"):
        AskTell(bounds=bounds(), policy=EpsilonGreedy())
