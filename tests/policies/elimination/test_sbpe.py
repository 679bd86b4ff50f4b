"""S-BPE and BPE as policies: plans, elimination, contradictions, and how they are asked and told."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import gpytorch
import pytest
import torch
from torch import Tensor

from sparse_bo import BPE, SBPE, AskTell, ContradictionError, Float, Int, Storage, maximize
from sparse_bo.arms.design import Resampling
from sparse_bo.dictionary import AllSampler, FirstSampler, UniformSampler
from sparse_bo.domains import Arms, Box
from sparse_bo.errors import CertificateWarning, ScheduleComplete
from sparse_bo.policies import Policy, Wait
from sparse_bo.policies.elimination.mechanism import Elimination
from sparse_bo.widths import BatchConfidence, GaussianBounds, SBPEOnBox, SBPETheory
from tests.builders import arms, rbf_kernel, unit_box
from tests.oracles import exact_design, exact_gp, rbf

LENGTHSCALE, NOISE = 0.25, 0.01


class Member:
    """``f = Σ α_i k(·, c_i)`` with its norm, and noisy evaluations of it."""

    def __init__(self, seed: int = 0, *, d: int = 2, scale: float = 1.0) -> None:
        g = torch.Generator().manual_seed(100 + seed)
        self.centres = torch.rand(6, d, generator=g, dtype=torch.float64)
        self.weights = scale * torch.randn(6, generator=g, dtype=torch.float64)
        self.noise = torch.Generator().manual_seed(200 + seed)
        gram = rbf(self.centres, self.centres, lengthscale=LENGTHSCALE)
        self.norm = float((self.weights @ gram @ self.weights).sqrt())

    def values(self, X: Tensor) -> Tensor:
        return rbf(X.double(), self.centres, lengthscale=LENGTHSCALE) @ self.weights

    def evaluate(self, X: Tensor) -> Tensor:
        return self.values(X) + math.sqrt(NOISE) * torch.randn(len(X), generator=self.noise, dtype=torch.float64)


def settings(member: Member, **changes: Any) -> dict[str, Any]:
    common = {
        "covar_module": rbf_kernel(LENGTHSCALE),
        "regularization": NOISE,
        "noise_variance": NOISE,
        "rkhs_norm": member.norm,
    }
    return {"horizon": 200, **common, **changes}


@dataclass(frozen=True, kw_only=True, eq=False)
class Recorded(SBPE):
    """S-BPE with a record of the numbers of batches for which it is asked for a rule, once per plan."""

    asked: list[int] = field(default_factory=list)

    def resampling(self, batches: int) -> Resampling:
        self.asked.append(batches)
        return super().resampling(batches)


def dense_bpe(
    X: Tensor, K: Tensor, y: dict[int, list[float]], policy: Any, sizes: tuple[int, ...]
) -> tuple[list[int], list[list[int]]]:
    """BPE from its definition (S-BPE Alg. 1 with exact posteriors). ``y`` holds the results of each arm in order."""
    results = {arm: list(values) for arm, values in y.items()}
    active, picks, survivors = list(range(len(X))), [], []
    for n in sizes:
        local = K[active][:, active]
        chosen = exact_design(local, policy.regularization, n)[0]
        observed = torch.tensor([results[active[i]].pop(0) for i in chosen], dtype=torch.float64)
        posterior = exact_gp(local[chosen][:, chosen], local[chosen], local, observed, noise=policy.regularization)
        delta = policy.failure_probability / (4 * len(sizes) * len(X))
        beta = policy.rkhs_norm + math.sqrt(policy.noise_variance / policy.regularization * 2 * math.log(1 / delta))
        half = beta * posterior.variance.clamp_min(0).sqrt()
        best = (posterior.mean - half).max()
        picks += [active[i] for i in chosen]
        active = [arm for arm, upper in zip(active, (posterior.mean + half).tolist(), strict=True) if upper >= best]
        survivors.append(list(active))
    return picks, survivors


@pytest.mark.sampled(3)
@pytest.mark.parametrize("seed", range(4))
def test_bpe_and_sbpe_with_every_pick_are_the_dense_algorithm(seed):
    X, member = arms(80, seed=seed), Member(seed)
    exact = BPE(**settings(member))
    runs = []
    for policy in (exact, SBPE(**settings(member, width="tight", dictionary=AllSampler(), ratio_threshold=1.5))):
        member.noise.manual_seed(seed)
        loop, survivors = AskTell(X, policy, seed=seed), []
        loop.run(member.evaluate, 200, callback=lambda loop, row, out=survivors: out.append(loop.state.survivors.tolist()))
        runs.append((loop.history.indices, survivors))
    results: dict[int, list[float]] = {}
    for row in loop.history.rows:
        for arm, value in zip(row.indices, row.values, strict=True):
            results.setdefault(arm, []).append(value)
    assert loop.history.column("batch_size") == [15, 55, 105, 25]
    expected = dense_bpe(X, rbf(X, X, lengthscale=LENGTHSCALE), results, exact, (15, 55, 105, 25))
    assert runs[0] == expected
    assert runs[1] == expected
    assert len(expected[1][-1]) < 60, "the problem should eliminate arms"


@pytest.mark.parametrize("policy", [SBPE, BPE])
def test_a_policy_is_one_and_finds_the_best_arm(policy):
    X, member = arms(150), Member()
    chosen = policy(**settings(member, horizon=400))
    assert isinstance(chosen, Policy)
    result = AskTell(X, chosen).run(member.evaluate, 400)
    assert member.values(X).max() - member.values(X)[result.best_index] < 0.05
    assert result.best_index in result.survivors
    assert int(member.values(X).argmax()) in result.survivors
    left = result.history.column("survivors")
    assert left == sorted(left, reverse=True)
    assert left[-1] == len(result.survivors) < 100
    assert result.state.describe() == f"{left[-1]} of 150 arms can still be optimal at confidence 0.95"


@pytest.mark.filterwarnings("ignore:.*raise noise_variance:sparse_bo.errors.CertificateWarning")  # a lie, to eliminate more
@pytest.mark.parametrize("seed", range(3))
def test_the_report_is_of_the_batch_with_the_most_results_and_of_the_best_arm_that_is_left(seed):
    X, member = arms(150, seed=seed), Member(seed)
    loop = AskTell(X, BPE(**settings(member, noise_variance=1e-4)))
    result = loop.run(member.evaluate, 200)
    assert loop.state.sizes == (15, 55, 105, 25)
    finding = loop.state.findings[2]
    means = {arm: float(mean) for arm, mean in zip(finding.members.tolist(), finding.posterior.means, strict=True)}
    left = {arm: means[arm] for arm in result.survivors.tolist()}
    assert result.best_index == max(left, key=left.__getitem__)
    assert result.best_mean == pytest.approx(left[result.best_index])
    position = finding.members.tolist().index(result.best_index)
    assert result.best_sd == pytest.approx(float(finding.marginals.deviations[position]))


def test_dictionaries_share_the_failure_probability_among_the_batches():
    policy = Recorded(**settings(Member()))
    AskTell(arms(150), policy).run(Member().evaluate, 200)
    assert set(policy.asked) == {4}


class TestEdges:
    """What must work, however little there is to choose from."""

    POLICIES = pytest.mark.parametrize("policy", [SBPE, BPE])

    @POLICIES
    @pytest.mark.parametrize("horizon", [1, 20])
    def test_one_arm_is_evaluated_and_never_eliminated(self, policy, horizon):
        result = AskTell(arms(1), policy(**settings(Member(), horizon=horizon))).run(Member().evaluate, horizon)
        assert result.history.indices == [0] * horizon
        assert result.survivors.tolist() == [0]
        assert result.best_sd == pytest.approx(math.sqrt(NOISE / (NOISE + max(result.history.column("batch_size")))), rel=1e-6)

    @POLICIES
    def test_repeated_arms_are_one_arm(self, policy):
        """None of the copies is ever picked, and a copy of an arm that is left is left."""
        X, member = arms(6), Member()
        result = AskTell(X.repeat(3, 1), policy(**settings(member, horizon=120))).run(member.evaluate, 120)
        assert max(result.history.indices) < 6
        left = set(result.survivors.tolist())
        assert left == {arm % 6 + 6 * copy for arm in left for copy in range(3)}
        assert int(member.values(X).argmax()) in left

    @POLICIES
    def test_a_constant_kernel_leaves_every_arm(self, policy):
        constant = gpytorch.kernels.ConstantKernel().double()
        result = AskTell(arms(20), policy(**settings(Member(), horizon=30, covar_module=constant))).run(
            lambda X: X.new_zeros(len(X)), 30
        )
        assert set(result.history.indices) == {0}, "all arms have the same value: ties go to the first"
        assert result.survivors.tolist() == list(range(20))

    @POLICIES
    def test_an_arm_without_prior_variance_is_known_from_the_start(self, policy):
        """A linear kernel at x = 0: f = 0 there, never worth an evaluation, eliminated once another arm is surely higher."""
        X = torch.cat([torch.zeros(1, 2, dtype=torch.float64), arms(10) + 0.5])
        linear = gpytorch.kernels.LinearKernel().double()
        linear.variance = 1.0
        changes = {"covar_module": linear, "rkhs_norm": 1.5, "horizon": 60}
        loop = AskTell(X, policy(**settings(Member(), **changes)))
        result = loop.run(lambda X: X.sum(dim=-1), 60)
        assert 0 not in result.history.indices
        assert float(loop.state.findings[0].posterior.leverages[0]) == 0.0
        assert 0 not in result.survivors.tolist()
        assert result.best_index == int(X.sum(dim=-1).argmax())

    @POLICIES
    def test_float32_arms_are_computed_with_in_float64(self, policy):
        X, member = arms(40).float(), Member()
        runs = []
        for domain in (X, X.double()):
            member.noise.manual_seed(1)
            runs.append(AskTell(domain, policy(**settings(member))).run(lambda x: member.evaluate(x.double()), 200))
        assert runs[0].history.indices == runs[1].history.indices
        assert torch.equal(runs[0].survivors, runs[1].survivors)
        assert torch.equal(runs[0].best_x, X[runs[0].best_index]), "and are given back as they came"


def test_a_batch_is_handed_out_at_once_and_depends_on_no_result():
    X, member = arms(150), Member()
    first = AskTell(X, SBPE(**settings(member)), seed=1)
    other = AskTell(X, SBPE(**settings(member)), seed=1)
    batch, same = first.ask(), other.ask()
    assert len(batch) == 15
    assert torch.equal(batch.indices, same.indices)
    first.tell(batch.tickets, member.evaluate(batch.X))
    other.tell(same.tickets, torch.zeros(15))
    if first.state.survivors.equal(other.state.survivors):
        assert torch.equal(first.ask().indices, other.ask().indices)
    else:
        assert len(first.ask()) == len(other.ask()) == 55


@pytest.mark.parametrize("sampler", [None, UniformSampler(size=10)], ids=["rls", "random"])
def test_a_plan_cut_into_pieces_is_the_same_plan(sampler):
    """Also where the plan needs random numbers: the rest of it is handed out, not another one."""
    X, member = arms(150), Member()
    policy = SBPE(**settings(member, dictionary=sampler, width="tight"))
    whole, pieces = AskTell(X, policy, seed=3), AskTell(X, policy, seed=3)
    whole.run(member.values, 200)
    for size in [1, 1, 4, 7, 30, 90, 40, 27]:
        pieces.run(member.values, size)
    assert pieces.history.indices == whole.history.indices
    assert torch.equal(pieces.state.survivors, whole.state.survivors)


def test_ask_is_pure_and_leaves_out_what_is_pending():
    X, member = arms(150), Member()
    policy, generator = SBPE(**settings(member)), torch.Generator().manual_seed(0)
    bound = policy.on(Arms(X))
    state = bound.init()
    nothing = torch.empty(0, dtype=torch.long)
    before = dict(vars(state))
    whole = bound.ask(state, max_q=10**9, pending=nothing, generator=generator).picks
    again = bound.ask(state, max_q=10**9, pending=nothing, generator=generator).picks
    assert torch.equal(whole, again)
    assert torch.equal(bound.ask(state, max_q=4, pending=whole[:6], generator=generator).picks, whole[6:10])
    assert bound.ask(state, max_q=4, pending=whole, generator=generator) == Wait(15)
    late = bound.tell(state, whole[3:6], member.evaluate(X[whole[3:6]]), generator=generator)
    rest = bound.ask(late, max_q=100, pending=whole[:3], generator=generator).picks
    assert torch.equal(rest, whole[6:])
    assert late.survivors is None
    done = bound.tell(late, torch.cat([whole[:3], rest]), member.evaluate(X[torch.cat([whole[:3], rest])]), generator=generator)
    assert len(done.findings) == 1
    assert {name: value for name, value in vars(state).items() if value is not before[name]} == {}
    assert vars(state).keys() == before.keys()


class TestPlanning:
    """A plan follows from a state and a seed; that the mechanism remembers it changes nothing but time."""

    POLICY = SBPE(**settings(Member(), dictionary=UniformSampler(size=6), width="tight"))
    """Its plans draw."""

    def told(self, fresh: Callable[[], Elimination]) -> list[Any]:
        """Picks and state of a run in pieces, told out of order and with failures, each call by the mechanism of ``fresh``."""
        X, member, generator, seen = arms(150), Member(), torch.Generator().manual_seed(7), []
        state, pending, failed = fresh().init(), torch.empty(0, dtype=torch.long), False
        while len(state.findings) < 2:
            proposal = fresh().ask(state, max_q=25, pending=pending, generator=generator)
            if isinstance(proposal, Wait):
                assert proposal.needed == len(pending)
                if not failed:
                    state, pending, failed = state.without_results(), pending[5:], True
                    continue
                order = torch.arange(len(pending)).flip(0)[: len(pending) // 2 + 1]
                state = fresh().tell(state, pending[order], member.values(X[pending[order]]), generator=generator)
                pending = pending[: len(pending) - len(order)]
            else:
                seen.append(proposal.picks.tolist())
                pending = torch.cat([pending, proposal.picks])
        return [seen, state.survivors.tolist(), state.picks.tolist(), generator.get_state().tolist()]

    def test_one_that_remembers_plans_as_one_that_does_not(self):
        kept = self.POLICY.on(Arms(arms(150)))
        assert self.told(lambda: kept) == self.told(lambda: self.POLICY.on(Arms(arms(150))))

    def test_a_run_plans_every_batch_once(self):
        policy = Recorded(**settings(Member(), dictionary=UniformSampler(size=6), width="tight"))
        loop = AskTell(arms(150), policy, seed=2)
        while loop.asked < 200:
            batch = loop.ask(4)
            loop.tell(batch.tickets[:2], Member().values(batch.X[:2]))
            loop.tell(batch.tickets[2:], Member().values(batch.X[2:]))
        assert loop.state.sizes == (15, 55, 105, 25)
        assert len(policy.asked) == len(loop.state.findings) == 4

    @pytest.mark.parametrize("complete", [0, 1])
    def test_a_snapshot_before_any_result_of_a_batch_gives_the_same_batch(self, complete):
        X, generator = arms(150), torch.Generator().manual_seed(7)
        running, nothing = self.POLICY.on(Arms(X)), torch.empty(0, dtype=torch.long)
        state = running.init()
        for _ in range(complete):
            picks = running.ask(state, max_q=10**9, pending=nothing, generator=generator).picks
            state = running.tell(state, picks, Member().values(X[picks]), generator=generator)
        whole = running.ask(state, max_q=10**9, pending=nothing, generator=generator).picks
        resumed = self.POLICY.on(Arms(X))
        thawed = resumed.thaw(running.freeze(state))
        late = resumed.tell(thawed, whole[2:5], Member().values(X[whole[2:5]]), generator=generator)
        rest = resumed.ask(late, max_q=10**9, pending=whole[:2], generator=generator).picks
        assert torch.equal(rest, whole[5:])
        assert len(late.findings) == complete


def test_the_global_generator_is_untouched_and_the_seed_decides_the_plan():
    X, member = arms(400), Member()
    policy = SBPE(**settings(member, dictionary=UniformSampler(size=5)))
    before = torch.random.get_rng_state()
    picks = [AskTell(X, policy, seed=seed).ask().indices.tolist() for seed in (0, 0, 1)]
    assert torch.equal(torch.random.get_rng_state(), before)
    assert picks[0] == picks[1] != picks[2]


def test_failed_evaluations_are_tried_again_once_and_then_left_out():
    X, member = arms(60), Member()
    broken = int(AskTell(X, SBPE(**settings(member))).ask().indices[2])

    def objective(indices: Tensor) -> Tensor:
        return torch.where(indices == broken, torch.nan, member.evaluate(X[indices]))

    loop = AskTell(X, SBPE(**settings(member)))
    loop.run(objective, 120, call_with="indices")
    rows = loop.history.rows
    assert broken in rows[0].indices
    assert set(rows[1].indices) == {broken}, "tried again"
    assert rows[1].failed == rows[1].batch_size
    assert len(rows[2].indices) > 50, "and then the next batch begins"
    assert loop.state.findings[0].confidence.pulls == 15 - rows[0].failed


@pytest.mark.sampled(3)
@pytest.mark.parametrize("asked", [None, 1, 4])
@pytest.mark.parametrize("width", ["theory", "gaussian"])
@pytest.mark.parametrize("policy_of", [SBPE, BPE])
@pytest.mark.filterwarnings("ignore:.*evaluations failed:sparse_bo.errors.FailureWarning")
def test_a_batch_that_fails_whole_is_tried_again_once_and_then_the_next_begins(policy_of, width, asked, tmp_path):
    """Used to hand out the same batch for ever."""
    X, member = arms(60), Member()
    chosen = policy_of(**settings(member, width=width))
    first = AskTell(X, chosen).ask().indices.tolist()

    def begun(storage: Any) -> AskTell:
        loop, failing = AskTell(X, chosen, storage=storage), []
        while len(failing) < 2 * len(first):
            batch = loop.ask(asked)
            failing += batch.indices.tolist()
            loop.fail(batch.tickets)
        assert sorted(failing) == sorted(first + first)
        assert failing[: len(first)] == first
        return loop

    path, reference = Storage(tmp_path / "run.journal", replay_seconds=0.0), begun(None)
    begun(path).close()
    with AskTell.resume(path) as loop:
        for each in (loop, reference):
            batch = each.ask()
            assert len(batch) > len(first)
            each.tell(batch.tickets, member.values(X[batch.indices]))
            assert [finding.confidence.pulls for finding in each.state.findings] == [0, len(batch)]
            each.run(lambda X: member.values(X), 30)
    with AskTell.resume(path) as loop:
        assert [finding.confidence.pulls for finding in loop.state.findings][:2] == [0, len(batch)]
        assert loop.ask().indices.tolist() == reference.ask().indices.tolist()
        assert loop.result().best_index == reference.result().best_index


@pytest.mark.sampled(1)
@pytest.mark.parametrize("domain", ["arms", "box"])
@pytest.mark.filterwarnings("ignore:.*evaluations failed:sparse_bo.errors.FailureWarning")
def test_an_objective_that_always_fails_ends_with_the_schedule(domain):
    given = {"arms": arms(60)} if domain == "arms" else {"bounds": unit_box(2)}
    policy = SBPE(**settings(Member(), horizon=60, width="gaussian" if domain == "arms" else "theory"))
    loop = AskTell(policy=policy, **given)
    while loop.asked < 2 * sum(loop.state.sizes):
        loop.fail(loop.ask().tickets)
    with pytest.raises(ScheduleComplete, match="are complete"):
        loop.ask()
    assert loop.result().best_x is None


def test_one_failure_among_evaluations_asked_one_by_one_does_not_end_the_batch():
    """Used to: the next update without a result gave up all that was still to be handed out."""
    X, member = arms(60), Member()
    loop = AskTell(X, SBPE(**settings(member)))
    planned = AskTell(X, SBPE(**settings(member))).ask().indices.tolist()
    asked = []
    for k in range(len(planned) + 1):
        batch = loop.ask(1)
        asked += batch.indices.tolist()
        loop.tell(batch.tickets, [math.nan] if k == 3 else member.evaluate(X[batch.indices]))
    assert asked == [*planned, planned[3]]
    assert loop.state.findings[0].confidence.pulls == len(planned)


def test_a_horizon_cut_short_leaves_the_last_batch_without_elimination():
    X, member = arms(150), Member()
    loop = AskTell(X, SBPE(**settings(member)))
    result = loop.run(member.evaluate, 40)
    assert len(loop.state.findings) == 1
    assert loop.state.plan is not None
    assert result.history.column("batch_size") == [15, 25]


def test_nothing_can_be_asked_after_the_last_batch():
    X, member = arms(150), Member()
    loop = AskTell(X, SBPE(**settings(member, horizon=30)))
    loop.run(member.evaluate, 30)
    with pytest.raises(ScheduleComplete, match=r"all \d batches \(30 evaluations\) of the horizon 30 are complete"):
        loop.ask()


def test_one_batch_is_the_regression_design():
    X, member = arms(150), Member()
    loop = AskTell(X, SBPE(**settings(member, schedule=(60,))))
    loop.run(member.evaluate, 60)
    assert loop.history.column("batch_size") == [60]
    assert loop.state.sizes == (60,)


@pytest.mark.parametrize("arms_or_box", ["arms", "box"])
def test_a_learned_prior_comes_from_the_initial_design(arms_or_box):
    X, member = arms(150), Member()
    domain = {"arms": X} if arms_or_box == "arms" else {"bounds": unit_box()}
    policy = SBPE(horizon=150, width=4.0, initial_design=25, candidates=256)
    loop = AskTell(policy=policy, seed=0, **domain)
    result = loop.run(member.evaluate, 150)
    assert result.history.column("batch_size")[0] == 25
    assert sum(loop.state.sizes) == 125
    assert loop.state.prior is not None
    best = float(member.values(arms(4000, seed=9)).max())
    assert best - float(member.values(result.best_x.unsqueeze(0))) < 0.15


def test_a_design_asked_for_one_by_one_is_of_distinct_arms():
    loop = AskTell(arms(12), SBPE(horizon=60), seed=0)
    asked = [int(loop.ask(1).indices) for _ in range(10)]
    assert len(set(asked)) == 10


@pytest.mark.parametrize("low", [0.0, 1.7e9])
def test_results_beside_the_plan_are_not_used_in_the_bounds_wherever_the_box_lies(low):
    bounds = torch.tensor([[low], [low + 86_400.0]], dtype=torch.float64)  # a day, in seconds
    loop, other = (AskTell(bounds=bounds, policy=SBPE(horizon=40, candidates=300), seed=0) for _ in range(2))

    def told(loop, batch):
        loop.tell(batch, -((batch.X[:, 0] - low) / 86_400 - 0.3).square())

    for one in (loop, other):
        while one.state.prior is None:
            told(one, one.ask())
    loop.enqueue(other.ask().X[:1] + 100.0)  # beside the first planned point
    loop.tell(loop.ask(1), [100.0])
    while not loop.state.findings:
        told(loop, loop.ask())
    assert float(loop.state.findings[0].observations.means.max()) < 0.1


def test_initial_observations_are_told_but_not_used_in_the_bounds():
    X, member = arms(150), Member()
    loop = AskTell(X, SBPE(**settings(member, schedule=(30,), horizon=30)), initial=(torch.arange(20), 1e3 * torch.ones(20)))
    result = loop.run(member.evaluate, 30)
    assert loop.state.pulls == 50
    assert set(loop.history.rows[1].indices) & set(range(20))
    assert float(loop.state.findings[0].posterior.means.abs().max()) < 10.0
    assert result.best_observed_mean > 100.0


def test_results_at_planned_picks_count_if_they_are_told_and_not_if_they_were_observed_before():
    X, generator = arms(150), torch.Generator().manual_seed(0)
    bound = SBPE(**settings(Member())).on(Arms(X))
    start, nothing = bound.init(), torch.empty(0, dtype=torch.long)
    whole = bound.ask(start, max_q=10**9, pending=nothing, generator=generator).picks
    y = Member().evaluate(X[whole])
    told = bound.tell(start, whole, y, generator=generator)
    observed = bound.observe(start, whole, y, generator=generator)
    assert [len(state.findings) for state in (told, observed)] == [1, 0]
    assert [state.pulls for state in (told, observed)] == [15, 15]
    assert torch.equal(bound.ask(observed, max_q=10**9, pending=nothing, generator=generator).picks, whole)


class TestBox:
    @pytest.mark.slow
    def test_a_box_is_searched_ever_closer_to_its_maximum(self):
        member = Member()
        policy = SBPE(**settings(member, horizon=600, width=SBPETheory(rkhs_norm=member.norm, bias="tight"), candidates=512))
        policy = replace(policy, width=GaussianBounds())
        loop = AskTell(bounds=unit_box(), policy=policy)
        result = loop.run(member.evaluate, 600)
        best = float(member.values(arms(20_000, seed=3)).max())
        assert best - float(member.values(result.best_x.unsqueeze(0))) < 0.02
        first, last = loop.state.findings[0].posterior.prior.arms, loop.state.findings[-1].posterior.prior.arms
        assert len(first) == len(last) == 512, "candidates are drawn anew where the survivors are"
        volume = [float((X.amax(0) - X.amin(0)).prod()) for X in (first, last)]
        assert volume[1] < 0.3 * volume[0]
        assert float(member.values(last).max()) >= best - 0.01

    def test_the_theory_on_a_box_is_corollary_3_7(self):
        member = Member()
        loop = AskTell(bounds=unit_box(), policy=SBPE(**settings(member, horizon=50, candidates=64)))
        loop.run(member.evaluate, 50)
        assert isinstance(loop.state.width, SBPEOnBox)
        assert loop.state.width.bounds(loop.state.findings[0].confidence).slack > 2 / math.sqrt(8)
        assert "64 of 64 candidates of the last batch" in loop.state.describe()

    def test_the_default_candidate_set_is_the_discretisation_up_to_a_limit(self):
        sizes = []
        for constant in (1e-4, 0.1, 1.0, 10.0):
            policy = SBPE(**settings(Member(), horizon=4, discretization_constant=constant))
            loop = AskTell(bounds=unit_box(), policy=policy)
            loop.run(Member().evaluate, 2)
            sizes.append(len(loop.state.findings[0].members))
        gamma = sizes[2]
        assert 1000 < gamma < 16_384
        assert sizes == [1, math.ceil(gamma / 10), gamma, 16_384]

    def test_float32_bounds(self):
        member = Member()
        loop = AskTell(bounds=unit_box().float(), policy=SBPE(**settings(member, horizon=100, candidates=128, width=3.0)))
        result = loop.run(lambda X: member.evaluate(X.double()), 100)
        assert len(loop.state.findings) == len(loop.state.sizes)
        assert result.best_x.dtype == torch.float32

    def test_points_cut_into_pieces(self):
        member = Member()
        policy = SBPE(**settings(member, horizon=60, candidates=128, width=3.0))
        whole, pieces = (AskTell(bounds=unit_box(), policy=policy, seed=2) for _ in range(2))
        whole.run(member.values, 60)
        for size in (3, 5, 20, 32):
            pieces.run(member.values, size)
        assert pieces.history.points == whole.history.points


@pytest.mark.filterwarnings("ignore::sparse_bo.errors.CertificateWarning")
class TestContradiction:
    def test_a_norm_that_is_too_small_is_named(self):
        X, member = arms(150), Member(scale=3.0)
        loop = AskTell(X, SBPE(**settings(member, rkhs_norm=0.05)))
        with pytest.raises(ContradictionError, match=r"RKHS norm in this kernel exceeds rkhs_norm=0\.05") as caught:
            loop.run(member.evaluate, 200)
        assert len(caught.value.state.y) == 15, "what was told is kept"
        assert "on_contradiction='double'" in str(caught.value)
        assert "before the results contradicted the bounds" in loop.state.describe()
        loop.enqueue([7])
        assert loop.ask(2).indices.tolist() == [7], "queued evaluations are handed out; the contradiction is said after them"
        assert loop.result().best_index is not None

    @pytest.mark.parametrize("offset", [0.0, 1e9])
    def test_the_mean_of_the_objective_hides_no_contradiction(self, offset):
        policy = SBPE(
            horizon=60,
            covar_module=rbf_kernel(0.3),
            regularization=1e-4,
            prior_mean=offset,
            noise_variance=1e-4,
            rkhs_norm=0.02,
        )
        with pytest.raises(ContradictionError, match="RKHS norm"):
            AskTell(arms(300), policy).run(lambda X: offset + torch.sin(6.0 * X).sum(dim=-1), 60)

    def test_noise_that_is_too_small_is_named(self):
        X, member = arms(40), Member()
        loud = lambda X: member.values(X) + torch.randn(len(X), generator=member.noise, dtype=torch.float64)  # noqa: E731
        policy = SBPE(**settings(member, horizon=600, noise_variance=1e-4, regularization=1e-2, on_contradiction="double"))
        with pytest.raises(ContradictionError, match="noise exceeds noise_variance=0.0001"):
            AskTell(X, policy).run(loud, 600)

    def test_a_prior_that_does_not_fit_is_named(self):
        X, member = arms(150), Member(scale=30.0)
        with pytest.raises(ContradictionError, match="not a plausible draw of the prior"):
            AskTell(X, SBPE(**settings(member, rkhs_norm=None, width="gaussian"))).run(
                lambda X: member.evaluate(X) * torch.sign(torch.sin(40 * X[:, 0])), 200
            )

    def test_doubling_finds_a_norm_that_fits_and_takes_back_what_the_smaller_one_eliminated(self):
        X, member = arms(150), Member(scale=3.0)
        policy = BPE(**settings(member, horizon=400, rkhs_norm=0.01, on_contradiction="double"))
        loop = AskTell(X, policy)
        result = loop.run(member.evaluate, 400)
        norm = loop.state.width.rkhs_norm
        assert loop.state.doublings == round(math.log2(norm / 0.01)) >= 1
        assert int(member.values(X).argmax()) in result.survivors

    def test_eliminated_arms_come_back_with_the_larger_norm(self):
        X, member = arms(150), Member(scale=3.0)
        left: list[int] = []
        policy = BPE(**settings(member, horizon=400, rkhs_norm=0.6, on_contradiction="double"))
        loop = AskTell(X, policy, seed=1)
        loop.run(member.evaluate, 400, callback=lambda loop, row: left.append(row.survivors))
        wide = AskTell(X, BPE(**settings(member, horizon=400, rkhs_norm=loop.state.width.rkhs_norm)), seed=1)
        assert loop.state.doublings >= 1
        assert len(loop.state.findings) == 4
        assert wide.ask().indices.equal(torch.tensor(loop.history.rows[0].indices))

    def test_a_constant_width_is_never_contradicted(self):
        X, member = arms(150), Member(scale=30.0)
        loop = AskTell(X, SBPE(**settings(member, width=0.1)))
        loop.run(member.evaluate, 200)
        assert "without a guarantee" in loop.state.describe()


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"horizon": 0}, ValueError, "horizon >= 1"),
        ({"horizon": 10.0}, TypeError, "horizon"),
        ({"schedule": (150, 60)}, ValueError, "at most horizon=200 evaluations"),
        ({"rkhs_norm": 0.0}, ValueError, "rkhs_norm > 0"),
        ({"rkhs_norm": None, "width": "theory"}, ValueError, "or rkhs_norm='estimate' to have one estimated"),
        ({"noise_variance": -1.0}, ValueError, "noise_variance > 0"),
        ({"regularization": 0.0}, ValueError, "regularization > 0"),
        ({"failure_probability": 0.0}, ValueError, "failure_probability in"),
        ({"width": "wide"}, ValueError, "'theory', 'tight', 'gaussian'"),
        ({"width": -1.0}, ValueError, "width >= 0"),
        ({"width": object()}, TypeError, "or a BatchWidth"),
        ({"covar_module": "rbf"}, TypeError, "gpytorch.kernels.Kernel"),
        ({"ratio_threshold": 0.5}, ValueError, "ratio_threshold >= 1"),
        ({"dictionary": "leverage"}, TypeError, "dictionary to be a sampler"),
        ({"candidates": 0}, ValueError, "candidates >= 1"),
        ({"discretization_constant": -1.0}, ValueError, "discretization_constant > 0"),
        ({"initial_design": 0}, ValueError, "initial_design >= 1"),
        ({"on_contradiction": "ignore"}, ValueError, "'raise', 'double'"),
        ({"rkhs_norm": None, "on_contradiction": "double"}, ValueError, "got bounds without"),
        ({"on_refuted": "ignore"}, ValueError, "'warn', 'stop', 'widen'"),
        ({"rkhs_norm": None, "on_refuted": "widen"}, ValueError, "expected bounds with an RKHS norm for on_refuted"),
        ({"rkhs_norm": "guess"}, ValueError, "rkhs_norm to be one of 'estimate'"),
        ({"rkhs_norm": "estimate", "width": "gaussian"}, ValueError, "got bounds without an RKHS norm"),
        ({"sweep_dtype": torch.float16}, ValueError, "sweep_dtype"),
        ({"memory_bytes": 10}, ValueError, "memory_bytes >= 1048576"),
    ],
    ids=lambda v: "-".join(v) if isinstance(v, dict) else "",
)
def test_bad_settings_are_named(changes, error, message):
    with pytest.raises(error, match=re.escape(message)):
        SBPE(**settings(Member(), **changes))


def test_a_box_on_which_nothing_can_be_eliminated_says_from_which_horizon_it_can():
    """Eq. 15: at N = 80 and F = 1 the slack alone is wider than any objective of that norm; the horizon named is enough."""
    common = {"covar_module": rbf_kernel(LENGTHSCALE), "regularization": NOISE, "rkhs_norm": 1.0}
    with pytest.warns(
        CertificateWarning, match=r"will eliminate nothing.*largest of horizon=80 is \d+.*horizon of about [\d,]+\."
    ):
        small = SBPE(horizon=80, **common).on(Box(unit_box()))
    confidence = BatchConfidence(
        pulls=1, batches=len(small.sizes), arms=1, dims=2, regularization=NOISE, kappa_squared=1.0, ratio=0.0
    )
    least = small.width.least_pulls(confidence)
    slack = [small.width.bounds(replace(confidence, pulls=n)).slack for n in (least - 1, least)]
    assert slack[1] < 1.0 <= slack[0]
    assert max(small.sizes) < least
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        SBPE(horizon=3 * least, **common).on(Box(unit_box()))
        SBPE(horizon=80, width="gaussian", **common | {"rkhs_norm": None}).on(Box(unit_box()))


def test_a_box_with_lower_not_below_upper_is_named():
    with pytest.raises(ValueError, match="lower < upper"):
        AskTell(bounds=torch.tensor([[0.0, 1.0], [1.0, 1.0]], dtype=torch.float64), policy=SBPE(**settings(Member())))


def test_an_initial_design_that_eats_the_horizon_is_named():
    with pytest.raises(ValueError, match="above the initial design of .* evaluations, got 20"):
        AskTell(arms(150), SBPE(horizon=20, initial_design=20))


def test_a_kernel_that_does_not_fit_the_arms_is_named():
    wide = gpytorch.kernels.RBFKernel(ard_num_dims=5).double()
    with pytest.raises(ValueError, match="ard_num_dims"):
        AskTell(arms(150), SBPE(**settings(Member(), covar_module=wide)))


def test_one_call_with_a_sampler_that_is_too_small_certifies_how_much():
    X, member = arms(150), Member()
    result = maximize(member.evaluate, arms=X, budget=200, policy=SBPE(**settings(member, dictionary=FirstSampler(size=4))))
    state = result.state
    assert state.ratio > 0.0
    finding = state.findings[0]
    expected = SBPETheory(rkhs_norm=member.norm, noise_variance=NOISE).bounds(finding.confidence)
    assert state.width.bounds(finding.confidence) == expected


@pytest.mark.filterwarnings("ignore:the results refute the certificate")  # a plane is no draw of this prior
@pytest.mark.parametrize(
    "space",
    [
        {"space": {"a": Int(0, 50), "b": Float(0.0, 1.0)}},
        {"space": {"a": Int(0, 999), "b": Int(0, 999)}},  # where other policies get neighbours in place of repeats
        {"space": {"a": Float(0.0, 1.0), "b": Float(0.0, 1.0)}, "feasible": lambda p: p["a"] + p["b"] < 1.2},
    ],
    ids=["integers", "countable", "feasible"],
)
def test_what_is_planned_in_a_space_can_be_evaluated(space):
    """Else no result would be at a planned point, and the batch would never end."""
    loop = AskTell(**space, policy=SBPE(horizon=60, candidates=20, regularization=0.1, covar_module=rbf_kernel(1.0)))
    asked = 0
    while asked < 60:
        batch = loop.ask(8)
        asked += len(batch)
        loop.tell(
            batch, [sum(value / space["space"][name].high for name, value in point.items()) for point in batch.parameters]
        )
    assert sum(finding.confidence.pulls for finding in loop.state.findings) == 60
    with pytest.raises(ScheduleComplete):
        loop.ask()


def test_feasible_is_called_for_a_thousand_candidates_of_a_batch():
    calls = []
    space = {"a": Float(0.0, 1.0), "b": Float(0.0, 1.0)}
    policy = SBPE(horizon=60, regularization=NOISE, covar_module=rbf_kernel(0.3))
    AskTell(space=space, feasible=lambda p: not calls.append(p) and p["a"] < 0.5, policy=policy).ask()
    assert len(calls) < 4_000


def test_too_few_feasible_points_are_an_error():
    policy, allowed = SBPE(horizon=60, regularization=NOISE, covar_module=rbf_kernel(0.3)), [True]
    loop = AskTell(space={"a": Float(0.0, 1.0)}, feasible=lambda p: allowed[0], policy=policy)
    allowed[0] = False
    with pytest.raises(ValueError, match=r"expected feasible= to keep candidates, got none among [\d,]+ points"):
        loop.ask()


def test_a_failure_after_a_batch_that_a_failure_closed_is_one_of_the_next_batch():
    policy = SBPE(horizon=60, covar_module=rbf_kernel(0.2), regularization=NOISE, width=2.0)
    loop = AskTell(torch.linspace(0.0, 1.0, 100, dtype=torch.float64).unsqueeze(-1), policy)
    first = []
    while not (loop.state.findings and len(loop.state.findings) == len(loop.state.sizes)):
        batch = loop.ask(1)
        first.append(int(batch.indices) == 0)
        loop.tell(batch, [math.nan if first[-1] else float(torch.sin(6.0 * batch.X))])
        assert len(first) < 100
    assert 1 <= sum(first) <= 2 * sum(loop.state.sizes) // 10


@pytest.mark.filterwarnings("ignore::sparse_bo.errors.FailureWarning")
def test_a_batch_on_a_box_of_which_all_evaluations_failed_is_reported():
    """With a norm that is known, widths are of the newest batch that has results."""
    policy = SBPE(horizon=100, covar_module=rbf_kernel(0.3), regularization=NOISE, rkhs_norm=3.0, candidates=200)
    loop = AskTell(bounds=unit_box(2), policy=policy)
    first = loop.ask()
    loop.tell(first, torch.sin(6.0 * first.X).sum(dim=-1))
    sizes = loop.state.sizes
    while loop.asked < sizes[0] + 2 * sizes[1]:
        loop.fail(loop.ask().tickets)
    assert loop.result().best_mean is not None
