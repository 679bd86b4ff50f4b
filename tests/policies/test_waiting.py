"""Asked while evaluations are out, policies through BoTorch say how many results they need, and then go on."""

import pytest

from sparse_bo import GSSBO, SBPE, AskTell
from sparse_bo.domains import Box
from sparse_bo.errors import PendingBatchError
from sparse_bo.policies import QFFTS, REMBO, RSSBO, SGPTS, BoTorchUCB, HeSBO, SparseUCB, VecchiaUCB
from tests.policies.builders import SMALL, bowl, box, keep_parameters

CHEAP = {**SMALL, "fitter": keep_parameters, "batch_size": 3}
POLICIES = [
    *(policy(**CHEAP) for policy in (BoTorchUCB, SparseUCB, VecchiaUCB, GSSBO, RSSBO, SGPTS, QFFTS)),
    *(policy(inner=BoTorchUCB(**CHEAP), target_dims=2) for policy in (REMBO, HeSBO)),
]


def results_needed(loop: AskTell) -> int:
    """Ask in vain; tell as many results as the error says, one at a time; fewer are not enough."""
    with pytest.raises(PendingBatchError) as caught:
        loop.ask()
    needed = caught.value.needed
    assert f"needs about {needed} of their results" in str(caught.value)
    for left in range(needed, 0, -1):
        with pytest.raises(PendingBatchError) as caught:
            loop.ask()
        assert caught.value.needed == left
        batch = loop.reissue(loop.pending[:1])
        loop.tell(batch.tickets, bowl(batch.X))
    return needed


# BoTorch's optimiser tries a pending point itself as a candidate: two equal rows of a joint covariance.
@pytest.mark.sampled(3)
@pytest.mark.filterwarnings("ignore:A not p.d., added jitter:linear_operator.utils.warnings.NumericalWarning")
@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
@pytest.mark.sampled(2)
def test_the_number_of_results_that_a_policy_waits_for_is_right(policy):
    loop = AskTell(policy=policy, bounds=box(), seed=1)
    assert len(loop.ask()) == 4  # the initial design
    assert results_needed(loop) == 4
    assert len(loop.ask()) == 3  # a full batch
    assert results_needed(loop) == 1
    assert len(loop.ask()) == 1


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
def test_a_failed_point_of_the_initial_design_is_replaced_at_once(policy):
    loop = AskTell(policy=policy, bounds=box(), seed=0)
    batch = loop.ask()
    loop.tell(batch.tickets[:1], bowl(batch.X[:1]))
    loop.fail(batch.tickets[1:2])
    assert len(loop.ask()) == 1
    assert results_needed(loop) == 2  # the failure counts as one of the four: then there is a model


def test_more_points_out_than_a_batch_holds_are_waited_for(generator):
    search = BoTorchUCB(**CHEAP).on(Box(box()))
    X = search.box.uniform(6, generator=generator)
    state = search.tell(search.init(), X[:1], bowl(X[:1]), generator=generator)
    waiting = search.ask(state, max_q=9, pending=search.box.uniform(5, generator=generator), generator=generator)
    assert waiting.needed == 3  # the rest of the initial design; two points are then out, and a batch has three
    state = search.tell(state, X[1:], bowl(X[1:]), generator=generator)
    waiting = search.ask(state, max_q=9, pending=search.box.uniform(7, generator=generator), generator=generator)
    assert waiting.needed == 5


@pytest.mark.parametrize("policy", [REMBO, HeSBO])
def test_a_search_in_an_embedding_keeps_batches_open_as_its_inner_policy_does(policy):
    for inner, keeps in ((SBPE(horizon=40, candidates=16, width=3.0), True), (BoTorchUCB(**CHEAP), False)):
        assert inner.on(Box(box())).keeps_batch_open == keeps
        assert policy(inner=inner, target_dims=1).on(Box(box())).keeps_batch_open == keeps
