"""What every sparse model can be told beside what its BoTorch sibling takes, checked before any work."""

from __future__ import annotations

from typing import Literal, NamedTuple, get_args

from botorch.exceptions.errors import InputDataError
from torch import Tensor

from sparse_bo.dictionary import Dictionary, Sampler
from sparse_bo.validation import check_choice, check_count

Fit = Literal["exact", "subset", "vfe", "dtc"]
"""The likelihoods that hyper-parameters can be learned from."""

Chosen = Sampler | Dictionary | Tensor | None
"""What ``dictionary=`` takes."""


class SparseOptions(NamedTuple):
    """The own options of a sparse model, as :class:`sparse_bo.SparseGP` describes them."""

    dictionary: Chosen
    max_dictionary: int | None
    fit: Fit | None
    seed: int


def checked_options(dictionary: Chosen, max_dictionary: int | None, fit: Fit | None, seed: int) -> SparseOptions:
    """Return the options; what needs the data (rows, points) is checked when the data are.

    Raises:
        TypeError: If ``dictionary`` is a class, or ``max_dictionary`` or ``seed`` is no integer.
        ValueError: If ``max_dictionary`` < 1, ``seed`` < 0 or ``fit`` is unknown.
    """
    if isinstance(dictionary, type):
        name = dictionary.__name__
        raise TypeError(f"expected dictionary to be a sampler, got the class {name}; pass an instance: dictionary={name}(...)")
    cap = None if max_dictionary is None else check_count("max_dictionary", max_dictionary)
    if fit is not None:
        check_choice("fit", fit, get_args(Fit))
    return SparseOptions(dictionary, cap, fit, check_count("seed", seed, minimum=0))


def check_tensors(**data: Tensor) -> None:
    """Refuse what is no tensor by its name, before BoTorch asks it for a shape; integers; other numbers of rows.

    Raises:
        TypeError: If something is no tensor.
        InputDataError: If all are of one dtype, which has no fractions (of different ones BoTorch raises that).
        ValueError: If two of them have other numbers of rows.
    """
    for name, given in data.items():
        if not isinstance(given, Tensor):
            raise TypeError(f"expected {name} to be a torch.Tensor, got {type(given).__name__}; use torch.as_tensor(...)")
    dtypes = {given.dtype for given in data.values()}
    if len(dtypes) == 1 and not (dtype := dtypes.pop()).is_floating_point:
        names = " and ".join(data)
        raise InputDataError(f"expected {names} of dtype torch.float64, got {dtype}; use .double()")
    rows = {name: given.shape[-2] for name, given in data.items() if given.ndim >= 2}
    if len(set(rows.values())) > 1:
        raise ValueError(f"expected as many rows of each, got {', '.join(f'{n} of {name}' for name, n in rows.items())}")
