"""Edits of a launch script: a flag's value where it stands, or where its variable is set; a flag
beside its neighbours; a flag left out.

Nothing here knows what bash makes of the result: every edit is an attempt, and who asks reads the
script again and takes the first that says what it should.
"""

import re
from collections.abc import Iterable, Iterator

from shardwise.planner.export.flags import launched
from shardwise.planner.export.megatron import QUEUES, environment, runs_fsdp
from shardwise.plans import TrainPlan

_WORD = r"""(?:"[^"\n]*"|'[^'\n]*'|\$\{[^}\n]*\}|\$\(\([^\n]*?\)\)|[^\s"'\\()\#;|&<>])+"""
_VALUE = re.compile(rf"(?P<gap>=|[ \t]+)(?P<value>(?!--){_WORD})")
_MORE = re.compile(rf"[ \t]+(?!--){_WORD}")
_VARIABLE = re.compile(r"\$\{?(\w+)")


def set_in_script(
    text: str, flag: str, old: str | None, new: str, beside: Iterable[str]
) -> Iterator[str]:
    """Scripts in which a flag has the value `new` ("" for a switch). `old` is the one that it has,
    None where it is not given; `beside` are flags to put it next to, nearest first."""
    if old is None:
        yield from _added(text, flag, new, beside)
        return
    for begin, end in reversed(list(_spans(text, flag, old))):
        was = text[begin:end]
        for name in _VARIABLE.findall(was):
            yield from _assigned(text, name, old, new)
        inner = was.replace(old, new, 1) if old and was.count(old) == 1 else None
        quoted = f'"{new}"' if was[:1] == '"' and " " not in new else new
        for put in dict.fromkeys(filter(None, (inner, quoted))):
            yield text[:begin] + put + text[end:]


def left_out_of_script(text: str, flag: str, old: str) -> Iterator[str]:
    """Scripts without a flag; a line that is left empty goes, too."""
    pattern = _pattern(flag)
    for found in reversed(list(pattern.finditer(text))):
        if _in_comment(text, found.start()):
            continue
        _, end = _value_at(text, found.end(), len(old.split()))
        begin = found.start()
        line, after = text.rfind("\n", 0, begin) + 1, text.find("\n", end)
        after = len(text) if after < 0 else after
        rest = text[line:begin] + text[end:after]
        bare = re.sub(r"""["']{2}|\\$""", "", re.sub(r"#.*", "", rest).strip()).strip()
        if bare:
            leading, rest = text[line:begin].strip(), text[end:]
            yield (
                text[:begin].rstrip(" \t") + rest if leading else text[:begin] + rest.lstrip(" \t")
            )
            continue
        yield text[:line] + text[after + 1 :]
        before = re.sub(r"[ \t]*\\\n$", "\n", text[:line])
        yield before + text[after + 1 :]


def _pattern(flag: str) -> re.Pattern[str]:
    """A flag in either spelling (--a-b, --a_b), or the NAME of NAME=VALUE."""
    name = "[-_]".join(map(re.escape, re.split("[-_]", flag.lstrip("-"))))
    dashes = "--" if flag.startswith("--") else ""
    return re.compile(rf"(?<![\w.$-]){dashes}{name}(?![\w.-])" + ("" if dashes else "(?==)"))


def _in_comment(text: str, at: int) -> bool:
    """Whether a place stands behind the # of a comment."""
    line = text[text.rfind("\n", 0, at) + 1 : at]
    return re.search(r"(^|\s)#", re.sub(r""""[^"]*"|'[^']*'""", "", line)) is not None


def _value_at(text: str, at: int, words: int) -> tuple[int, int]:
    """Where so many words of a value begin and end behind a flag."""
    found = _VALUE.match(text, at) if words else None
    if found is None:
        return at, at
    end = found.end("value")
    for _ in range(words - 1):
        more = _MORE.match(text, end)
        if more is None:
            break
        end = more.end()
    begin = found.start("value")
    if text[begin] != '"' and text[end - 1] == '"' and text[begin:end].count('"') % 2:
        end -= 1  # the quote that closes "--flag value"
    return begin, end


def _spans(text: str, flag: str, old: str) -> Iterator[tuple[int, int]]:
    """Where the value of a flag stands, each time that it is given outside a comment."""
    for found in _pattern(flag).finditer(text):
        begin, end = _value_at(text, found.end(), max(len(old.split()), 1))
        if not _in_comment(text, found.start()) and begin < end:
            yield begin, end


def _assigned(text: str, name: str, old: str, new: str) -> Iterator[str]:
    """Scripts in which a variable is set to another value, or has another default."""
    for found in re.finditer(rf"(?<![\w$]){re.escape(name)}(?:=|:-|:=|-)", text):
        stop = text.find("\n", found.end())
        stop = len(text) if stop < 0 else stop
        value = re.compile(rf"(?<![\w.$]){re.escape(old)}(?![\w.])")
        if (at := value.search(text, found.end(), stop)) and not _in_comment(text, found.start()):
            yield text[: at.start()] + new + text[at.end() :]


def _added(text: str, flag: str, new: str, beside: Iterable[str]) -> Iterator[str]:
    """Scripts with a flag more, in the way in which its neighbour is written."""
    joined = f"{flag}={new}" if not flag.startswith("--") else f"{flag} {new}".rstrip()
    for other in beside:
        for found in _pattern(other).finditer(text):
            if not _in_comment(text, found.start()):
                yield from _behind(text, found.start(), found.end(), joined)


def _behind(text: str, begin: int, at: int, joined: str) -> Iterator[str]:
    """Scripts with words more behind a flag whose name ends at a place: on a line of their own
    where that flag has one, else on its line."""
    line, stop = text.rfind("\n", 0, begin) + 1, text.find("\n", at)
    stop = len(text) if stop < 0 else stop
    indent, rest = text[line:begin], text[begin:stop]
    code = re.sub(r"\s#.*$", "", rest).rstrip()
    alone = not indent.strip("\"' \t") and len(re.findall(r"(?:^|\s)--", code)) <= 1
    if alone:
        margin = indent.rstrip("\"'")
        if code.endswith("\\"):
            yield f"{text[:stop]}\n{margin}{joined} \\{text[stop:]}"
        else:
            yield f"{text[:stop]}\n{margin}{joined}{text[stop:]}"
            yield f"{text[:line]}{margin}{joined} \\\n{text[line:]}"
    for words in (1, 0):
        _, end = _value_at(text, at, words)
        yield f"{text[:end]} {joined}{text[end:]}"


def in_environment(
    text: str, target: str, old: TrainPlan, plan: TrainPlan, begin: int = 0
) -> str | None:
    """The script, which begins somewhere in a text, with the variable that Megatron wants for a
    plan, and did not for the old one.
    None for Megatron-FSDP where it did not run: a script may set the variable as that refuses it,
    and a recipe has sections of which nothing is known here."""
    if target != "megatron":
        return text
    launch = launched(target, text)
    said = launch.environment.get(QUEUES) if launch else "1"
    if runs_fsdp(plan) and not runs_fsdp(old) and said == "1":
        return None
    missing = [] if said or environment(old) else environment(plan)
    head = re.compile(r"(?:#[^\n]*\n)*").match(text, begin)
    at = head.end() if head else begin
    return text[:at] + "".join(f"export {line}\n" for line in missing) + text[at:]
