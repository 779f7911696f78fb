"""What every page of the docs site is held to, on a few lines of HTML; how formulas are set."""

import sys
from pathlib import Path

import pytest
from bs4 import BeautifulSoup

from shardwise.book import RULES, book_answer, entries
from shardwise.hardware import load_chip

SITE = Path(__file__).parent.parent / "docs" / "site"
sys.path.insert(0, str(SITE))
import catalogue  # noqa: E402  (found by the line above)
import glossary  # noqa: E402  (found by the line above)
import held  # noqa: E402  (found by the line above)
import mathematics  # noqa: E402  (found by the line above)
import working  # noqa: E402  (found by the line above)


def faults(html, name="site/concepts.html"):
    body = BeautifulSoup(f"<article>{html}</article>", "html.parser").article
    return [*held.of_page(name, body)]


@pytest.mark.parametrize(
    ("html", "fault"),
    [
        ("<td>ModelConfig(name='book', layers=64)</td>", "prints"),
        ("<td>&lt;function &lt;lambda&gt; at 0x7fdc8a4e11c0&gt;</td>", "prints"),
        (f"<p>{'word ' * 121}</p>", "a paragraph of 121 words"),
        (f"<p>Short. {'Long ' + 'word ' * 40}. Short.</p>", "a sentence of 41 words"),
        (f"<td>{'word ' * 41}; more</td>", "a sentence of 41 words"),
    ],
)
def test_a_page_is_told_what_is_wrong_with_it(html, fault):
    assert any(fault in said for said in faults(html))


@pytest.mark.parametrize(
    "html",
    [
        "<div class='highlight-python'><pre>EngineSettings(batch=4, budget=64)</pre></div>",
        f"<p>{'word ' * 39}. {'Word ' * 39}</p>",
        f"<td>{'word ' * 39}; {'word ' * 39}</td>",
        "<p>one <code>call(a=1, b=2) and more words</code> two</p>",
    ],
)
def test_what_a_page_may_have(html):
    assert faults(html) == []


def test_records_are_neither_in_the_sidebar_nor_in_a_search(tmp_path):
    index = '{"docnames":["index","lab/a","lab/b"],"terms":{"x":[0,%d]},"titleterms":{"y":%d}}'
    link = "<div class='sidebar-tree'><a href='%s'>a</a></div>"
    for hrefs, pages, faults in (("a.html", (0, 0), 0), ("lab/a.html", (1, 2), 3)):
        (tmp_path / "index.html").write_text(link % hrefs)
        (tmp_path / "searchindex.js").write_text(f"Search.setIndex({index % pages})")
        assert len([*held.records(tmp_path)]) == faults


def test_a_chapter_needs_its_link_two_figures_and_set_formulas():
    assert len(faults("<p><code>C / W</code></p>", "site/book/1.html")) == 3
    link = f'<a href="{held.BOOK}roofline/">chapter</a>'
    assert faults(f"<p>{link}<iframe></iframe><img></p>", "site/book/1.html") == []


@pytest.mark.parametrize(
    ("formula", "tex"),
    [
        ("alpha^2 / (M_X M_Y F)", r"\frac{\alpha^{2}}{M_{X} \, M_{Y} \, F}"),
        ("sqrt(32 F / D)", r"\sqrt{\frac{32 \, F}{D}}"),
        ("HBM / bytes per parameter", r"\frac{\text{HBM}}{\text{bytes per parameter}}"),
        ("V / (M W) or V / W", r"\frac{V}{M \, W} \text{ or } \frac{V}{W}"),
        ("links across the middle", r"\text{links across the middle}"),
    ],
)
def test_a_formula_as_tex(formula, tex):
    assert mathematics.tex(formula) == tex


def test_every_formula_of_a_rule_closes_what_it_opens():
    for known in RULES.values():
        made = mathematics.tex(known.formula)
        assert made.count("{") == made.count("}"), known.name
        assert made.count(r"\left") == made.count(r"\right"), known.name


def test_steps_show_the_numbers_put_in_and_no_repr():
    shown = working.worked(book_answer("4.1.1"))
    assert "transformer(layers: 64, d_model: 4,096" in shown
    assert "model of 64 layers, D = 4,096" in shown
    assert "ModelConfig" not in shown


def test_values_are_said_as_a_reader_says_them():
    assert working.brief(load_chip("v5p")) == "v5p"
    assert working.values([8, 1.5e12], ["chips", "bytes/s"]) == "8 chips; 1.5e+12 bytes/s"
    assert working.values(240.5, "tokens") == "240.5 tokens"
    assert working.brief(lambda layer: True) == "a function"


def test_each_rule_without_a_number_of_the_book_has_an_example_of_its_own():
    taken = {step.rule for known in entries().values() for step in known.steps}
    assert {*RULES} - taken == {*catalogue.OWN}


@pytest.mark.slow
def test_pages_of_rules_and_words_leave_nothing_out():
    rules, words = catalogue.page(), glossary.page()
    assert all(f"### `{name}`" in rules for name in RULES)
    assert rules.count("\nExample") == len(RULES)
    assert "| `tokens_per_second` | Tokens per second of the whole slice. |" in words
