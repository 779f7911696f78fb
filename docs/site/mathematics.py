"""Formulas: a rule's formula as TeX, and the mark that `set_formulas.mjs` sets by KaTeX.

A page has `{math}` roles and directives; a cell has `formula(...)` of `cells.py`. Both leave the
TeX in a `span` of class `tex`, so that one run of Node over the built pages sets all of them.
"""

import re
from html import escape

TOKEN = re.compile(
    r"[A-Za-z]+ per [a-z]+|(?:FLOP|bytes|tokens)/s|chip-s|\.\.\.|\d+(?:\.\d+)?(?:e\d+)?"
    r"|[A-Za-z]+(?:_\w+|\d|')?|>=|\|\w[^|]*\||\S"
)
GREEK = ("alpha", "beta", "gamma")
FUNCTIONS = {"sqrt": r"\sqrt{%s}", "ceil": r"\lceil %s \rceil", "floor": r"\lfloor %s \rfloor"}
NAMED = {"min": r"\min", "max": r"\max", "log2": r"\log_2", "sum": r"\textstyle\sum"}
SYMBOLS = {"x": r"\times", "and": r"\text{ and }", "or": r"\text{ or }", ">=": r"\ge"}
PRODUCT = r" \, "
WORDS = re.compile(r"\\text\{([^{}]*)\} \\, \\text\{")
RELATIONS = (",", ";", ":", "=", ">=", "and", "or")


def mark(tex: str, display: bool = False) -> str:
    """TeX as it stands in a page until it is set."""
    return f'<span class="tex{" display" if display else ""}">{escape(tex)}</span>'


def tex(formula: str) -> str:
    """The TeX of a formula of `rules.csv`; one that is in words stays text."""
    try:
        if re.search(r"[a-z]{2} a [a-z]{2}|'s|-.*;", formula):
            raise ValueError(formula)
        return _Reader(TOKEN.findall(formula)).whole()
    except (IndexError, ValueError):
        return rf"\text{{{formula}}}".replace("_", r"\_").replace("^", r"\^{}")


class _Reader:
    """Reads the tokens of a formula from left to right."""

    def __init__(self, tokens: list[str]) -> None:
        self.left = tokens

    def whole(self, end: str = "") -> str:
        parts = [self.sum()]
        while self.left and self.left[0] != end:
            joint = self.left.pop(0)
            if joint not in RELATIONS:
                raise ValueError(joint)
            parts += [SYMBOLS.get(joint, joint + (r"\; " if joint in ",;:" else " "))]
            parts += [self.sum()]
        return " ".join(parts)

    def sum(self) -> str:
        parts = [self.product()]
        while self.left and self.left[0] in "+-":
            parts += [self.left.pop(0), self.product()]
        return " ".join(parts)

    def product(self) -> str:
        parts = [self.power()]
        while self.left and self.left[0] not in (*RELATIONS, *"+-)"):
            if self.left[0] == "/":
                self.left.pop(0)
                parts = [rf"\frac{{{_bare(PRODUCT.join(parts))}}}{{{_bare(self.power())}}}"]
            elif self.left[0] == "x":
                parts.append(SYMBOLS[self.left.pop(0)])
                parts.append(self.power())
            else:
                parts.append(self.power())
        text = PRODUCT.join(parts)
        while (joined := WORDS.sub(r"\\text{\1 ", text)) != text:
            text = joined
        return text

    def power(self) -> str:
        base = self.atom()
        if self.left and self.left[0] == "^":
            self.left.pop(0)
            return f"{base}^{{{_bare(self.atom())}}}"
        return base

    def atom(self) -> str:
        token = self.left.pop(0)
        if token == "(":
            inner = self.whole(end=")")
            self.left.pop(0)
            return rf"\left({inner}\right)"
        if self.left and self.left[0] == "(" and token in (*FUNCTIONS, *NAMED):
            inner = _bare(self.atom())
            return FUNCTIONS[token] % inner if token in FUNCTIONS else _called(token, inner)
        return _letters(token)


def _called(name: str, inner: str) -> str:
    return rf"{NAMED[name]}\left({inner}\right)"


def _bare(text: str) -> str:
    """Without the parentheses that a fraction or a root makes needless."""
    if text.startswith(r"\left(") and text.endswith(r"\right)"):
        inner = text[6:-7]
        depth = 0
        for found in re.findall(r"\\left|\\right", inner):
            depth += 1 if found == r"\left" else -1
            if depth < 0:
                return text
        return inner
    return text


def _letters(token: str) -> str:
    if token == "...":
        return r"\dots"
    if token[0].isdigit():
        return re.sub(r"e(\d+)", r"\\cdot 10^{\1}", token)
    if token[0] == "|":
        return rf"\left|{tex(token[1:-1])}\right|"
    if "/" in token or "-" in token or " " in token:
        return rf"\text{{{token}}}"
    if not token[0].isalpha():
        raise ValueError(token)
    name, _, low = token.partition("_")
    if low:
        below = low if len(low) == 1 else rf"\text{{{low}}}"
        return f"{_letters(name)}_{{{below}}}"
    if re.fullmatch(r"[A-Za-z]\d", name):
        return f"{name[0]}_{name[1]}"
    if name in GREEK:
        return f"\\{name}"
    if len(name) == 1 or re.fullmatch(r"[mkn]+|[BDF]+", name):
        return " ".join(name)
    if re.fullmatch(r"b[mn]", name):
        return f"b_{name[1]}"
    if re.fullmatch(r"d[PO]|[A-Z]'", name):
        return name
    return rf"\text{{{name}}}"


def as_katex(app) -> None:
    """Make Sphinx leave a mark for each formula of a page."""
    app.add_html_math_renderer("katex", (_inline, None), (_block, None))


def _inline(self, node) -> None:
    from docutils import nodes

    self.body.append(mark(node.astext()))
    raise nodes.SkipNode


def _block(self, node) -> None:
    from docutils import nodes

    self.body.append(f"<div class='formula'>{mark(node.astext(), display=True)}</div>")
    raise nodes.SkipNode
