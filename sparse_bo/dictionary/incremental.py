"""Leverage sampling that goes on from the last dictionary instead of looking at every input again (BKB's streaming variant)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch

from sparse_bo.dictionary.base import Candidates, Dictionary, candidate_count, chosen
from sparse_bo.dictionary.simple import AllSampler
from sparse_bo.errors import SamplerError
from sparse_bo.gp.leverage import Inclusion, inclusion_probabilities
from sparse_bo.validation import check_choice, check_positive


@dataclass(frozen=True, kw_only=True)
class IncrementalLeverageSampler:
    """BKB's incremental dictionary (Calandriello et al. 2019, §3): old points stay with ``p_{t+1}/p_t``, new pulls join.

    A point of the last dictionary stays with probability ``min(1, p_{t+1}/p_t)``, p its inclusion probability then and now; an
    input outside joins by the pulls of the newest batch alone, with their inclusion probability. What has been dropped returns
    only if it is pulled again, so nothing but the dictionary and the newest batch is looked at, and from round to round little
    changes. With leverages that only fall each input has :class:`LeverageSampler`'s probability (``inclusion="exact"``). As the
    pulls depend on the dictionaries, the paper leaves open whether its guarantee holds; the certificate of a run does.

    Over arms: ``BKB(dictionary=IncrementalLeverageSampler())``.

    Attributes:
        oversampling: q̄ > 0, as in :class:`LeverageSampler`.
        inclusion: Of an input pulled c times: ``"union"`` or ``"exact"``, as there.
    """

    oversampling: float = 2.0
    inclusion: Inclusion = "union"

    def __post_init__(self) -> None:
        check_positive("oversampling", self.oversampling)
        check_choice("inclusion", self.inclusion, ("exact", "union"))

    def sample(self, candidates: Candidates, *, generator: torch.Generator) -> Dictionary:
        """Draw one uniform number per distinct input, in order; never returns an empty dictionary. O(n).

        If chance keeps nothing, the input of highest inclusion probability (lowest index on ties) is kept. Before there is a
        posterior (no leverages) everything is kept and nothing drawn.

        Raises:
            SamplerError: If it is not told what the last dictionary was.
        """
        candidate_count(candidates, needed_by=type(self).__name__)
        if candidates.leverages is None:
            return AllSampler().sample(candidates, generator=generator)
        if candidates.previous_probabilities is None or candidates.new is None:
            raise SamplerError(
                "IncrementalLeverageSampler goes on from the last dictionary and expected candidates with kept and new, got "
                "neither; use it in BKB or BBKB over arms, LeverageSampler elsewhere"
            )
        included = partial(inclusion_probabilities, candidates.leverages, oversampling=self.oversampling, law=self.inclusion)
        whole, joining = included(candidates.counts), included(candidates.new)
        inside = candidates.previous_probabilities > 0.0
        staying = (whole / candidates.previous_probabilities.where(inside, torch.ones_like(whole))).clamp_max(1.0)
        draws = torch.rand(len(whole), generator=generator, device="cpu", dtype=torch.float64).to(whole.device)
        positions = (draws < torch.where(inside, staying, joining)).nonzero().squeeze(-1)
        if not len(positions):
            positions = whole.argmax().unsqueeze(0)
        return chosen(candidates, positions, whole[positions])
