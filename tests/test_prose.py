"""What texts are held to (`docs/site/prose.toml`), on a few lines and on every text."""

import sys
from pathlib import Path

import pytest

SITE = Path(__file__).parent.parent / "docs" / "site"
sys.path.insert(0, str(SITE))
import prose  # noqa: E402  (found by the line above)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (f"One. {'Word ' * 36}. Two.", "a sentence of 36 words"),
        ("One two three four five. " * 25, "a paragraph of 125 words"),
        ("It is made, was found\nand is then kept.", "3 verbs in the passive"),
        ("Plan such runs.", "'such'"),
        ("A rule, of which more below.", "'of which'"),
        ("It is very fast.", "'very'"),
        ("The color of a center.", "-our"),
        ("Initialized weights.", "-ise"),
        ("A quantised cache.", "names of the field"),
    ],
)
def test_a_text_is_told_what_is_wrong_with_it(text, fault):
    assert any(fault in said for _, said in prose.faults(text))


@pytest.mark.parametrize(
    "text",
    [
        f"{'Word ' * 35}. {'Word ' * 35}.",
        f"| {'cell ' * 40} |\n\n```console\nvery\n```\n\n    such color",
        "8 of 10 runs, such as `very such` and [a page](of-which/color.md).",
        "An optimizer of quantized weights, in the colour of a centre. It is made and kept.",
    ],
)
def test_what_a_text_may_have(text):
    assert [*prose.faults(text)] == []


def test_a_fault_has_its_line():
    assert [line for line, _ in prose.faults("---\na: b\n---\n# One\n\n`x`\n\nvery\n")] == [8]


def test_every_text_reads_well():
    said = {
        f"{path.relative_to(prose.ROOT)}:{line}: {fault}"
        for path in prose.texts()
        for line, fault in prose.faults(path.read_text(encoding="utf-8"))
    }
    assert said == set()
