"""Two explained programs beside each other, line by line of the user's.

Lines are the same where their text is, in the order of their files: one that moved, or stands in
another file, is still itself, and one that was written anew beside it is its successor where most
of its letters are. Where the text of a line is not at hand, its place is its name.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from shardwise.boundary.records import Record
from shardwise.profiler.explain.partitioned import LineCollective
from shardwise.profiler.explain.tables import TimeShare

ALIKE = 0.6
"""The share of letters from which a line is another one written anew: as difflib calls close."""
Pairs = Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class LineChange(Record):
    """Seconds of a line in two programs; of one that the other lacks, 0."""

    where: str
    """The line, as the program has it that is explained, or the other one where it is gone."""
    text: str
    """What it says; empty where the file is not at hand."""
    before: float
    """Seconds per step of the other program."""
    after: float
    """Seconds per step of the program that is explained."""
    costs: float
    """By how much it takes longer: after minus before."""
    what: str
    """came, went or both."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveChange(Record):
    """Collectives of one kind, over the same axes, of one line, in two programs."""

    kind: str
    """As `collectives` names it."""
    axes: tuple[str, ...]
    """The mesh axes that they are over."""
    where: str
    """The line."""
    bytes_before: float
    """Bytes of a step of the other program."""
    bytes_after: float
    """Bytes of a step of the program that is explained."""
    costs: float
    """By how many seconds they take longer, each by itself."""


def paired(before: Mapping[str, str], after: Mapping[str, str]) -> Pairs:
    """The lines of two programs beside each other, "" where one has none; each mapping is the text
    of a line by its place."""
    by_place = [(w, w) for w in before if w in after and not (before[w] and after[w])]
    taken = {w for w, _ in by_place}
    old, new = _ordered(before, taken), _ordered(after, taken)
    matcher = SequenceMatcher(None, [before[w] for w in old], [after[w] for w in new], False)
    found = list(by_place)
    for tag, i, j, k, m in matcher.get_opcodes():
        if tag == "equal":
            found += zip(old[i:j], new[k:m], strict=True)
        else:
            found += _renewed(old[i:j], new[k:m], before, after)
    return found


def _ordered(lines: Mapping[str, str], taken: set[str]) -> list[str]:

    def place(where: str) -> tuple[str, int]:
        file, _, line = where.rpartition(":")
        return (file, int(line)) if line.isdigit() else (where, 0)

    return sorted((w for w in lines if w not in taken), key=place)


def _renewed(
    old: Sequence[str], new: Sequence[str], before: Mapping[str, str], after: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    """Each line with the one that is most like it, those that no other is like alone."""
    left = list(new)
    for place in old:
        match = SequenceMatcher(None, before[place])
        like = {w: match.ratio() for w in left if after[w] and not match.set_seq2(after[w])}
        best = max(like, key=lambda w: like[w], default="")
        if best and before[place] and like[best] >= ALIKE:
            left.remove(best)
            yield place, best
        else:
            yield place, ""
    yield from (("", place) for place in left)


def line_changes(
    pairs: Pairs,
    lines: tuple[Sequence[TimeShare], Sequence[TimeShare]],
    texts: tuple[Mapping[str, str], Mapping[str, str]],
) -> list[LineChange]:
    """The lines whose seconds differ, those that cost most more first."""
    seconds = tuple({line.where: line.seconds for line in each} for each in lines)
    found = [
        LineChange(
            where=new or old,
            text=texts[1].get(new, "") or texts[0].get(old, ""),
            before=seconds[0].get(old, 0.0),
            after=seconds[1].get(new, 0.0),
            costs=seconds[1].get(new, 0.0) - seconds[0].get(old, 0.0),
            what="both" if old and new else "came" if new else "went",
        )
        for old, new in pairs
    ]
    return sorted((c for c in found if c.costs), key=lambda c: -c.costs)


def collective_changes(
    pairs: Pairs, before: Sequence[LineCollective], after: Sequence[LineCollective]
) -> list[CollectiveChange]:
    """The collectives that differ in bytes, those that cost most more first."""
    renamed = {old: new or old for old, new in pairs if old}
    old = {(c.kind, c.axes, renamed.get(c.where, c.where)): c for c in before}
    new = {(c.kind, c.axes, c.where): c for c in after}
    found = []
    for key in dict.fromkeys((*old, *new)):
        first, last = old.get(key), new.get(key)
        sizes = first.bytes if first else 0.0, last.bytes if last else 0.0
        costs = (last.seconds if last else 0.0) - (first.seconds if first else 0.0)
        if sizes[0] != sizes[1]:
            change = CollectiveChange(
                kind=key[0],
                axes=key[1],
                where=key[2],
                bytes_before=sizes[0],
                bytes_after=sizes[1],
                costs=costs,
            )
            found.append(change)
    return sorted(found, key=lambda c: -c.costs)
