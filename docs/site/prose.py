"""Whether texts read well: `python docs/site/prose.py` holds them to `prose.toml` and to proselint.

`scripts/docs` runs it before it builds. Texts are the README and the pages of docs/ that people
write; records (docs/lab) and made pages are not. Code, formulas and addresses are no prose.
`held.py` says what the built pages must be.
"""

import re
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import generated

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = Path(__file__).with_suffix(".toml")
NOT_PROSE = [
    (r"\A---\n.*?^---$", ""),
    (r"<!--.*?-->", ""),
    (r"^ *(`{3,}).*?^ *\1`*$", ""),
    (r"^ {4,}.*$", ""),
    (r"``.+?``|`[^`]+`|\$[^$\n]+\$", "`x`"),
    (r"\{\w+\}(?=`x`)", ""),
    (r"(\[[^\]]*\])\([^)]*\)", r"\1"),
]
"""What is left out of a page, or stands for one word of it; lines keep their numbers."""
BLOCK = re.compile(r"\n\s*\n|^\s*[-*] |^\s*\d+\. |^#+ .*$|^\|.*$|^:::.*$", re.MULTILINE)
END = re.compile(r"(?<=[.!?])[\"')*\]]*\s+|:\s+(?=[A-Z`])")
PASSIVE = re.compile(
    r"\b(?:is|are|was|were|be|been|being)\s+(?:\w+ly\s+|not\s+|also\s+|then\s+)?"
    r"(?:\w{2,}ed|made|shown|known|given|found|said|held|kept|read|run|written|drawn|built|chosen"
    r"|taken|cut|put|set|left|sent|split)\b"
)
Fault = tuple[int, str]
"""A line of a text, and what is wrong there."""


@cache
def settings() -> dict[str, Any]:
    """What `prose.toml` says."""
    return tomllib.loads(SETTINGS.read_text(encoding="utf-8"))


def texts() -> list[Path]:
    """Every text that people write for readers."""
    docs, made = ROOT / "docs", {f"{name}.md" for name in generated.SCRIPTS}
    pages = [page for page in docs.glob("*.md") if page.name not in made]
    pages += (docs / "site").rglob("*.md")
    return [ROOT / "README.md", *sorted(pages)]


def prose(text: str) -> str:
    """What of a page is read as sentences, on the lines where it stands."""
    for pattern, instead in NOT_PROSE:
        found = re.compile(pattern, re.MULTILINE | (re.DOTALL if ".*?" in pattern else 0))
        text = found.sub(lambda m, put=instead: m.expand(put) + "\n" * m[0].count("\n"), text)
    return text


def faults(text: str) -> Iterator[Fault]:
    """What of `prose.toml` a page breaks."""
    said = prose(text)
    for kind in ("never", "spelling"):
        for pattern, remedy in settings()[kind].items():
            for found in re.finditer(pattern, said, re.IGNORECASE):
                yield _line(said, found.start()), f"{found[0]!r}: {remedy}"
    for start, block in _split(BLOCK, said, 0):
        if (words := _words(block)) > settings()["paragraph"]:
            yield _line(said, start), f"a paragraph of {words} words: {block.strip()[:60]!r}"
    for start, sentence in sentences(said):
        words, passives = _words(sentence), PASSIVE.findall(sentence)
        if words > settings()["words"]:
            yield _line(said, start), f"a sentence of {words} words: {sentence[:60]!r}"
        if len(passives) > settings()["passives"]:
            yield _line(said, start), f"{len(passives)} verbs in the passive: {sentence[:60]!r}"


def sentences(said: str) -> Iterator[tuple[int, str]]:
    """Every sentence that is no heading and no row of a table, with where it begins."""
    for start, block in _split(BLOCK, said, 0):
        for place, sentence in _split(END, block, start):
            if sentence.strip():
                yield place, " ".join(sentence.split())


def _split(at: re.Pattern[str], text: str, start: int) -> Iterator[tuple[int, str]]:
    begin = 0
    for found in at.finditer(text):
        yield start + begin, text[begin : found.start()]
        begin = found.end()
    yield start + begin, text[begin:]


def _words(text: str) -> int:
    return len(re.findall(r"\w[\w'-]*", text))


def _line(text: str, place: int) -> int:
    return text.count("\n", 0, place) + 1


def linted(text: str) -> Iterator[Fault]:
    """What proselint finds."""
    from proselint.checks import __register__
    from proselint.config import DEFAULT
    from proselint.registry import CheckRegistry
    from proselint.tools import LintFile

    if not CheckRegistry().checks:
        CheckRegistry().register_many(__register__)
    unknown = {name.split(".")[0] for name in settings()["off"]} - {*DEFAULT["checks"]}
    assert not unknown, f"prose.toml turns off {unknown}, which proselint does not have"
    for result in LintFile("text", prose(text)).lint(DEFAULT):
        found = result.check_result
        if not found.check_path.startswith(tuple(settings()["off"])):
            yield result.pos[0] - 1, f"{found.message} ({found.check_path})"


def main() -> int:
    """Print every fault; 1 where there is one."""
    said = []
    for path in texts():
        text = path.read_text(encoding="utf-8")
        found = sorted([*faults(text), *linted(text)])
        said += [f"{path.relative_to(ROOT)}:{line}: {fault}" for line, fault in found]
    print("\n".join(said) or f"{len(texts())} texts read well")
    return bool(said)


if __name__ == "__main__":
    sys.exit(main())
