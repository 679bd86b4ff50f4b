"""What README and docstrings say is true: its code runs, its files exist, public names are documented."""

import importlib.util
import inspect
import re
import sys
import tomllib
from pathlib import Path

import pytest
import torch

import sparse_bo
from sparse_bo.domains import Space

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = sorted((ROOT / "docs").rglob("*.md"))


def loaded(name):
    """Return a script of docs/ as a module."""
    spec = importlib.util.spec_from_file_location(f"site_{name}", ROOT / "docs" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_readme_code_runs_as_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len(blocks) >= 3
    for block in blocks:  # each alone, as a reader copies one of them
        with torch.random.fork_rng():
            torch.manual_seed(0)
            exec(block, {})
    assert {p.name for p in tmp_path.iterdir()} == {"run.html", "run.journal", "run.journal.lock"}


def words_of(text):
    """Return the words of a page: what is read, without code blocks, comments and the addresses of links."""
    text = re.sub(r"```.*?```|<!--.*?-->", "", text, flags=re.DOTALL)
    return [word for word in re.sub(r"\]\([^)]*\)", "]", text).split() if re.search(r"\w", word)]


def test_the_changelog_is_short():
    assert len((ROOT / "CHANGELOG.md").read_text(encoding="utf-8").splitlines()) <= 150


def test_readme_has_at_most_900_words_and_short_examples():
    assert len(words_of("two [words](of/a/page.md) <!-- a -->\n```\nx = 1\n```\n")) == 2
    assert 300 <= len(words_of(README)) <= 900
    for block in re.findall(r"```python\n(.*?)```", README, re.DOTALL):
        assert len([line for line in block.splitlines() if line]) <= 8, block


def code(page):
    """Return the blocks of a page, and whether each needs Ax."""
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    return [
        (block, bool(re.search(r"^(from|import) ax\b|register_with_ax|sparse_generation_strategy", block, re.MULTILINE)))
        for block in blocks
    ]


def run(blocks, folder):
    """Run the blocks of a page as a reader copies them: one after another, in one session."""
    names = {}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        for block in blocks:
            exec(block, names)
    assert list(folder.iterdir()) == []


@pytest.mark.sampled(1)
@pytest.mark.parametrize("page", [page for page in PAGES if any(not ax for _, ax in code(page))], ids=lambda page: page.stem)
def test_code_of_the_site_runs_as_written(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run([block for block, ax in code(page) if not ax], tmp_path)


@pytest.mark.filterwarnings("ignore")  # Ax and what it stands on warn about themselves
@pytest.mark.parametrize("page", [page for page in PAGES if any(ax for _, ax in code(page))], ids=lambda page: page.stem)
def test_code_for_ax_runs_as_written(page, tmp_path, monkeypatch):
    pytest.importorskip("ax", reason="Ax is not installed: pip install '.[ax]'")
    monkeypatch.chdir(tmp_path)
    run([block for block, ax in code(page) if ax], tmp_path)


def test_the_tables_of_performance_are_what_the_records_give():
    made, page = loaded("performance"), ROOT / "docs" / "performance.md"
    text = page.read_text(encoding="utf-8")
    assert made.written(text) == text
    wrong = re.sub(r"\| 10,000 \||\| 3\.9 \|", "| 9 |", text, count=1)
    assert wrong != text
    assert made.written(wrong) == text
    with pytest.raises(ValueError, match="put them back around the table"):
        made.written("# How fast\n")


def test_the_site_shows_python_in_no_other_way():
    assert len(PAGES) >= 20
    shown = [line for page in PAGES for line in page.read_text(encoding="utf-8").splitlines() if line.startswith("```")]
    assert set(shown) <= {"```", "```python", "```{toctree}", "```{eval-rst}", "```{include} ../README.md"}


def test_the_space_of_the_page_on_the_command_line_is_one(tmp_path):
    (block,) = re.findall(r"```\n(rate = .*?)```", (ROOT / "docs" / "command_line.md").read_text(encoding="utf-8"), re.DOTALL)
    (tmp_path / "space.toml").write_text(block, encoding="utf-8")
    assert list(Space.load(tmp_path / "space.toml").parameters) == ["rate", "kind", "depth"]


@pytest.mark.parametrize("path", sorted((ROOT / "docs" / "api").glob("*.md")), ids=lambda path: path.stem)
def test_the_reference_has_one_place_for_every_name(path):
    places = re.findall(r"^\.\. auto(?:class|function):: (?:[\w.]+\.)?(\w+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(places) == len(set(places))


def test_the_reference_has_every_public_name():
    text = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "docs" / "api").glob("*.md"))
    public = [
        name for name in sparse_bo.__all__ if not inspect.ismodule(getattr(sparse_bo, name)) and not name.startswith("__")
    ]
    # Errors come with their module.
    missing = [
        name for name in public if not re.search(rf"\b{name}$", text, re.MULTILINE) and not hasattr(sparse_bo.errors, name)
    ]
    assert missing == []
    assert ".. automodule:: sparse_bo.errors" in text


def test_the_reference_has_an_example_of_every_public_name():
    pages = (ROOT / "docs" / "api").glob("*.md")
    shown = "\n".join(block for page in pages for block, _ in code(page))
    public = {n for n in sparse_bo.__all__ if not inspect.ismodule(getattr(sparse_bo, n)) and not n.startswith("__")}
    assert {name for name in public if not re.search(rf"\b{name}\b", shown)} == set()


def test_formulas_and_code_of_how_it_works_are_where_the_pages_say():
    for page in (ROOT / "docs" / "how").glob("*.md"):
        for path in re.findall(r"`(sparse_bo/[\w/.]+)`", page.read_text(encoding="utf-8")):
            assert (ROOT / path).exists(), f"{page.name}: {path}"


def test_files_that_code_and_pages_name_exist():
    """A docstring named a page of decisions that another one had taken in."""
    named = r"\b((?:docs|benchmarks|tests|tutorials|sparse_bo)/[\w./-]+\.(?:py|md|ipynb|toml|png))\b"
    sources = [*(ROOT / "sparse_bo").rglob("*.py"), *(ROOT / "benchmarks").glob("*.py"), *PAGES, *ROOT.glob("*.md")]
    found = {(path.name, file) for path in sources for file in re.findall(named, path.read_text(encoding="utf-8"))}
    assert len(found) >= 50
    assert [(name, file) for name, file in sorted(found) if not (ROOT / file).exists()] == []


def test_files_of_the_glossary_exist():
    files = re.findall(r"`([a-z_]+(?:/\w+)+\.py)`", (ROOT / "GLOSSARY.md").read_text(encoding="utf-8"))
    assert len(files) >= 10
    assert [file for file in files if not (ROOT / "sparse_bo" / file).exists()] == []


def is_there(name: str) -> bool:
    """Return whether a name of the package is a module, an attribute, or a field of a class."""
    found: object = sparse_bo
    for part in name.split("."):
        if inspect.ismodule(found) and not hasattr(found, part) and importlib.util.find_spec(f"{found.__name__}.{part}"):
            found = importlib.import_module(f"{found.__name__}.{part}")
        elif hasattr(found, part):
            found = getattr(found, part)
        else:
            return isinstance(found, type) and any(part in vars(base).get("__annotations__", {}) for base in found.__mro__)
    return True


def test_names_of_the_glossary_exist():
    """Those of a module, such as `gp.posterior.Posterior`; `likelihood.noise` is BoTorch's."""
    text = (ROOT / "GLOSSARY.md").read_text(encoding="utf-8")
    names = set(re.findall(r"`([a-z_]+(?:\.\w+)+)`", text)) - {"likelihood.noise"}
    assert len(names) >= 30
    assert [name for name in sorted(names) if not is_there(name)] == []


def test_members_of_classes_in_the_glossary_exist():
    """`Posterior.joint` was there after it had become `covariance`."""
    members = set(re.findall(r"`([A-Z]\w+)\.(\w+)`", (ROOT / "GLOSSARY.md").read_text(encoding="utf-8")))
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "sparse_bo").rglob("*.py")]

    def is_member(owner: str, name: str) -> bool:
        own = [source for source in sources if re.search(rf"^class {owner}\b", source, re.MULTILINE)]
        return any(re.search(rf"^    (?:def )?{name}\b", source, re.MULTILINE) for source in own)

    assert len(members) >= 20
    assert [pair for pair in sorted(members) if not is_member(*pair) and not is_there(".".join(pair))] == []


@pytest.mark.parametrize("page", ["README.md", "benchmarks/README.md"])
def test_linked_files_exist(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in link]
    assert links
    missing = [link for link in links if not ((ROOT / page).parent / link).exists()]
    assert missing == []


def test_the_test_command_stands_behind_its_marker():
    command = re.search(r"<!-- test command -->\n```\n(.+?)\n```", README).group(1)
    assert "constraints.txt" in command
    assert "pytest" in command


@pytest.mark.parametrize("name", [n for n in sparse_bo.__all__ if not n.startswith("__")])
def test_public_names_are_documented(name):
    item = getattr(sparse_bo, name)
    text = inspect.getdoc(item)
    assert text
    assert text.splitlines()[0].endswith((".", ":"))
    if inspect.isfunction(item):
        if "Arguments and errors are those of :func:`maximize`." in text:
            assert inspect.signature(item) == inspect.signature(sparse_bo.maximize)
            return
        arguments = list(inspect.signature(item).parameters)
        if "The other arguments and errors are those of :func:`maximize`." in text:
            own = [name for name in arguments if name not in inspect.signature(sparse_bo.maximize).parameters]
            assert own
            assert all(f"``{name}``" in text for name in own)
            return
        assert all(re.search(rf"^\s+(\*\*)?{argument}: ", text, re.MULTILINE) for argument in arguments)


def test_all_is_sorted_as_a_reader_expects():
    upper = [n for n in sparse_bo.__all__ if n.isupper()]
    assert upper == sorted(upper)
    assert len(set(sparse_bo.__all__)) == len(sparse_bo.__all__)


def test_formulas_have_no_fraction_of_unbraced_digits():
    # docutils reads \frac12 as 12 over what follows.
    assert [page.name for page in PAGES if re.search(r"frac\s*\d", page.read_text(encoding="utf-8"))] == []


def test_the_citation_is_of_this_version():
    assert f"\nversion: {sparse_bo.__version__}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")


def test_the_citation_has_the_licenses_of_the_package():
    named = re.findall(r"^ *license: (\S+)", (ROOT / "CITATION.cff").read_text(encoding="utf-8"), re.MULTILINE)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert " AND ".join(named) == project["license"]


@pytest.mark.parametrize(
    ("page", "found"),
    [
        ('<a href="other.html#there">', []),
        ('<a href="https://example.org/nowhere">', []),
        ('<a href="missing.html">', ["page.html: missing.html"]),
        ('<a href="other.html#gone">', ["page.html: other.html#gone (no such anchor)"]),
        ('<script src="https://example.org/x.js"></script>', ["page.html: loads https://example.org/x.js"]),
        ('<link rel="stylesheet" href="no.css">', ["page.html: no.css"]),
    ],
)
def test_broken_links_and_loads_of_a_site_are_found(page, found, tmp_path):
    (tmp_path / "other.html").write_text('<p id="there">', encoding="utf-8")
    (tmp_path / "page.html").write_text(page, encoding="utf-8")
    assert loaded("links").broken(tmp_path) == found


def test_a_site_without_pages_is_refused(tmp_path):
    with pytest.raises(SystemExit, match="run sphinx-build first"):
        loaded("links").broken(tmp_path)
