"""What every built page must be: short paragraphs and sentences, set formulas, pictures, no repr.

`faults(HTML)` says what is wrong, page by page; `built.py` prints it and fails the build.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path

from bs4 import BeautifulSoup, Tag

BOOK = "https://jax-ml.github.io/scaling-book/"
PARAGRAPH, SENTENCE = 120, 40
"""Words that a paragraph and a sentence may have at most."""
REPR = re.compile(r"\b[A-Z]\w+\(\w+=[^)]{0,400}\b\w+=|<\w[^\n]{0,200} at 0x[0-9a-f]+>")
"""`Name(field=..., field=...)`, as Python prints a dataclass, or `<function ... at 0x...>`."""
TYPED = re.compile("cell_input|highlight-python|highlight-ipython3")
"""Code that a reader types, in which a call with keywords is no repr."""
FORMULA = re.compile(r"\w \* \w|\w / \w|\w\^\d|sqrt\(|\w = [\w()]+ [-+*/] ")
"""What mathematics looks like where it is printed as code."""
END = re.compile(r"(?<=[.!?])[\"')”’]*\s+(?=[A-Z0-9`\"'(“‘])|(?<=[\w)]{3}[.!?])\s+(?=[a-z_.])")
"""Where a sentence ends; the next may begin with a name in lower case."""
LISTED = re.compile(END.pattern + r"|;\s+")
"""A cell of a table lists things between semicolons."""
MADE = ("genindex.html", "py-modindex.html", "search.html")
RECORDS = "lab/"
"""Pages that scripts write for who repeats a measurement: held to the tests of their scripts."""


def pages(html: Path) -> Iterator[tuple[str, Path]]:
    """Every page of a folder by its name, those that Sphinx makes of its own left out."""
    for path in sorted(html.rglob("*.html")):
        name = path.relative_to(html).as_posix()
        if not name.startswith("_") and name not in MADE:
            yield name, path


def faults(html: Path) -> Iterator[str]:
    """Everything that is wrong with the pages of a folder."""
    yield from records(html)
    for name, path in pages(html):
        page = BeautifulSoup(path.read_text(encoding="utf-8"), "html.parser")
        body = page.find("article")
        if isinstance(body, Tag):
            yield from (f"{name}: {fault}" for fault in of_page(name, body))


def records(html: Path) -> Iterator[str]:
    """Records that a reader meets without looking for them: in the sidebar, or in a search."""
    front = BeautifulSoup((html / "index.html").read_text(encoding="utf-8"), "html.parser")
    for link in front.select(".sidebar-tree a"):
        if str(link.get("href")).startswith(RECORDS):
            yield f"the sidebar lists {link.get('href')}"
    text = (html / "searchindex.js").read_text(encoding="utf-8")
    index = json.loads(text[text.index("{") : text.rindex("}") + 1])
    hidden = {at for at, name in enumerate(index["docnames"]) if name.startswith(RECORDS)}
    found = [*index["terms"].values(), *index["titleterms"].values()]
    met = hidden & {at for pages in found for at in (pages if isinstance(pages, list) else [pages])}
    yield from (f"a search finds {index['docnames'][at]}" for at in sorted(met))


def of_page(name: str, body: Tag) -> Iterator[str]:
    """What is wrong with one page, whose article is given."""
    yield from reprs(body)
    yield from (f"a formula is not set: {span.get_text()}" for span in body.select("span.tex"))
    if name.startswith(RECORDS):
        return
    yield from walls(body)
    if name.startswith("site/book/") and name != "site/book/index.html":
        yield from chapter(body)


def reprs(body: Tag) -> Iterator[str]:
    """Values as Python prints them, outside of code that a reader types."""
    for shown in body.find_all(["td", "p", "pre", "li"]):
        if not shown.find_parent(class_=TYPED) and not shown.find_parent("dt"):
            found = REPR.search(shown.get_text())
            if found:
                yield f"prints {found[0][:60]!r}"


def walls(body: Tag) -> Iterator[str]:
    """Paragraphs and sentences that are too long."""
    for block in body.find_all(["p", "li", "td"]):
        text = said(block)
        words = len(text.split())
        if words > PARAGRAPH:
            yield f"a paragraph of {words} words: {text[:60]!r}"
        cell = block.name == "td" or block.find_parent("td")
        for sentence in (LISTED if cell else END).split(text):
            count = len(re.findall(r"\w[\w'-]*", sentence))
            if count > SENTENCE:
                yield f"a sentence of {count} words: {sentence[:60]!r}"


def said(block: Tag) -> str:
    """The words of a block alone, without those of blocks inside it; code and formulas are one."""
    parts = []
    for node in block.descendants:
        if isinstance(node, Tag):
            if node.name == "code" or "katex" in (node.get("class") or []):
                parts.append("`x`")
        elif not _inside(node, block):
            parts.append(str(node))
    return " ".join("".join(parts).split())


def _inside(node, block: Tag) -> bool:
    for parent in node.parents:
        if parent is block:
            return False
        if parent.name in ("p", "ul", "ol", "table", "pre", "code", "dl", "script", "iframe"):
            return True
        if "katex" in (parent.get("class") or []):
            return True
    return False


def chapter(body: Tag) -> Iterator[str]:
    """What each chapter has: a link to its chapter, two figures, formulas that are set."""
    links = [str(link.get("href")) for link in body.find_all("a")]
    if not any(link.startswith(BOOK) for link in links):
        yield "no link to its chapter of the book"
    figures = len(body.find_all(["iframe", "img", "svg"]))
    if figures < 2:
        yield f"{figures} figures, and a chapter has two at least"
    for code in body.find_all("code"):
        if not code.find_parent("pre") and FORMULA.search(code.get_text()):
            yield f"a formula as code: {code.get_text()!r}"
