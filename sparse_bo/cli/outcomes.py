"""Several outcomes from the options ``--objectives``, ``--constraint`` and ``--reference``."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from sparse_bo.policies import Outcomes
from sparse_bo.policies.outcomes import Limits

MEANT: Mapping[str, str] = {"≤": "<=", "≥": ">=", "=<": "<=", "=>": ">=", "<": "<=", ">": ">="}
"""Sign -> the one that was meant."""


def outcomes_of(objectives: str | None, constraint: Sequence[str] | None, reference: str | None) -> Outcomes | None:
    """Return the outcomes of a run; ``None`` with one objective without a name."""
    if objectives is None:
        others = {"--constraint": constraint, "--reference": reference}
        if given := [option for option, value in others.items() if value]:
            raise ValueError(f"{given[0]} needs --objectives, got none; add for example --objectives yield:max,cost:min")
        return None
    directions = directions_of(objectives)
    return Outcomes.of(directions, limits_of(constraint or []), None if reference is None else values_of(reference, directions))


def directions_of(text: str) -> dict[str, str]:
    """Return the direction of each objective, by name."""
    found: dict[str, str] = {}
    for part in map(str.strip, text.split(",")):
        name, _, direction = (one.strip() for one in part.rpartition(":"))
        if not name or direction not in ("max", "min"):
            raise ValueError(f"expected --objectives like yield:max,cost:min, got {part!r}{_meant_direction(part)}")
        if name in found:
            raise ValueError(f"expected each of --objectives once, got {name!r} twice; drop one")
        found[name] = direction
    return found


def _meant_direction(part: str) -> str:
    name, _, direction = (one.strip() for one in part.replace("=", ":").rpartition(":"))
    if name in ("max", "min") and direction:
        name, direction = direction, name
    for known in ("max", "min"):
        if name and direction.lower().startswith(known):
            return f"; did you mean {name}:{known}?"
    name = name or direction
    return f"; did you mean {name}:max or {name}:min?" if name else ""


def limits_of(texts: Sequence[str]) -> dict[str, Limits]:
    """Return the limits of each constrained outcome, by name; two texts may give the two limits of one."""
    found: dict[str, Limits] = {}
    for text in texts:
        name, (lower, upper) = _limits(text)
        old = found.get(name, (None, None))
        if (lower is not None and old[0] is not None) or (upper is not None and old[1] is not None):
            raise ValueError(f"expected one lower and one upper limit of {name!r} by --constraint, got {text!r} too; drop one")
        found[name] = (old[0] if lower is None else lower, old[1] if upper is None else upper)
    return found


def _limits(text: str) -> tuple[str, Limits]:
    parts = re.split(r"(<=|>=|=<|=>|==|≤|≥|<|>|=)", text)
    terms, operators = [part.strip() for part in parts[::2]], parts[1::2]
    numbers = [_number(term) for term in terms]
    names = [k for k, value in enumerate(numbers) if value is None]
    expected = f'expected --constraint like "impurity<=0.05", "yield>=10" or "0<=a<=1", got {text!r}'
    if len(names) != 1 or not terms[names[0]] or (len(terms), names[0]) not in ((2, 0), (2, 1), (3, 1)):
        raise ValueError(f"{expected}{_meant_limit(terms)}")
    (k,) = names
    signs = [MEANT.get(operator, operator) for operator in operators]
    if signs in (["="], ["=="]):
        raise ValueError(f'{expected}; did you mean "{terms[1 - k]}<={terms[k]}<={terms[1 - k]}"?')
    if len(set(signs)) > 1 or signs[0] not in ("<=", ">="):
        raise ValueError(f"{expected}; both limits are written with <=, or both with >=")
    if not {"<=", ">=", "≤", "≥"}.issuperset(operators):
        meant = "".join(term + sign for term, sign in zip(terms, [*signs, ""], strict=True))
        raise ValueError(f'{expected}; did you mean "{meant}"?')
    if not all(math.isfinite(value) for value in numbers if value is not None):
        raise ValueError(f"{expected}; a limit is a finite number: leave the other one out")
    before, after = (numbers[k - 1] if k else None), (numbers[k + 1] if k + 1 < len(terms) else None)
    return terms[k], ((before, after) if signs[0] == "<=" else (after, before))


def _meant_limit(terms: Sequence[str]) -> str:
    if len(terms) == 1 and terms[0]:
        found = re.fullmatch(r"(.*?)[\s:]+(\S+)", terms[0])
        if found and _number(found[2]) is not None:
            return f'; did you mean "{found[1]}<={found[2]}"?'
        return "; a limit is missing"
    return "; one side has to be the name of an outcome, the others numbers"


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def values_of(text: str, objectives: Mapping[str, Any]) -> dict[str, float]:
    """Return a value of each objective, by name."""
    found: dict[str, float] = {}
    for part in map(str.strip, text.split(",")):
        name, _, value = (one.strip() for one in part.rpartition("="))
        number = _number(value)
        if not name or number is None:
            example = ",".join(f"{one}=0" for one in objectives)
            raise ValueError(f"expected --reference like {example}, got {part!r}")
        if name not in objectives:
            close = difflib.get_close_matches(name, objectives, n=1)
            fix = f"did you mean {close[0]}?" if close else f"they are {', '.join(objectives)}"
            raise ValueError(f"expected --reference of the names in --objectives, got {name!r}; {fix}")
        if name in found:
            raise ValueError(f"expected each of --reference once, got {name!r} twice; drop one")
        found[name] = number
    if missing := [name for name in objectives if name not in found]:
        raise ValueError(f"expected --reference of each objective, got none of {', '.join(missing)}; add {missing[0]}=VALUE")
    return found
