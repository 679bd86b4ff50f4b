"""BKB's incremental dictionary, against the paper's rule written out, and in runs over arms."""

import pytest
import torch
from gpytorch.kernels import RBFKernel

from sparse_bo import BBKB, BKB, AskTell
from sparse_bo.dictionary import Candidates, IncrementalLeverageSampler, LeverageSampler
from sparse_bo.errors import SamplerError
from sparse_bo.policies.persistence import describe, rebuild
from tests.builders import rbf_kernel

ARMS = torch.rand(30, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def objective(X):
    return (3.0 * X).sin().sum(-1)


def candidates(leverages, counts, kept, new):
    n = len(leverages)

    def tensor(values):
        return torch.tensor(values, dtype=torch.float64)

    return Candidates(
        torch.rand(n, 2, dtype=torch.float64), tensor(counts), tensor(leverages), torch.arange(n), torch.arange(n),
        previous_probabilities=tensor(kept), new=tensor(new),
    )  # fmt: skip


def frequencies(sampler, given, draws=2000):
    generator, counts = torch.Generator().manual_seed(0), torch.zeros(len(given.X))
    for _ in range(draws):
        counts[sampler.sample(given, generator=generator).indices] += 1
    return (counts / draws).tolist()


def test_old_points_stay_by_the_ratio_and_new_pulls_join():
    # q̄ leverage now: 0.2, 0.4, 0.3, 0.1; the first two are in, with 0.5 and 0.3 then; the third is new, the last is gone.
    given = candidates([0.1, 0.2, 0.15, 0.05], [1, 1, 1, 1], [0.5, 0.3, 0.0, 0.0], [0, 0, 1, 0])
    sampler = IncrementalLeverageSampler(oversampling=2.0)
    assert frequencies(sampler, given) == pytest.approx([0.4, 1.0, 0.3, 0.0], abs=0.04)
    inside = sampler.sample(given, generator=torch.Generator().manual_seed(3))
    assert set(inside.probabilities.tolist()) <= {0.2, 0.4, 0.3}


def test_with_falling_leverages_each_arm_has_the_probability_of_sampling_anew():
    """Round after round, pulled again or not: min(1, p'/p) of what was in, and the new pulls of what was out."""
    sampler = IncrementalLeverageSampler(oversampling=1.0, inclusion="exact")
    generator = torch.Generator().manual_seed(0)
    counts, rounds = torch.zeros(2), 1200
    for _ in range(rounds):
        kept = [0.0, 0.0]
        # the first arm is pulled in rounds 0 and 2 at a leverage that stays, the second in round 0 at one that halves
        for leverages, pulls, new in [([0.3, 0.8], [1, 1], [1, 1]), ([0.3, 0.4], [1, 1], [0, 0]), ([0.3, 0.2], [2, 1], [1, 0])]:
            given = candidates([*leverages, 0.9], [*pulls, 1], [*kept, 1.0], [*new, 0])  # a third that fills empty draws
            dictionary = sampler.sample(given, generator=generator)
            kept = [0.0, 0.0]
            for row, probability in zip(dictionary.indices.tolist(), dictionary.probabilities.tolist(), strict=True):
                if row < 2:
                    kept[row] = probability
        counts += torch.tensor(kept) > 0.0
    anew = frequencies(
        LeverageSampler(oversampling=1.0, inclusion="exact"), candidates([0.3, 0.2, 0.9], [2, 1, 1], [0] * 3, [0] * 3)
    )
    assert (counts / rounds).tolist() == pytest.approx(anew[:2], abs=0.05)
    assert anew[:2] == pytest.approx([1 - 0.7**2, 0.2], abs=0.04)


def test_a_run_of_bkb_follows_the_rule_written_out(device):
    """The dictionaries of a run, from its own leverages by a dense posterior and the same draws."""
    arms, sampler = ARMS.to(device), IncrementalLeverageSampler(oversampling=1.0)
    seen = []

    class Spy:
        def sample(self, candidates, *, generator):
            state = generator.get_state()
            dictionary = sampler.sample(candidates, generator=generator)
            seen.append((candidates, state, dictionary))
            return dictionary

    kernel = RBFKernel().double().to(device)
    kernel.lengthscale = 0.3
    policy = BKB(covar_module=kernel, prior_mean=0.0, regularization=0.5, dictionary=Spy())
    loop = AskTell(arms, policy, seed=0)
    loop.run(objective, 25)
    pulls = [i for row in loop.history.rows for i in row.indices]
    last, data, ever = None, [], set()
    for pull, (given, state, dictionary) in zip(pulls, seen, strict=True):
        data.append(pull)
        distinct = sorted(set(data))
        if last is not None:
            leverages = dense_leverages(kernel, arms, data[:-1], last, 0.5)
            torch.testing.assert_close(given.leverages, leverages[distinct], rtol=1e-6, atol=1e-9)
            draws = torch.rand(len(distinct), generator=torch.Generator().set_state(state), dtype=torch.float64)
            wanted = []
            for row, draw in zip(distinct, draws.tolist(), strict=True):
                now = min(1.0, data.count(row) * float(leverages[row]))
                new = min(1.0, float(leverages[row])) if row == pull else 0.0
                if draw < (min(1.0, now / last[row]) if row in last else new):
                    wanted.append(row)
            assert dictionary.indices.tolist() == wanted
        ever |= set(dictionary.indices.tolist())
        last = dict(zip(dictionary.indices.tolist(), dictionary.probabilities.tolist(), strict=True))
    assert set(last) < ever, "some points were dropped"


def dense_leverages(kernel, arms, data, dictionary, regularization):
    """DTC variance of every arm over λ, in dense algebra."""
    rows = sorted(dictionary)
    K = kernel(arms).to_dense().detach()
    K_DD, K_DX, K_DA = K[rows][:, rows], K[rows][:, data], K[rows]
    eye = torch.eye(len(rows), dtype=K.dtype, device=K.device)
    inverse = torch.linalg.inv(K_DX @ K_DX.mT + regularization * K_DD + 1e-14 * eye)
    projected = (K_DA * torch.linalg.solve(K_DD, K_DA)).sum(0)
    return (K.diagonal() - projected + regularization * (K_DA * (inverse @ K_DA)).sum(0)) / regularization


def test_a_run_with_everything_learned_goes_on_from_its_journal(tmp_path):
    def loop(**options):
        return AskTell(ARMS, BKB(dictionary=IncrementalLeverageSampler()), seed=0, **options)

    reference = loop().run(objective, 24).history.indices
    with loop(storage=tmp_path / "run.journal") as first:
        first.run(objective, 17)
    with AskTell.resume(tmp_path / "run.journal") as again:
        assert again.run(objective, 7).history.indices == reference


def test_where_the_last_dictionary_is_not_known_it_refuses(generator):
    given = candidates([0.1], [1], [0.0], [0])._replace(previous_probabilities=None)
    with pytest.raises(SamplerError, match="in BKB or BBKB over arms, LeverageSampler elsewhere"):
        IncrementalLeverageSampler().sample(given, generator=generator)
    with pytest.raises(ValueError, match="oversampling"):
        IncrementalLeverageSampler(oversampling=0.0)
    assert rebuild(describe(IncrementalLeverageSampler(oversampling=3.0))) == IncrementalLeverageSampler(oversampling=3.0)


def test_the_first_dictionary_of_many_arms_is_drawn_of_all_of_them():
    policy = BBKB(dictionary=IncrementalLeverageSampler(), initial_design=600, covar_module=rbf_kernel(), regularization=0.01)
    arms = torch.rand(800, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    loop = AskTell(arms, policy, seed=0)
    loop.tell(loop.ask(600), torch.zeros(600))
    assert 0 < loop.state.fitted.posterior.dictionary.m < 600
