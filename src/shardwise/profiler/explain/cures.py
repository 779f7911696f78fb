"""Cures of findings that change how a function is called and not what it computes.

An argument is given away, or lies otherwise on the mesh. Findings whose cure is within the function
have none here.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from shardwise.profiler.explain.evidence import Argument, Evidence
from shardwise.profiler.explain.finding import Finding
from shardwise.work import grouped

Spec = tuple[tuple[str, ...], ...]
"""The mesh axes that cut each dim of an argument."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cure:
    """What a call changes for a finding: names of arguments that are donated, and the cuts of
    leaves by their names."""

    finding: Finding
    donate: tuple[str, ...] = ()
    specs: Mapping[str, Spec] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """The change in code."""
        donated = f"donate_argnames={self.donate!r}" if self.donate else ""
        moved = [f"{name}: {spec_text(spec)}" for name, spec in self.specs.items()]
        return donated or "; ".join(moved[:2]) + (f"; {len(moved) - 2} more" * (len(moved) > 2))


def spec_text(spec: Spec) -> str:
    """Cuts as a PartitionSpec."""
    entries = (None if not axes else axes[0] if len(axes) == 1 else axes for axes in spec)
    return f"P({', '.join(map(repr, entries))})"


def cures(e: Evidence, findings: Sequence[Finding]) -> tuple[Cure, ...]:
    """The cures of findings, in their order; one where several findings have the same."""
    found: dict[object, Cure] = {}
    for finding in findings:
        make = CURES.get(finding.rule)
        made = make(e, finding) if make else None
        if made is not None and (made.donate or made.specs):
            found.setdefault((made.donate, tuple(made.specs.items())), made)
    return tuple(found.values())


def _donate(e: Evidence, finding: Finding) -> Cure:
    """Give away every tree of which a part comes back renewed, or written anew."""
    back = [a for a in e.arguments if not a.donated and (a in e.caches or a.number in e.renewed)]
    trees = grouped((a for a in back if a.dims), lambda a: a.tree)
    size = {tree: sum(a.bytes for a in leaves) for tree, leaves in trees.items()}
    return Cure(finding=finding, donate=tuple(t for t in trees if size[t] >= SMALL * e.capacity))


SMALL = 1e-4
"""The share of the memory below which an argument is not worth giving away; a feeling."""


def _cut_whole(e: Evidence, finding: Finding) -> Cure:
    """Cut the parameter along the axes that cut the others of its tree."""
    (whole,) = [a for a in e.arguments if a.layout == finding.where][:1] or [None]
    if whole is None:
        return Cure(finding=finding)
    axes = {x for a in e.floats() if a.tree == whole.tree for x in a.axes} & set(whole.copies)
    return Cure(finding=finding, specs=dict(_further(e, whole, axes)))


def _cut_state(e: Evidence, finding: Finding) -> Cure:
    """Cut the state over the axes that cut the batch."""
    data = {x for b in e.arguments if not b.donated for x in b.axes}
    trees = set(finding.where.split(", "))
    leaves = [a for a in e.floats() if a.tree in trees]
    return Cure(finding=finding, specs={n: s for a in leaves for n, s in _further(e, a, data)})


def _further(e: Evidence, a: Argument, axes: set[str]) -> Iterator[tuple[str, Spec]]:
    """An argument cut over more axes, along its largest dim that they divide."""
    more = tuple(x for x in e.mesh if x in axes and x in a.copies)
    degree = e.degree(more)
    free = [i for i, size in enumerate(a.dims) if size % degree == 0]
    if more and free:
        dim = max(free, key=lambda i: a.dims[i])
        yield a.name, tuple((*c, *more) if i == dim else c for i, c in enumerate(a.cuts))


def _cut_heads(e: Evidence, finding: Finding) -> Cure:
    """Cut caches by the dim before their last in place of their tokens."""
    specs = {}
    for a in e.caches:
        heads = len(a.dims) - 2
        cut = [i for i in range(heads) if a.cuts[i]]
        if cut and not a.cuts[heads] and (spec := _moved(e, a, cut[-1], heads, a.cuts[cut[-1]])):
            specs[a.name] = spec
    return Cure(finding=finding, specs=specs)


def _cut_widths(e: Evidence, finding: Finding) -> Cure:
    """Cut gathered weights along the other dim of their product."""
    gathered: dict[int, tuple[str, ...]] = {}
    for row in e.collectives("all_gather"):
        if e.where(row.op) == finding.where and row.op.op.collective is not None:
            for number in e.pieces_of(row.op.computation, row.op.name):
                gathered[number] = row.op.op.collective.axes
    specs = {}
    for a in (a for a in e.arguments if a.number in gathered and len(a.dims) > 1):
        axes, last = gathered[a.number], len(a.dims) - 1
        source = next((i for i, cut in enumerate(a.cuts) if set(axes) <= set(cut)), None)
        if source is not None and (
            spec := _moved(e, a, source, last if source != last else last - 1, axes)
        ):
            specs[a.name] = spec
    return Cure(finding=finding, specs=specs)


def _moved(e: Evidence, a: Argument, source: int, target: int, axes: Sequence[str]) -> Spec:
    """The cuts with some axes of one dim on another one; empty where they do not divide that."""
    if a.dims[target] % e.degree(axes):
        return ()
    cuts = list(a.cuts)
    cuts[source] = tuple(x for x in cuts[source] if x not in axes)
    cuts[target] = (*cuts[target], *axes)
    return tuple(cuts)


CURES: Mapping[str, Callable[[Evidence, Finding], Cure]] = {
    "undonated cache": _donate,
    "undonated state": _donate,
    "whole parameter": _cut_whole,
    "replicated optimizer": _cut_state,
    "cache cut along its tokens": _cut_heads,
    "gathered weights": _cut_widths,
}
"""By rule; what is not here is cured within the function."""
