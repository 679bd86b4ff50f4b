"""A small problem on a box, and settings with which policies through BoTorch are quick."""

import torch

from sparse_bo.domains import Box, Domain

SMALL = {"initial_design": 4, "num_restarts": 2, "raw_samples": 8}


def box(device="cpu", dtype=torch.float64):
    return torch.tensor([[-1.0, 10.0], [3.0, 30.0]], dtype=dtype, device=device)


def bowl(X):
    return -((X - torch.tensor([1.0, 18.0], dtype=X.dtype, device=X.device)) / torch.tensor([1.0, 5.0]).to(X)).square().sum(-1)


def keep_parameters(model):
    """A fit that costs nothing and leaves plausible hyper-parameters."""
    model.covar_module.lengthscale = 0.5
    model.likelihood.noise = 1e-3


def searched(policy, domain, outcomes, function, *, budget, seed=0):
    """Return the mechanism of a policy for several outcomes, and its state after ``budget`` evaluations without a loop."""
    domain = domain if isinstance(domain, Domain) else Box(domain)
    mechanism, generator = policy.on_outcomes(domain, outcomes), torch.Generator().manual_seed(seed)
    state = mechanism.init()
    while state.pulls < budget:
        proposal = mechanism.ask(state, max_q=budget - state.pulls, pending=state.X[:0], generator=generator)
        picks = domain.mended(proposal.picks, seen=state.X, repeats=proposal.repeats, generator=generator)
        state = mechanism.tell(state, picks, function(picks), generator=generator)
    return mechanism, state
