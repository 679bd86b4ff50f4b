"""Pages, figures and the overview, all made from the records in ``results/``; measures nothing.

    python benchmarks/report.py                # results/<experiment>.md, its figures, and the table in README.md
    python benchmarks/report.py --no-figures   # the text alone
    python benchmarks/report.py --check        # writes nothing; status 1 where a page is not what the records give

A test runs the check, so no number in a page can be written by hand.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from harness.experiment import Experiment
from harness.pages import overview, render, with_overview, write
from harness.records import BENCHMARKS, RESULTS

SCRIPTS = (
    "optimisation", "bbob_figures", "coco_suites", "outcomes", "libraries", "learners", "speed", "bbkb_figures",
    "bkb_figures", "policies", "sbpe_figures", "dictionaries", "surrogates", "peers", "acquisitions", "batches",
    "gssbo_rules", "gssbo_figures", "theory", "plan_check", "execution", "attacks", "device_costs", "sharding", "gpu",
    "optuna_trials",
)  # fmt: skip
"""Every benchmark, in the order of the overview."""
README = BENCHMARKS / "README.md"


def experiments() -> list[Experiment]:
    """Return every benchmark."""
    return [import_module(name).EXPERIMENT for name in SCRIPTS]


def texts() -> dict[Path, str]:
    """Return what every page should say, by its file."""
    known = experiments()
    pages = {RESULTS / f"{experiment.name}.md": render(experiment, experiment.read())[0] for experiment in known}
    return pages | {README: with_overview(README.read_text(encoding="utf-8"), overview(known, RESULTS))}


def stale() -> list[Path]:
    """Return the pages that are not what the records give."""
    return [path for path, text in texts().items() if not path.exists() or path.read_text(encoding="utf-8") != text]


def main(arguments: Sequence[str] | None = None) -> None:
    """Write every page, or check them."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--no-figures", action="store_true", help="write the text alone")
    parser.add_argument("--check", action="store_true", help="write nothing; status 1 where a page is out of date")
    chosen = parser.parse_args(arguments)
    if chosen.check:
        found = stale()
        for path in found:
            print(f"{path.relative_to(BENCHMARKS.parent)} is not what its records give; python benchmarks/report.py writes it")
        sys.exit(1 if found else 0)
    for experiment in experiments():
        print(write(experiment, RESULTS, figures=not chosen.no_figures).relative_to(BENCHMARKS.parent), flush=True)
    README.write_text(texts()[README], encoding="utf-8")


if __name__ == "__main__":
    main()
