"""Points and results of a run in CSV files: the rows of a file, and the columns of a run."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from sparse_bo.domains import Choice, Float
from sparse_bo.domains.encoded import recorded_space
from sparse_bo.domains.space import Space
from sparse_bo.domains.values import Parameter
from sparse_bo.evaluations.job import Batch
from sparse_bo.evaluations.results import Measured, unused
from sparse_bo.policies import Outcomes
from sparse_bo.validation import nearest


class CSVFile(NamedTuple):
    """The rows of a CSV file, as text."""

    path: Path
    columns: list[str]
    rows: list[dict[str, str]]
    """``n`` rows by column, without those of empty cells alone."""
    lines: list[int]
    """``n`` lines of the file in which they end."""
    decimal_comma: bool
    """Whether numbers may have a decimal comma: cells are separated by semicolons."""

    @staticmethod
    def read(path: Path) -> CSVFile:
        """Read a file with one line of names; cells are separated by commas, semicolons or tabs.

        Raises:
            FileNotFoundError: If there is no file.
            ValueError: If it is none of text in UTF-8 with a line of distinct names and as many cells in each row.
        """
        if not path.exists():
            raise FileNotFoundError(f"expected a CSV file at {path}, found none; name another")
        form = f"expected {path} to be a CSV file: names in the first line, a row for each point below"
        if not path.is_file():  # a pipe would be waited for
            raise ValueError(f"{form}; it is no file")
        data = path.read_bytes()
        if data[:2] in (b"PK", b"\xd0\xcf"):
            raise ValueError(f"{form}; it is a workbook: save the sheet as CSV UTF-8")
        try:
            text = data.decode("utf-8").lstrip("\ufeff")  # a program that keeps the mark may write a second one
        except UnicodeDecodeError as error:
            raise ValueError(f"{form}, in UTF-8; it has other bytes: save it as CSV UTF-8") from error
        if "\0" in text:
            raise ValueError(f"{form}; it is no text: save the table as CSV UTF-8")
        first = text.partition("\n")[0]
        delimiter = max(",;\t", key=first.count)
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
        rows, lines = list[list[str]](), list[int]()
        try:
            for cells in reader:
                if any(cell.strip() for cell in cells):
                    rows.append([cell if rows and cell.strip() else cell.strip() for cell in cells])  # a choice may have blanks
                    lines.append(reader.line_num)
        except csv.Error as error:
            raise ValueError(f"{form}; line {reader.line_num} cannot be read: {error}") from error
        if len(rows) < 2:
            raise ValueError(f"{form}; it has {'no rows below the names' if rows else 'no lines'}")
        columns = rows[0]
        while not columns[-1]:
            del columns[-1]
        twice = next((name for name in columns if columns.count(name) > 1), None)
        if twice is not None:
            raise ValueError(f"{form}; the name {twice!r} is there twice: rename a column")
        for line, cells in zip(lines[1:], rows[1:], strict=True):
            if len(cells) < len(columns) or any(cells[len(columns) :]):
                comma = "; a text with a comma needs quotes, a number a decimal point" if len(cells) > len(columns) else ""
                raise ValueError(f"{form}; line {line} has {len(cells)} cells for {len(columns)} names{comma}")
        found = [dict(zip(columns, cells, strict=False)) for cells in rows[1:]]
        return CSVFile(path, columns, found, lines[1:], delimiter == ";")

    def check(self, needed: Sequence[str], optional: Sequence[str] = ()) -> list[str]:
        """Return the columns that are none of these.

        Raises:
            ValueError: If a needed one is missing, or an optional one is there in another case.
        """
        others = [name for name in self.columns if name not in (*needed, *optional)]
        missing = [name for name in needed if name not in self.columns]
        form = f"expected {self.path} to have the columns {', '.join(needed)}"
        for name in others:
            if near := nearest(name, missing):
                raise ValueError(f"{form}, got {name!r}{near}")
            for one in optional:
                alike = one.casefold().replace("_", " ") == name.casefold().replace("_", " ")
                if alike and one not in self.columns:
                    raise ValueError(
                        f"expected columns of {self.path} to be written as the run's names, got {name!r}; write {one!r}"
                    )
        if missing:
            raise ValueError(f"{form}, got {', '.join(self.columns)}; add {', '.join(missing)}")
        return others

    def number(self, row: int, column: str, *, fix: str = "write a number") -> float:
        """Return a cell as a number."""
        text = self.rows[row][column].strip()
        plain = text.replace(",", ".") if self.decimal_comma and "." not in text else text
        try:
            return float(plain)
        except ValueError as error:
            fix = "write a decimal point" if re.fullmatch(r"[+-]?\d*,\d+", text) else fix
            fix = "write no thousands separators" if re.fullmatch(r"[+-]?\d{1,3}([.,]\d{3})+[.,]\d+", text) else fix
            fix = "write the limit of detection, or half of it" if text.startswith("<") else fix
            raise ValueError(f"expected a number for {self.place(row, column)}, got {text!r}; {fix}") from error

    def whole_number(self, row: int, column: str) -> int:
        """Return a cell as an integer."""
        if (number := self.number(row, column)).is_integer():
            return int(number)
        got = f"{self.rows[row][column]!r}; write one such as 3"
        raise ValueError(f"expected a whole number for {self.place(row, column)}, got {got}")

    def place(self, row: int, column: str) -> str:
        """Return where a cell is, for messages."""
        return f"{column!r} in line {self.lines[row]} of {self.path}"


class PointColumns(NamedTuple):
    """The columns of a run's points in a CSV file. Of two with one name the later one ends in ``_``."""

    space: Space | None
    kinds: Mapping[str, Parameter]
    """Input -> its values, in a space or a box; empty with arms."""
    inputs: list[str]
    """Those that name a point: parameters, ``x1``, … of a box, ``arm`` (a row number), or ``name`` of arms with names."""
    beside: list[str]
    """Those that are written for the reader alone: the inputs ``x1``, … of an arm."""
    ticket: str
    results: dict[str, str]
    """Name of an outcome -> its column; of a run with one objective without a name ``value``."""
    several: bool
    """Whether outcomes have names."""
    recorded: Callable[[Sequence[Any]], list[Any]]
    """From ``n`` recorded arms or ``n`` points to the form of :meth:`points`."""
    names: frozenset[str]
    """Names of arms; empty without."""

    @staticmethod
    def of(about: Mapping[str, Any]) -> PointColumns:
        """Return the columns of a recorded run from its description."""
        space: Space | None = None
        kinds: Mapping[str, Parameter] = {}
        dims = about["dims"] if "dims" in about else about["arms"][1]
        numbered = about.get("inputs") or [f"x{k + 1}" for k in range(dims)]
        inputs, beside = numbered, list[str]()
        recorded: Callable[[Sequence[Any]], list[Any]] = list
        if "space" in about:
            domain = recorded_space(about)
            space, recorded = domain.space, lambda picks: domain.named(domain.stacked(picks))
            inputs, kinds = space.names, space.parameters
        elif "names" in about:
            inputs, recorded = ["name"], lambda arms: [about["names"][arm] for arm in arms]
        elif "arms" in about:
            inputs, beside = ["arm"], numbered
        else:
            kinds = dict(zip(inputs, map(Float, *about["bounds"]), strict=True))
        names = Outcomes.of(**about["outcomes"]).names if "outcomes" in about else ("value",)
        columns = [*inputs, *beside]
        for name in ("ticket", *names):
            columns.append(unused(name, columns))
        ticket, *results = columns[len(inputs) + len(beside) :]
        outcomes = dict(zip(names, results, strict=True))
        named = frozenset(about.get("names", ()))
        return PointColumns(space, kinds, inputs, beside, ticket, outcomes, "outcomes" in about, recorded, named)

    @property
    def every(self) -> list[str]:
        """All columns, in the order in which they are written."""
        return [self.ticket, *self.inputs, *self.beside, *self.results.values()]

    @property
    def needed(self) -> list[str]:
        """Inputs that every point has."""
        if self.space is None:
            return self.inputs
        return [name for name, one in self.space.parameters.items() if one.when is None and one.count != 1]

    @property
    def sds(self) -> dict[str, str]:
        """Name of an outcome -> the column of its known standard deviations, which a file may have."""
        return {name: unused(f"{column}_sd", self.every) for name, column in self.results.items()}

    def check_choices(self) -> None:
        """Raise a ``ValueError`` if two values of a choice are the same text, as ``None`` and ``"None"`` are."""
        for name, kind in self.kinds.items():
            texts = [str(value) for value in kind.values] if isinstance(kind, Choice) else []
            if twice := [text for text in texts if texts.count(text) > 1]:
                fix = "use add and enqueue of AskTell, or other names in a new run"
                raise ValueError(f"expected choices of {name!r} that differ in a file, got {twice[0]!r} for two of them; {fix}")

    def written(self, batch: Batch) -> str:
        """Return evaluations as CSV, with empty cells for the results and for parameters that are not there."""
        rows: list[list[Any]] = []
        for ticket, point, x in zip(batch.tickets, self.asked(batch), batch.X.tolist(), strict=True):
            values = point if isinstance(point, list) else [point]
            if isinstance(point, dict):
                values = [("None" if point[name] is None else point[name]) if name in point else "" for name in self.inputs]
            rows.append([ticket, *values, *x[: len(self.beside)], *[""] * len(self.results)])
        file = io.StringIO()
        csv.writer(file, lineterminator="\n").writerows([self.every, *rows])
        return file.getvalue()

    def asked(self, batch: Batch) -> list[Any]:
        """Return the points of evaluations in the form of :meth:`points`."""
        return self.recorded(batch.picks.tolist())

    def points(self, file: CSVFile, *, whole: bool = True) -> list[Any]:
        """Return the points of a file, as :meth:`sparse_bo.AskTell.add` takes them.

        An empty cell: the input is missing. Of a ``whole`` point it is ``None``, if that is a choice: pandas writes so.
        """
        rows = range(len(file.rows))
        if self.inputs == ["name"] and self.space is None:
            return [row["name"] if row["name"] in self.names else row["name"].strip() for row in file.rows]
        if self.inputs == ["arm"] and self.space is None:
            return [file.whole_number(row, "arm") for row in rows]
        if self.space is None:
            return [[file.number(row, name) if file.rows[row].get(name) else math.nan for name in self.inputs] for row in rows]
        parameters, names = self.space.parameters.items(), file.columns if whole else []
        found = [{name: _value(one, file, k, name) for name, one in parameters if file.rows[k].get(name, "")} for k in rows]
        return [self.space.with_implied(point, names, text=True) for point in found]

    def differ(self, given: Any, asked: Any) -> bool:
        """Return whether two points in the form of :meth:`points` differ, by more than other programs round numbers."""
        if isinstance(given, dict):
            return given.keys() != asked.keys() or any(_differ(given[name], asked[name], self.kinds[name]) for name in given)
        if isinstance(given, list):
            return any(map(_differ, given, asked, self.kinds.values()))
        return bool(given != asked)

    def filled(self, file: CSVFile) -> list[int]:
        """Return the rows of a file that have results, of several outcomes all of them."""
        return [row for row, cells in enumerate(file.rows) if all(cells[column] for column in self.results.values())]

    def result(self, file: CSVFile, row: int) -> Any:
        """Return the result of a row: a number, or numbers by name; ``failed`` or ``nan``: NaN."""
        sds = self.sds
        found = {name: _result(file, row, column, sds[name]) for name, column in self.results.items()}
        return found if self.several else found["value"]


def _value(parameter: Parameter, file: CSVFile, row: int, column: str) -> Any:
    """Return a value of a parameter; a text that is none of the choices as it is."""
    text = file.rows[row][column]
    if not isinstance(parameter, Choice):
        return parameter.whole(file.number(row, column))
    exact = {str(value): value for value in reversed(parameter.values)}
    named = {written.strip(): value for written, value in exact.items()} | exact
    for written in (text, text := text.strip()):
        if written in named:
            return named[written]
    with suppress(ValueError):  # 8.0, or True in capitals: other programs write values in another form
        number = file.number(row, column)
        numbers = [value for value in parameter.values if type(value) in (int, float)]
        near = [value for value in numbers if isinstance(value, float) and math.isclose(number, value, rel_tol=1e-6)]
        return next((value for value in numbers if value == number), near[0] if len(near) == 1 else text)
    return next((value for value in parameter.values if isinstance(value, bool | None) and str(value).upper() == text), text)


def _differ(given: Any, asked: Any, parameter: Parameter) -> bool:
    """Return whether two values of a parameter differ.

    Real numbers are equal up to a millionth of themselves and of the range (with steps, a thousandth of a step). So is one that
    another program has rounded to 10 digits or more: 1700040000 for 1700040000.4.
    """
    if not isinstance(parameter, Float):
        return given != asked and str(given) != str(asked)  # a file has texts: 1 and "1" are the same
    size = min(abs(asked), parameter.high - parameter.low, 1e3 * (parameter.step or math.inf))
    return not (abs(given - asked) <= 1e-6 * size or given in [float(f"{asked:.{digits}g}") for digits in range(10, 18)])


def _result(file: CSVFile, row: int, column: str, sd_column: str) -> float:
    text = file.rows[row][column].strip()
    value = math.nan if text.casefold() in ("nan", "failed") else file.number(row, column, fix="write a number, or `failed`")
    if math.isinf(value):
        got = f"{text!r}; write `failed` where there is none"
        raise ValueError(f"expected a finite number for {file.place(row, column)}, got {got}")
    if not file.rows[row].get(sd_column):
        return value
    sd = file.number(row, sd_column)
    if value == value and not 0.0 <= sd < math.inf:
        got = f"{sd:g}; leave the cell empty if none is known"
        raise ValueError(f"expected a finite standard deviation >= 0 for {file.place(row, sd_column)}, got {got}")
    return Measured(value, sd)
