"""Runs by files: ``create``, ``ask``, ``tell``, ``add`` and ``enqueue``, and what is wrong with a CSV file."""

import csv
import math
import os
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from sparse_bo import AskTell, Choice, Float, Int
from sparse_bo.policies import RandomSearch
from sparse_bo.runs.recording import read_run
from tests.cli.builders import invoke

SPACE = """
temperature = {type = "float", low = 20.0, high = 100.0}
hours = {type = "int", low = 1, high = 24}
solvent = {type = "choice", values = ["water", "ethanol", "DMF"]}
grade = {type = "int", low = 1, high = 3, when = {solvent = "DMF"}}
"""
SEVERAL = ["--objectives", "yield:max,cost:min"]


@pytest.fixture
def lab(tmp_path, monkeypatch):
    """Create a journal and return its path; the working folder has space.toml."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "space.toml").write_text(SPACE, encoding="utf-8")

    def create(*options):
        done = invoke("create", "lab.journal", "--space", "space.toml", "--workers", "4", *options)
        assert done.exit_code == 0, done.output
        return tmp_path / "lab.journal"

    return create


def read(path):
    """Return the rows of a CSV file by column."""
    with open(path, encoding="utf-8-sig", newline="") as file:
        return list(csv.DictReader(file))


def write(path, rows, *, delimiter=","):
    """Write rows by column into a CSV file."""
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), delimiter=delimiter)
        writer.writeheader()
        writer.writerows(rows)


def test_a_laboratory_asks_and_tells_by_files_alone(lab):
    journal = lab()
    done = invoke("ask", "lab.journal", "--out", "monday.csv")
    assert done.exit_code == 0, done.output
    assert done.output == (
        "monday.csv: 4 points, 4 pending in all; fill in value\nnext: python -m sparse_bo tell lab.journal monday.csv\n"
    )
    rows = read("monday.csv")
    assert list(rows[0]) == ["ticket", "temperature", "hours", "solvent", "grade", "value"]
    assert [row["ticket"] for row in rows] == list("0123")
    rows[0]["value"], rows[1]["value"], rows[2]["value"] = "1.5", "failed", "2"
    write("monday.csv", rows)
    assert invoke("tell", "lab.journal", "monday.csv").output == "told 3 results, 1 of them failed; 1 pending\n"
    rows[3]["value"] = "3"
    write("monday.csv", rows)
    assert invoke("tell", "lab.journal", "monday.csv").output == "told 1 result; 3 were told before; 0 pending\n"
    recorded = read_run(journal)
    np.testing.assert_equal(recorded.evaluations.values, [1.5, math.nan, 2.0, 3.0])
    with AskTell.resume(journal) as loop:  # the points are those of the file
        assert loop.history.observations == 4
        asked = [point for row in loop.history.rows for point in row.points]
    assert [point[0] * 80 + 20 for point in asked] == pytest.approx(
        [float(rows[ticket]["temperature"]) for row in recorded.history.rows for ticket in row.tickets]
    )
    rows[0]["value"] = "1.75"
    write("monday.csv", rows)
    done = invoke("tell", "lab.journal", "monday.csv")
    assert done.exit_code == 2
    assert "expected the result of ticket 0 as told before, got a change in line 2 of monday.csv" in done.stderr
    np.testing.assert_equal(read_run(journal).evaluations.values, [1.5, math.nan, 2.0, 3.0])


def test_several_outcomes_are_columns(lab):
    journal = lab(*SEVERAL)
    invoke("ask", "lab.journal", 3, "--out", "points.csv")
    rows = read("points.csv")
    rows[0] |= {"yield": "1", "cost": "2"}
    rows[1] |= {"yield": "3", "cost": "nan"}
    rows[2] |= {"yield": "4", "cost": ""}
    write("points.csv", rows)
    lacking = "1 with some outcomes only, the first in line 4"
    assert invoke("tell", "lab.journal", "points.csv").output == f"told 2 results; {lacking}; 1 pending\n"
    rows[2]["cost"] = "5"
    write("points.csv", rows)
    assert invoke("tell", "lab.journal", "points.csv").output == "told 1 result; 2 were told before; 0 pending\n"
    np.testing.assert_equal(read_run(journal).evaluations.values, [[1.0, 2.0], [3.0, math.nan], [4.0, 5.0]])


def test_inputs_that_were_changed_are_where_it_was_evaluated(lab):
    journal = lab()
    invoke("ask", "lab.journal", 2, "--out", "points.csv")
    rows = read("points.csv")
    untouched = float(rows[1]["temperature"])
    rows[0] |= {"temperature": "67", "value": "1"}
    rows[1] |= {"temperature": f"{untouched:.9g}", "value": "2"}  # as Excel writes it
    write("points.csv", rows)
    assert invoke("tell", "lab.journal", "points.csv").output == "told 2 results, 1 at other inputs than asked for; 0 pending\n"
    temperatures = [20 + 80 * point[0] for point in read_run(journal).evaluations.picks]
    assert temperatures == pytest.approx([67.0, untouched], rel=1e-13)


def test_a_change_is_one_of_the_range_and_not_of_a_large_number(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    times, counts, days = Float(1.7e9, 1.7e9 + 86400), Float(0, 1e7, step=1), Choice(1.7e9, 1.7e9 + 600, 1.7e9 + 1200)
    start = {"time": 1.7e9 + 40000.3721, "count": 5_000_000.0, "day": 1.7e9}
    with AskTell(space={"time": times, "count": counts, "day": days}, storage="lab.journal", workers=8) as loop:
        loop.enqueue([start] * 6)
    assert invoke("ask", "lab.journal", 6, "--out", "points.csv").exit_code == 0
    rows = [row | {"value": "1"} for row in read("points.csv")]
    rows[1]["time"] = "1700040600"
    rows[2]["count"] = "5000003"
    rows[3]["day"] = "1700000600"
    rows[4]["time"] = "1700040000"  # in ten digits
    rows[5]["time"] = f"{float(rows[5]['time']):.15g}"
    write("points.csv", rows)
    assert invoke("tell", "lab.journal", "points.csv").output == "told 6 results, 3 at other inputs than asked for; 0 pending\n"
    told = read_run("lab.journal").evaluations
    with AskTell.resume("lab.journal") as loop:
        found = [loop._domain.named(loop._domain.stacked([pick]))[0] for pick in told.picks.tolist()]
    changed = {1: {"time": 1.7e9 + 40600}, 2: {"count": 5_000_003.0}, 3: {"day": 1.7e9 + 600}}
    for k, point in enumerate(found):
        expected = start | changed.get(k, {})
        assert point | {"time": 0.0} == expected | {"time": 0.0}
        assert point["time"] == pytest.approx(expected["time"], abs=1e-3)


@pytest.mark.parametrize("domain", [{"bounds": [(1.7e9, 1.7e9 + 86400)]}, {"space": {"x1": Float(1.7e9, 1.7e9 + 86400)}}])
def test_a_result_at_another_time_is_another_observation(domain, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    AskTell(**domain, storage="lab.journal").close()
    write("earlier.csv", [{"x1": "1700040000.37", "value": "5"}])
    write("later.csv", [{"x1": "1700040000", "value": "5"}, {"x1": "1700040600", "value": "5"}])
    assert invoke("add", "lab.journal", "earlier.csv").stdout.startswith("added 1 result\n")
    assert invoke("add", "lab.journal", "later.csv").stdout.startswith("added 1 result; 1 was added before\n")
    assert read_run("lab.journal").evaluations.added.tolist() == [True, True]


def test_a_file_of_another_run_is_refused_unless_it_was_measured_there(lab):
    journal = lab()
    invoke("ask", "lab.journal", 3, "--out", "points.csv")
    rows = [row | {"temperature": str(30 + k), "value": str(k)} for k, row in enumerate(read("points.csv"))]
    write("points.csv", rows)
    done = invoke("tell", "lab.journal", "points.csv")
    assert (done.exit_code, done.stderr) == (
        2,
        "error: expected the points of lab.journal in points.csv, got other inputs than were asked for in each of 3 rows, as "
        "in the file of another run; tell the file of this run, or, if all were measured there, add --yes\n",
    )
    assert read_run(journal).told == 0
    write("points.csv", rows[:1])
    assert invoke("tell", "lab.journal", "points.csv").output == "told 1 result, 1 at other inputs than asked for; 2 pending\n"
    write("points.csv", rows[1:])
    done = invoke("tell", "lab.journal", "points.csv", "--yes")
    assert done.output == "told 2 results, 2 at other inputs than asked for; 0 pending\n"


def test_fewer_points_than_were_asked_for_are_explained(lab):
    lab()
    done = invoke("ask", "lab.journal", 100, "--out", "points.csv")
    count = len(read("points.csv"))
    ends = f"points.csv: {count} points of 100, where a batch of the policy or the queue ends, {count} pending in all;"
    assert done.stdout.startswith(ends)


def test_standard_deviations_have_a_column(lab):
    journal = lab()
    invoke("ask", "lab.journal", 2, "--out", "points.csv")
    rows = [row | {"value": "1", "value_sd": sd} for row, sd in zip(read("points.csv"), ["0.25", ""], strict=True)]
    write("points.csv", rows)
    assert invoke("tell", "lab.journal", "points.csv").exit_code == 0
    np.testing.assert_equal(read_run(journal).evaluations.sds, [[0.25], [math.nan]])


def test_a_result_or_an_input_is_not_the_noise_of_the_outcome_that_its_name_begins_with(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("space.toml").write_text('cost_sd = {type = "float", low = 0.0, high = 1.0}\n')
    several = ["--objectives", "yield:max,cost:min", "--constraint", "yield_sd<=0.3"]
    assert invoke("create", "lab.journal", "--space", "space.toml", *several).exit_code == 0
    invoke("ask", "lab.journal", 1, "--out", "points.csv")
    (row,) = read("points.csv")
    row |= {"yield": "3", "cost": "7", "yield_sd": "0.2"}
    write("points.csv", [row])
    assert invoke("tell", "lab.journal", "points.csv").output == "told 1 result; 0 pending\n"
    seen = read_run("lab.journal").evaluations
    assert (seen.values.tolist(), seen.sds) == ([[3.0, 7.0, 0.2]], None)
    noise = {"yield_sd_": "0.5", "cost_sd_": "", "yield_sd_sd": "0.01"}
    write("colleague.csv", [{**row, **noise, "ticket": "", "cost_sd": "0.9"}])
    assert invoke("add", "lab.journal", "colleague.csv").stdout.startswith("added 1 result\nnext: ")
    assert invoke("add", "lab.journal", "colleague.csv").stdout.startswith("added 0 results; 1 was added before\n")
    seen = read_run("lab.journal").evaluations
    np.testing.assert_equal(seen.values[1], [3.0, 7.0, 0.2])
    np.testing.assert_equal(seen.sds[1], [0.5, math.nan, 0.01])


@pytest.mark.parametrize(("column", "cell"), [("temperature", "68"), ("value", "2"), ("value_sd", "0.5")])
def test_what_was_told_cannot_be_changed_by_its_file(lab, column, cell):
    journal = lab("--minimize")
    invoke("ask", "lab.journal", 2, "--out", "points.csv")
    rows = [row | {"value": "1", "value_sd": "0.25"} for row in read("points.csv")]
    rows[0]["temperature"] = "67"
    write("points.csv", rows)
    assert invoke("tell", "lab.journal", "points.csv").exit_code == 0
    before = journal.read_bytes()
    done = invoke("tell", "lab.journal", "points.csv")
    assert done.output == "told 0 results; 2 were told before; 0 pending\n"
    write("again.csv", [{name: row[name] for name in ("ticket", "value")} for row in rows])  # neither inputs nor spreads
    assert invoke("tell", "lab.journal", "again.csv").output == done.output
    rows[0][column] = cell
    write("points.csv", rows)
    done = invoke("tell", "lab.journal", "points.csv")
    assert done.exit_code == 2
    assert "of ticket 0 as told before, got a change in line 2 of points.csv: results do not change" in done.stderr
    assert journal.read_bytes() == before


def test_results_do_not_count_twice_because_their_noise_became_known(lab):
    journal = lab()
    row = {"temperature": "50.5", "hours": "4", "solvent": "DMF", "grade": "2", "value": "1.5"}
    rows = [row, row | {"hours": "5"}]
    write("colleague.csv", rows)
    assert invoke("add", "lab.journal", "colleague.csv").stdout.startswith("added 2 results\n")
    before = journal.read_bytes()
    write("colleague.csv", [one | {"value_sd": "0.1"} for one in rows])
    done = invoke("add", "lab.journal", "colleague.csv")
    assert done.stdout.startswith("added 0 results; 2 were added before, 2 without standard deviations: results do not change")
    assert journal.read_bytes() == before


def test_a_file_of_results_can_be_added_again(lab):
    journal = lab()
    row = {"temperature": "50.5", "hours": "4", "solvent": "DMF", "grade": "2", "value": "1.5", "value_sd": "0.1"}
    other = {"temperature": "50.5", "hours": "4", "solvent": "water", "grade": "", "value": "1.5", "value_sd": ""}
    write("colleague.csv", [row, other, other])  # a repeat
    assert invoke("add", "lab.journal", "colleague.csv").stdout.startswith("added 3 results\n")
    before = journal.read_bytes()
    done = invoke("add", "lab.journal", "colleague.csv")
    assert done.stdout.startswith("added 0 results; 3 were added before\n")
    assert journal.read_bytes() == before
    write("colleague.csv", [other, row, row | {"value_sd": "0.2"}, row | {"hours": "5"}, row | {"value": "1.6"}, row])
    assert invoke("add", "lab.journal", "colleague.csv").stdout.startswith("added 4 results; 2 were added before\n")
    recorded = read_run(journal)
    assert recorded.added == 7
    assert [point["hours"] for point in recorded.history.parameters[3:]] == [4, 5, 4, 4]
    np.testing.assert_equal(recorded.evaluations.values[3:], [1.5, 1.5, 1.6, 1.5])
    np.testing.assert_equal(recorded.evaluations.sds[3:, 0], [0.2, 0.1, 0.1, 0.1])


def test_a_file_that_is_lost_is_written_again_and_none_is_overwritten(lab):
    lab()
    invoke("ask", "lab.journal", 3, "--out", "points.csv")
    before = read("points.csv")
    done = invoke("ask", "lab.journal", 1, "--out", "points.csv")
    assert (done.exit_code, done.stderr) == (
        2,
        "error: points.csv exists, and may have results; choose another --out\n",
    )
    assert invoke("ask", "lab.journal", "--again", "--out", "again.csv").exit_code == 0
    assert read("again.csv") == before
    printed = invoke("ask", "lab.journal", "--again").stdout
    assert list(csv.DictReader(printed.splitlines())) == before
    assert "expected a number of points >= 1, got 0" in invoke("ask", "lab.journal", 0).stderr
    done = invoke("ask", "lab.journal", 2, "--out", "no/such/points.csv")
    assert done.exit_code == 2
    assert "to exist; create it first" in done.stderr
    assert read_run("lab.journal").asked == 3


def test_a_policy_that_waits_says_how_to_go_on(lab):
    lab("--policy", "trust-region", "--batch-size", "4", "--initial-design", "4")
    assert invoke("ask", "lab.journal", 4).exit_code == 0
    done = invoke("ask", "lab.journal", 1)
    assert done.exit_code == 2
    assert "4 evaluations are pending" in done.stderr
    assert "or `ask --beyond-batch` does not wait" in done.stderr
    assert len(invoke("ask", "lab.journal", 2, "--beyond-batch").stdout.splitlines()) == 3
    assert "expected a number of points with --beyond-batch" in invoke("ask", "lab.journal", "--beyond-batch").stderr


def test_a_colleagues_results_are_added_and_points_queued(lab):
    journal = lab()
    write(
        "colleague.csv",
        [
            {"temperature": "50,5", "hours": "4", "solvent": "water", "grade": "", "value": "1,5", "operator": "AB"},
            {"temperature": "60", "hours": "4,0", "solvent": "DMF", "grade": "2", "value": "2", "operator": "CD"},
        ],
        delimiter=";",
    )
    done = invoke("add", "lab.journal", "colleague.csv")
    assert done.output == "added 2 results\nnext: python -m sparse_bo ask lab.journal\nleft out: the column operator\n"
    recorded = read_run(journal)
    assert recorded.added == 2
    assert recorded.history.parameters == [
        {"temperature": 50.5, "hours": 4, "solvent": "water"},
        {"temperature": 60.0, "hours": 4, "solvent": "DMF", "grade": 2},
    ]
    assert recorded.evaluations.values.tolist() == [1.5, 2.0]
    write("crash.csv", [{"temperature": "55", "hours": "4", "solvent": "water", "value": "failed"}])
    assert invoke("add", "lab.journal", "crash.csv").stdout.startswith("added 1 result\n")
    assert invoke("add", "lab.journal", "crash.csv").stdout.startswith("added 0 results; 1 was added before\n")
    assert read_run(journal).failed == 1
    write("try.csv", [{"temperature": "70", "solvent": "ethanol"}, {"temperature": "80", "solvent": ""}])
    assert invoke("enqueue", "lab.journal", "try.csv").stdout.startswith("queued 2 points, which the run evaluates first\n")
    first, second = csv.DictReader(invoke("ask", "lab.journal", 2).stdout.splitlines())
    assert (first["temperature"], first["solvent"], second["temperature"]) == ("70.0", "ethanol", "80.0")
    assert first["hours"] in map(str, range(1, 25))
    assert invoke("ask", "lab.journal", "--again", "--out", "again.csv").exit_code == 0
    write("again.csv", [{**row, "ticket": "", "hours": "", "value_sd": ""} for row in read("again.csv")])
    done = invoke("enqueue", "lab.journal", "again.csv")  # all columns are those of a command
    assert done.output.startswith("queued 2 points"), done.output


def test_a_run_that_has_ended_goes_on_with_what_was_added_and_queued(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = ["run", "--problem", "hartmann6", "--policy", "random", "--storage", "run.journal", "--out", ".", "--quiet"]
    assert invoke(*run, "--budget", "4").exit_code == 0
    point = {f"x{k}": f"0.{k}" for k in range(1, 7)}
    write("try.csv", [point])
    write("colleague.csv", [{**point, "x1": "0.9", "value": "2.5"}])
    done = invoke("add", "run.journal", "colleague.csv")
    assert done.output.endswith("next: python -m sparse_bo resume run.journal --budget 5\n")
    done = invoke("enqueue", "run.journal", "try.csv")
    assert done.output.endswith("next: python -m sparse_bo resume run.journal --budget 5\n")
    done = invoke("resume", "run.journal", "--budget", "5")
    assert done.exit_code == 0, done.output
    recorded = read_run("run.journal")
    assert (recorded.asked, recorded.told, recorded.added) == (5, 6, 1)
    np.testing.assert_allclose(recorded.evaluations.picks[-1], [0.1, 0.2, 0.3, 0.4, 0.5, 0.6])
    assert recorded.evaluations.values[4] == 2.5


def test_results_without_the_column_of_a_constant_can_be_added_again(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    space = 'hours = {type = "float", low = 1, high = 5}\nroom = {type = "choice", values = ["A"]}\n'
    (tmp_path / "space.toml").write_text(space, encoding="utf-8")
    assert invoke("create", "lab.journal", "--space", "space.toml").exit_code == 0
    write("colleague.csv", [{"hours": "2", "value": "1.5"}])
    assert invoke("add", "lab.journal", "colleague.csv").stdout.startswith("added 1 result\n")
    assert invoke("add", "lab.journal", "colleague.csv").stdout.startswith("added 0 results; 1 was added before\n")


def test_candidates_are_told_by_name_or_by_number(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arms = np.random.default_rng(0).random((12, 2))
    np.save("arms.npy", arms)
    (tmp_path / "names.txt").write_text("".join(f"plate-{k}\n" for k in range(12)))
    assert invoke("create", "named.journal", "--arms-file", "arms.npy", "--names", "names.txt").exit_code == 0
    invoke("ask", "named.journal", 2, "--out", "named.csv")
    rows = read("named.csv")
    assert list(rows[0]) == ["ticket", "name", "value"]
    write("named.csv", [row | {"value": "1"} for row in rows])
    assert invoke("tell", "named.journal", "named.csv").output == "told 2 results; 0 pending\n"
    write("add.csv", [{"name": "plate-3", "value": "7"}])
    assert invoke("add", "named.journal", "add.csv").exit_code == 0
    assert read_run("named.journal").evaluations.picks[-1] == 3
    assert invoke("add", "named.journal", "add.csv").stdout.startswith("added 0 results; 1 was added before\n")
    (tmp_path / "marks.csv").write_text("\ufeffname,value\r\nplate-4,7\r\n", encoding="utf-8-sig", newline="")
    assert invoke("add", "named.journal", "marks.csv").stdout.startswith("added 1 result\n")
    write("add.csv", [{"name": "plate-33", "value": "7"}])
    assert "got 'plate-33'; did you mean" in invoke("add", "named.journal", "add.csv").stderr
    assert invoke("create", "numbered.journal", "--arms-file", "arms.npy").exit_code == 0
    (row,) = csv.DictReader(invoke("ask", "numbered.journal", 1).stdout.splitlines())
    assert [float(row["x1"]), float(row["x2"])] == arms[int(row["arm"])].tolist()
    write("add.csv", [{"arm": "1.5", "value": "7"}])
    done = invoke("add", "numbered.journal", "add.csv")
    assert "expected a whole number for 'arm' in line 2 of add.csv, got '1.5'" in done.stderr
    (tmp_path / "arms.npy").rename(tmp_path / "moved.npy")
    assert "pass --arms-file PATH" in invoke("ask", "numbered.journal", 1).stderr
    assert invoke("ask", "numbered.journal", 1, "--arms-file", "moved.npy").exit_code == 0


BY_FILE = [["ask"], ["tell", "file.csv"], ["add", "file.csv"], ["enqueue", "file.csv"]]
COLLEAGUE = "temperature,hours,solvent,value\n50,4,water,1\n"
WRONG = {
    "another case": (COLLEAGUE.replace("hours", "Hours"), "add", "got 'Hours'; did you mean 'hours'?"),
    "an outcome in another case": (COLLEAGUE.replace("value", "Value"), "add", "got 'Value'; did you mean 'value'?"),
    "an optional one in another case": (
        "temperature,hours,solvent,Grade,value\n50,4,DMF,1,1\n",
        "add",
        "to be written as the run's names, got 'Grade'; write 'grade'",
    ),
    "a column missing": (
        "temperature,hours,value\n50,4,1\n",
        "add",
        "to have the columns temperature, hours, solvent, value, got temperature, hours, value; add solvent",
    ),
    "no column of the run": ("a,b\n1,2\n", "enqueue", "to have the columns temperature, hours, solvent, grade, got a, b"),
    "a misspelt parameter": ("Temperatur,hours\n50,4\n", "enqueue", "got 'Temperatur'; did you mean 'temperature'?"),
    "an unknown parameter": (
        "T,hours\n50,4\n",
        "enqueue",
        "as it lacks temperature, solvent, grade, which the policy would choose, got 'T'; rename the column",
    ),
    "a missing value": (COLLEAGUE + "50,,water,2\n", "add", "got no 'hours' in line 3; add it"),
    "a missing result": (COLLEAGUE + "50,4,water,\n", "add", "a result in each line of file.csv, got no value in line 3"),
    "outside the bounds": (
        COLLEAGUE + "\n150,4,water,1\n",
        "add",
        "line 4 of the added inputs: expected temperature in",
    ),
    "queued outside the bounds": (
        "temperature\n50\n150\n",
        "enqueue",
        "line 3 of the enqueued inputs: expected temp",
    ),
    "the only result outside the bounds": (
        "ticket,temperature,hours,solvent,grade,value\n1,50,4,water,,\n0,150,4,water,,1\n",
        "tell",
        "line 3: expected temperature in",
    ),
    "another choice": (COLLEAGUE + "50,4,Water,1\n", "add", "got 'Water'; did you mean 'water'?"),
    "an inactive parameter": (
        "temperature,hours,solvent,grade,value\n50,4,water,2,1\n",
        "add",
        "expected added inputs with 'grade' only where 'solvent' is 'DMF', got a 'grade' in line 2; take it out",
    ),
    "a text for a number": (
        COLLEAGUE + "hot,4,water,1\n",
        "add",
        "expected a number for 'temperature' in line 3 of file.csv, got 'hot'; write a number",
    ),
    "a decimal comma": (COLLEAGUE + '"50,5",4,water,1\n', "add", "got '50,5'; write a decimal point"),
    "separated thousands": (
        "temperature;hours;solvent;value\n50;4;water;1.234,5\n",
        "add",
        "got '1.234,5'; write no thousands sep",
    ),
    "a result below a limit": (
        COLLEAGUE + "50,4,water,<0.01\n",
        "add",
        "got '<0.01'; write the limit of detection, or half of it",
    ),
    "a result in words": (COLLEAGUE + "50,4,water,n.d.\n", "add", "got 'n.d.'; write a number, or `failed`"),
    "an integer with a fraction": (COLLEAGUE + "50,4.5,water,1\n", "add", "hours"),
    "too many cells": (
        COLLEAGUE + "50,5,4,water,1\n",
        "add",
        "line 3 has 5 cells for 4 names; a text with a comma",
    ),
    "too few cells": (COLLEAGUE + "50,4\n", "add", "line 3 has 2 cells for 4 names\n"),
    "a name twice": ("hours,hours,value\n1,1,1\n", "add", "the name 'hours' is there twice: rename a column"),
    "no rows": ("temperature,hours,solvent,value\n", "add", "it has no rows below the names"),
    "nothing": ("", "add", "it has no lines"),
    "a workbook": (b"PK\x03\x04\x00", "add", "it is a workbook: save the sheet as CSV UTF-8"),
    "other bytes": ("temperatür,value\n1,1\n".encode("cp1252"), "add", "in UTF-8; it has other bytes: save it as CSV UTF-8"),
    "UTF-16": ("a,b\n1,2\n".encode("utf-16"), "add", "it has other bytes: save it as CSV UTF-8"),
    "no text": (b"a\x00b,c\n1,2\n", "tell", "it is no text"),
    "an open quote": ('temperature,"hours\n', "add", "cannot be read"),
    "tickets": ("ticket," + COLLEAGUE.replace("\n50", "\n0,50"), "add", "got tickets; `tell` reports results of `ask`"),
    "queued tickets": ("ticket," + COLLEAGUE.replace("\n50", "\n0,50"), "enqueue", "got tickets; `tell` reports results of"),
    "no tickets": (COLLEAGUE, "tell", "to have the columns ticket, value, got temperature, hours, solvent, value; add ticket"),
    "an unknown ticket": ("ticket,value\n99,1\n", "tell", "of `ask` for lab.journal, got 99 in line 2 of file.csv; tell the"),
    "a ticket twice": (
        "ticket,value\n0,1\n0,2\n",
        "tell",
        "expected each ticket once, got 0 in lines 2 and 3 of file.csv; leave",
    ),
    "a broken ticket": (
        "ticket,value\n0.5,1\n",
        "tell",
        "expected a whole number for 'ticket' in line 2 of file.csv",
    ),
    "no results": ("ticket,value\n0,\n1,\n", "tell", "results in file.csv, got an empty cell in every line; fill in value"),
    "a negative spread": (
        "ticket,value,value_sd\n0,1,0.1\n1,2,-1\n",
        "tell",
        "expected a finite standard deviation >= 0 for 'value_sd' in line 3 of file.csv, got -1",
    ),
    "an infinite result": (
        "ticket,value\n0,inf\n",
        "tell",
        "error: expected a finite number for 'value' in line 2 of file.csv, got 'inf'; write `failed` where there is none",
    ),
    "some inputs": ("ticket,hours,value\n0,4,1\n", "tell", "to have the columns temperature, hours, solvent, grade"),
}


@pytest.fixture(scope="module")
def asked(tmp_path_factory):
    """The bytes of a journal of two pending points."""
    folder = tmp_path_factory.mktemp("lab")
    (folder / "space.toml").write_text(SPACE, encoding="utf-8")
    for arguments in (("create", folder / "lab.journal", "--space", folder / "space.toml"), ("ask", folder / "lab.journal", 2)):
        assert invoke(*arguments).exit_code == 0
    return (folder / "lab.journal").read_bytes()


@pytest.mark.parametrize(("text", "command", "message"), WRONG.values(), ids=WRONG)
def test_a_wrong_file_is_named_before_anything_is_recorded(asked, text, command, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("lab.journal").write_bytes(asked)
    Path("file.csv").write_bytes(text if isinstance(text, bytes) else text.encode())
    done = invoke(command, "lab.journal", "file.csv")
    assert done.exit_code == 2, done.output
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert Path("lab.journal").read_bytes() == asked


def test_a_file_that_is_none_is_named(lab):
    lab()
    done = invoke("tell", "lab.journal", "gone.csv")
    assert (done.exit_code, done.stderr) == (2, "error: expected a CSV file at gone.csv, found none; name another\n")
    os.mkfifo("pipe.csv")  # nobody writes into it
    assert "it is no file" in invoke("tell", "lab.journal", "pipe.csv").stderr


@pytest.mark.parametrize(
    "command", [["ask"], ["tell", "file.csv"], ["add", "file.csv"], ["enqueue", "file.csv"]], ids=lambda c: c[0]
)
def test_a_journal_that_a_process_writes_is_left_alone(lab, command):
    journal = lab()
    journal.with_name("file.csv").write_text("ticket,temperature,hours,solvent,grade,value\n0,50,4,water,,1\n")
    with AskTell.resume(journal) as loop:
        loop.ask(1)
        if command[0] in ("add", "enqueue"):
            journal.with_name("file.csv").write_text(COLLEAGUE)
        done = invoke(command[0], "lab.journal", *command[1:])
    assert done.exit_code == 2
    assert f"lab.journal is open for writing in process {os.getpid()} on" in done.stderr
    assert "close that run first" in done.stderr


@pytest.mark.parametrize(
    "command", [["ask"], ["tell", "file.csv"], ["add", "file.csv"], ["enqueue", "file.csv"]], ids=lambda c: c[0]
)
def test_a_journal_that_is_not_there_is_named(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = invoke(command[0], "run.journal", *command[1:])
    assert done.exit_code == 2
    assert "expected a journal at run.journal, found none" in done.stderr


def test_a_feasibility_function_needs_python(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with AskTell(space={"a": Float(0, 1)}, feasible=lambda p: p["a"] < 0.5, storage="run.journal") as loop:
        loop.ask(1)
    done = invoke("ask", "run.journal", 1)
    assert done.exit_code == 2
    assert "go on in Python: AskTell.resume(…, feasible=…)" in done.stderr


def test_values_of_every_kind_come_back_from_their_text(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    space = {
        "flag": Choice(True, False),
        "size": Choice(16, 32.5, 64),
        "none": Choice(None, "some, or 'more'"),
        "rate": Float(1e-9, 1.0, log=True),
        "n": Int(1, 3),
        "value": Choice("a", "b"),
    }
    with AskTell(space=space, policy=RandomSearch(), storage="run.journal") as loop:
        asked = loop.ask(16)
    assert invoke("ask", "run.journal", "--again", "--out", "points.csv").exit_code == 0
    rows = read("points.csv")
    assert list(rows[0]) == ["ticket", *space, "value_"]
    write("points.csv", [{name: cell for name, cell in row.items() if name not in ("ticket", "value_")} for row in rows])
    assert invoke("enqueue", "run.journal", "points.csv").exit_code == 0
    with AskTell.resume("run.journal") as loop:
        again = loop.ask(len(asked))
    assert [{name: value for name, value in point.items() if name != "rate"} for point in again.parameters] == [
        {name: value for name, value in point.items() if name != "rate"} for point in asked.parameters
    ]
    torch.testing.assert_close(again.X, asked.X, rtol=0.0, atol=1e-12)


def test_blanks_around_names_and_choices_are_theirs_where_they_have_some(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arms = torch.rand(4, 2, dtype=torch.float64)
    with AskTell(arms, names=["x", " x", "y ", "z"], storage="arms.journal"):
        pass
    Path("try.csv").write_text("name\n x\ny \n z\nx\n")
    assert invoke("enqueue", "arms.journal", "try.csv").exit_code == 0
    with AskTell.resume("arms.journal") as loop:
        assert loop.ask(4).indices.tolist() == [1, 2, 3, 0]
    with AskTell(space={"kind": Choice("a", " a", " b"), "x": Float(0, 1)}, storage="run.journal"):
        pass
    Path("done.csv").write_text("kind,x,value\na , 0.5, 1\n a,0.5,3\nb,0.25 , 4\n b,0.75,2 \n")
    assert invoke("add", "run.journal", "done.csv").exit_code == 0
    with AskTell.resume("run.journal") as loop:
        table = loop.result().to_pandas()
    assert table["kind"].tolist() == ["a", " a", " b", " b"]
    assert table["x"].tolist() == [0.5, 0.5, 0.25, 0.75]


def test_a_choice_of_none_may_be_an_empty_cell_as_pandas_writes_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    space = {
        "prune": Choice(None, "late"),
        "depth": Choice(None, 3, when={"prune": "late"}),
        "rate": Float(0.0, 1.0),
    }
    with AskTell(space=space, policy=RandomSearch(), storage="run.journal") as loop:
        asked = [point for _ in range(8) for point in loop.ask(1).parameters]
    assert {(point["prune"], point.get("depth")) for point in asked} == {(None, None), ("late", None), ("late", 3)}
    invoke("ask", "run.journal", "--again", "--out", "points.csv")
    table = pd.read_csv("points.csv")
    table.assign(value=1.0).to_csv("points.csv", index=False)
    assert "None" not in Path("points.csv").read_text(encoding="utf-8")
    assert invoke("tell", "run.journal", "points.csv").output == "told 8 results; 0 pending\n"
    table.drop(columns="ticket").assign(value=2.0).to_csv("added.csv", index=False)
    assert invoke("add", "run.journal", "added.csv").stdout.startswith("added 8 results\n")
    names = ("prune", "depth")
    found = [{name: point[name] for name in names if name in point} for point in read_run("run.journal").history.parameters]
    assert found == 2 * [{name: point[name] for name in names if name in point} for point in asked]
    write("try.csv", [{"prune": "", "rate": "0.5"}] * 8)
    assert invoke("enqueue", "run.journal", "try.csv").exit_code == 0
    with AskTell.resume("run.journal") as loop:
        assert {point["prune"] for point in loop.ask(8).parameters} == {None, "late"}  # the policy chooses


@pytest.mark.parametrize("command", ["add", "enqueue"])
def test_choices_that_are_the_same_text_are_refused_in_files_without_tickets(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with AskTell(space={"kind": Choice(None, "None"), "x": Float(0, 1)}, storage="run.journal") as loop:
        asked = loop.ask(4).parameters
    assert invoke("ask", "run.journal", "--again", "--out", "points.csv").exit_code == 0
    table = pd.read_csv("points.csv", keep_default_na=False).assign(value=1.0)
    table.to_csv("points.csv", index=False)
    assert invoke("tell", "run.journal", "points.csv").output == "told 4 results; 0 pending\n"
    assert read_run("run.journal").history.parameters == asked
    table[["kind", "x", *(["value"] if command == "add" else [])]].to_csv("more.csv", index=False)
    assert "expected choices of 'kind' that differ in a file, got 'None'" in invoke(command, "run.journal", "more.csv").output


def test_the_commands_of_the_page_on_files_are_as_it_says(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parents[2] / "docs" / "command_line.md").read_text(encoding="utf-8")
    (space,) = re.findall(r"```\n(rate = .*?)```", page, re.DOTALL)
    (tmp_path / "space.toml").write_text(space, encoding="utf-8")
    (section,) = re.findall(r"^## By files, without Python$(.*?)^## ", page, re.DOTALL | re.MULTILINE)
    blocks = re.findall(r"^```\n(.*?)```$", section, re.DOTALL | re.MULTILINE)
    files = [block for block in blocks if "python -m" not in block]
    commands = [line for block in blocks for line in block.splitlines() if line.startswith("python -m sparse_bo ")]
    assert len(commands) == 6
    for name, text in zip(["colleague.csv", "try.csv"], files, strict=True):
        assert f"`{name}`:" in section
        (tmp_path / name).write_text(text, encoding="utf-8")
    for command in commands:
        if " tell " in command:
            write("monday.csv", [row | {"value": "0.5"} for row in read("monday.csv")])
        done = invoke(*command.removeprefix("python -m sparse_bo ").split())
        assert done.exit_code == 0, done.output
    recorded = read_run("lab.journal")
    assert (recorded.told, recorded.added) == (6, 2)
    (row,) = csv.DictReader(invoke("ask", "lab.journal", 1).stdout.splitlines())
    assert (row["rate"], row["kind"]) == ("0.02", "tree")
    assert row["depth"] in map(str, range(1, 13))


def test_what_create_refuses_is_said(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "space.toml").write_text(SPACE, encoding="utf-8")
    for options, message in [
        ([], "expected one of --space, --arms-file and --grid"),
        (["--space", "space.toml", "--grid", "9x9"], "expected one of --space, --arms-file and --grid"),
        (["--space", "space.toml", "--minimize", *SEVERAL], "--minimize contradicts --objectives"),
        (["--space", "space.toml", "--policy", "bbbk"], "did you mean 'bbkb'?"),
        (["--space", "space.toml", "--constraint", "a<=1"], "--constraint needs --objectives"),
    ]:
        done = invoke("create", "lab.journal", *options)
        assert done.exit_code == 2, done.output
        assert message in done.stderr
        assert not (tmp_path / "lab.journal").exists()
    assert invoke("create", "lab.journal", "--space", "space.toml").exit_code == 0
    done = invoke("create", "lab.journal", "--space", "space.toml")
    assert (done.exit_code, done.stderr) == (
        2,
        "error: lab.journal exists; go on with it by `ask` and `tell`, or choose another path\n",
    )
    assert "go on by `ask` and `tell`" in invoke("resume", "lab.journal", "--yes").stderr


def test_inputs_beside_the_number_of_an_arm_are_those_of_the_arm(tmp_path, monkeypatch):
    """A colleague's file of the same candidates in another order has other numbers."""
    monkeypatch.chdir(tmp_path)
    arms = np.random.default_rng(0).random((12, 2))
    np.save("arms.npy", arms)
    assert invoke("create", "run.journal", "--arms-file", "arms.npy").exit_code == 0
    theirs = [{"arm": k, "x1": x, "x2": y, "value": "1"} for k, (x, y) in enumerate(arms[::-1])]
    write("theirs.csv", theirs)
    for command in ("add", "enqueue"):
        done = invoke(command, "run.journal", "theirs.csv")
        assert done.exit_code == 2
        assert f"expected 'x1' in line 2 of theirs.csv to be {float(arms[0, 0])!r}" in done.stderr
        assert "correct them, or leave the inputs of arms out" in done.stderr
    assert read_run("run.journal").told == 0
    write("ours.csv", [{"arm": k, "x1": f"{x:.2f}", "x2": f"{y:.5g}", "value": "1"} for k, (x, y) in enumerate(arms)])
    assert invoke("add", "run.journal", "ours.csv").stdout.startswith("added 12 results\n")
    np.save("halves.npy", np.array([[0.125], [0.375], [0.625]]))
    assert invoke("create", "halves.journal", "--arms-file", "halves.npy").exit_code == 0
    write("spreadsheet.csv", [{"arm": k, "x1": x, "value": "1"} for k, x in enumerate(("0.13", "0.38", "0.62"))])  # up and down
    assert invoke("add", "halves.journal", "spreadsheet.csv").stdout.startswith("added 3 results\n")
    np.save("arms32.npy", arms.astype(np.float32))
    assert invoke("create", "run32.journal", "--arms-file", "arms32.npy").exit_code == 0
    write("double.csv", [{"arm": k, "x1": x, "x2": y, "value": "1"} for k, (x, y) in enumerate(arms)])
    assert invoke("add", "run32.journal", "double.csv").stdout.startswith("added 12 results\n")
    invoke("ask", "run.journal", 2, "--out", "points.csv")
    rows = [row | {"value": "1"} for row in read("points.csv")]
    write("points.csv", [row | {"x2": str(float(row["x2"]) + 0.1)} for row in rows])
    assert "expected 'x2' in line 2 of points.csv to be" in invoke("tell", "run.journal", "points.csv").stderr
    write("points.csv", rows)
    assert invoke("tell", "run.journal", "points.csv").output == "told 2 results; 0 pending\n"


def test_empty_texts_fractions_and_blanks_that_are_none_come_back_as_they_were_asked(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fractions = Choice(1 / 6, 1 / 3, 0.5, ordered=True)
    for kind in (Choice(None, "", "THF"), Choice("", "THF", "DMF")):
        Path("run.journal").unlink(missing_ok=True)
        with AskTell(space={"kind": kind, "part": fractions}, policy=RandomSearch(), storage="run.journal") as loop:
            for _ in range(9):
                loop.ask(1)
        invoke("ask", "run.journal", "--again", "--out", "points.csv")
        rows = [row | {"part": f"{float(row['part']):.9g}", "value": "1"} for row in read("points.csv")]
        write("points.csv", rows)
        assert invoke("tell", "run.journal", "points.csv").output == "told 9 results; 0 pending\n"
        Path("points.csv").unlink()
    names = ["toluene", "a\xa0b", "DMF", "THF\tx"]
    with AskTell(torch.rand(4, 2, dtype=torch.float64), names=names, storage="arms.journal", workers=4) as loop:
        pass
    table = invoke("ask", "arms.journal", 4).stdout
    assert {row["name"] for row in csv.DictReader(table.splitlines())} == {*names}


def test_a_report_never_takes_the_place_of_a_journal(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with AskTell(bounds=[(0.0, 1.0)], policy=RandomSearch(), storage="run.jsonl") as loop:
        loop.tell(loop.ask(), [1.0])
    before = Path("run.jsonl").read_bytes()
    done = invoke("report", "run.jsonl", "--out", ".")
    assert done.exit_code == 2
    assert "would take the place of the journal; choose another --out" in done.stderr
    own = ["--problem", "branin2", "--policy", "random", "--budget", 3, "--out", "o"]
    done = invoke("run", *own, "--storage", "o/branin2-random-seed0.jsonl")
    assert done.exit_code == 2
    assert Path("run.jsonl").read_bytes() == before


def test_points_queued_before_count_in_the_budget_that_is_printed(lab):
    lab()
    write("try.csv", [{"temperature": "50", "hours": "4", "solvent": "water"}])
    budgets = [re.search(r"--budget (\d+)", invoke("enqueue", "lab.journal", "try.csv").stdout) for _ in range(2)]
    assert [None if one is None else int(one[1]) for one in budgets] in ([1, 2], [None, None])
