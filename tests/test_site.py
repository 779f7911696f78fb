"""The docs site without building it: what its cells call and run (`scripts/docs` runs them)."""

import inspect
import re
import sys
from functools import cache
from pathlib import Path

import pytest

import shardwise
from shardwise.apps.page.views import VIEWS
from shardwise.book import entries

ROOT = Path(__file__).parent.parent
SITE = ROOT / "docs" / "site"
sys.path.insert(0, str(SITE))
import generated  # noqa: E402  (found by the line above)
import pages  # noqa: E402  (found by the line above)
from links import LINK  # noqa: E402  (found by the line above)

TASKS = (
    *("first_answer", "choose_a_sharding", "size_a_cluster", "serve_under_an_slo"),
    *("find_a_slow_step", "train_a_small_model", "serve_it", "validate_on_your_cluster"),
    "add_a_chip_or_a_model",
)
CHAPTERS = {"12": "gpus", "deck": "deck", "notes": "deck"}
"""Pages of chapters that are not called by their number."""
public_calls = cache(pages.public_calls)


@pytest.mark.parametrize("name", shardwise.__all__)
def test_every_public_name_is_used_in_a_cell(name):
    """As `sw.NAME`, or by the command of the verb; a cell that fails fails `scripts/docs`."""
    assert name in public_calls()


@pytest.mark.parametrize("name", TASKS)
def test_there_is_a_page_for_each_task(name):
    assert any(page == SITE / "tasks" / f"{name}.md" for page, _ in pages.cells())


@pytest.mark.parametrize("chapter", sorted({entry.chapter for entry in entries().values()}))
def test_every_number_of_a_chapter_is_computed_on_its_page(chapter):
    text = (SITE / "book" / f"{CHAPTERS.get(chapter, chapter)}.md").read_text(encoding="utf-8")
    said = f'"{chapter}"' if not chapter.isdigit() else chapter
    assert f"exercises({said})" in text
    assert f"errata({said})" in text


@pytest.mark.parametrize("page", sorted((SITE / "book").glob("*.md")), ids=lambda page: page.stem)
def test_views_that_a_chapter_names_exist(page):
    titles = {view.title for view in VIEWS.values()} | {""}
    rows = [line.split("|") for line in page.read_text(encoding="utf-8").splitlines()]
    named = [cells[-2].strip() for cells in rows if len(cells) == 5 and "`shardwise " in cells[2]]
    assert {*named} <= titles


def test_what_a_page_calls_of_the_module_exists():
    found = {name for _, cell in pages.cells() for name in pages.attributes(cell)}
    assert found <= {*shardwise.__all__}
    assert all(inspect.getdoc(getattr(shardwise, name)) for name in found)


def test_every_public_name_stands_beside_what_it_is_for():
    page = (SITE / "reference" / "shardwise.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"`~shardwise\.(\w+)`", page)) == sorted(shardwise.__all__)


def test_pages_draw_the_pictures_of_the_readme():
    """By the same words, so that the built pictures can be held to those that are kept."""
    drawing = {command.partition(" --plot ")[0] for command in pages.commands()}
    texts = [ROOT / "README.md", ROOT / "docs" / "examples.md"]
    kept = [
        line.removeprefix("$ ").partition(" --plot ")[0]
        for text in texts
        for line in text.read_text(encoding="utf-8").splitlines()
        if line.startswith("$ ") and " --plot docs/img/" in line
    ]
    assert len(kept) == len([*(ROOT / "docs" / "img").glob("*.png")])
    assert {*kept} <= drawing


def pages_in(path):
    """The pages that the tables of contents of a page list."""
    trees = re.findall(r"```{toctree}\n(.*?)```", path.read_text(encoding="utf-8"), re.DOTALL)
    lines = "\n".join(trees).splitlines()
    return {line for line in lines if line and not line.startswith(":")}


def test_every_page_of_docs_is_in_the_site():
    """Sphinx warns of one that no table of contents has, and a warning fails the build."""
    pages_of_docs = {path.stem for path in (ROOT / "docs").glob("*.md")} - {"index"}
    assert pages_of_docs <= pages_in(ROOT / "docs" / "index.md")


def test_records_have_one_line_each_and_stay_out_of_the_sidebar():
    index = ROOT / "docs" / "lab" / "index.md"
    records = {path.stem for path in index.parent.glob("*.md")} - {"index"}
    assert records == pages_in(index)
    rows = [line for line in index.read_text(encoding="utf-8").splitlines() if "](" in line]
    assert records == {re.findall(r"\]\((\w+)\.md\)", row)[0] for row in rows}
    assert not [page for page in pages_in(ROOT / "docs" / "index.md") if page.startswith("lab")]


def test_generated_pages_are_listed_and_not_committed():
    ignored = (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()
    assert {*generated.SCRIPTS} <= pages_in(ROOT / "docs" / "index.md")
    assert {f"docs/{name}.md" for name in generated.SCRIPTS} <= {*ignored}


TEXTS = sorted(
    page.relative_to(ROOT)
    for page in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"))
    if "_build" not in page.parts
)


@pytest.mark.parametrize("page", TEXTS, ids=str)
def test_links_to_files_lead_somewhere(page):
    made = {ROOT / "docs" / f"{name}.md" for name in generated.SCRIPTS}
    text = (ROOT / page).read_text(encoding="utf-8")
    targets = [link[2] for link in LINK.finditer(text) if "://" not in link[2]]
    paths = [((ROOT / page).parent / target).resolve() for target in targets]
    assert [path for path in paths if not path.exists() and path not in made] == []
