"""The trust-region policy."""

from __future__ import annotations

from dataclasses import dataclass

from sparse_bo.domains import Domain
from sparse_bo.policies.protocol import box_of
from sparse_bo.policies.trust_region.mechanism import RegionSearch
from sparse_bo.policies.trust_region.settings import RegionSettings


@dataclass(frozen=True, kw_only=True)
class TrustRegion(RegionSettings):
    """Expected improvement in a region that grows with progress and shrinks without (after TuRBO, Eriksson et al. 2019).

    The sides of the region are proportional to the lengthscales. The model is an exact GP of at most ``model_size`` points.
    Its kernel (Gaussian or Matérn-5/2) and a warping of the observations are chosen by their evidence. The picks of a batch
    maximise log expected improvement by gradients, each conditioned on the ones before it. In more than ``many_inputs``
    inputs they differ from the centre in about ``perturbed_inputs`` inputs. A region that has become short gives way to
    another one; all data stays in the model.

    The best point of the design is evaluated once more. If the objective gives the same value, it has no noise: the model
    interpolates, and the highest observation is recommended. Else the point of the highest posterior mean is, and improvement
    that noise would hide counts for less (augmented expected improvement, Huang et al. 2006).

    With ``goal="cumulative"`` a pick maximises ``m(x) − max m + h EI(x)``, the online knowledge gradient (Ryzhov, Powell &
    Frazier 2012): its gain over the ``h = horizon · n`` next evaluations minus its cost now, in the units of the observations.
    Where it is not positive, the best point is evaluated again. The model merges the evaluations of a point.

    O(n³) per batch, n at most ``model_size``, for any number of evaluations.

    The settings are those of :class:`.RegionSettings`. Each part beyond TuRBO has a measurement of its gain:
    ``benchmarks/results/ABLATIONS.md``.
    """

    @property
    def name(self) -> str:
        """``"trust-region"``."""
        return "trust-region"

    def on(self, domain: Domain) -> RegionSearch:
        """See :meth:`sparse_bo.policies.Policy.on`."""
        return RegionSearch(box=box_of(domain, policy=self.name).double(), settings=self)
