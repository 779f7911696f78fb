"""The ops of a step as a graph: the dearest as boxes with their cost, edges for what they wait for.

An edge goes from op to op through those that are left out. `dot_text` writes it for Graphviz,
`svg_text` as a picture: top to bottom in the order of the schedule, a column per stream.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from html import escape

from shardwise.profiler.explain.evidence import Evidence
from shardwise.profiler.explain.tables import spent
from shardwise.profiler.hlo.shapes import arrays
from shardwise.profiler.timeline import OpRow
from shardwise.units import format_bytes, format_seconds
from shardwise.work import grouped

MOST = 40
"""Boxes; more cannot be read on a page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpNode:
    """An op: its name, `kind` (class, or the collective), stream, the loop that it runs in, how
    often, seconds per step (waits alone, beside the compute stream), share of the step, what bounds
    it and where it is."""

    id: str
    name: str
    kind: str
    stream: str
    body: str
    count: float
    seconds: float
    share: float
    bound_by: str
    where: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OpEdge:
    """`target` waits for `source`, which makes so many bytes."""

    source: str
    target: str
    bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class OpGraph:
    """The dearest ops in the order of the schedule, and `left`, the seconds of the others."""

    nodes: tuple[OpNode, ...]
    edges: tuple[OpEdge, ...]
    left: float


def op_graph(e: Evidence) -> OpGraph:
    """The `MOST` ops on which a step spends most, and what each of them waits for."""
    rows = e.timeline.rows
    dear = {r.op.op.id for r in sorted(rows, key=lambda r: -spent(r))[:MOST] if spent(r) > 0}
    made = {r.op.op.id: _made(e, r) for r in rows if r.op.op.id in dear}
    return OpGraph(
        nodes=tuple(_node(e, r) for r in rows if r.op.op.id in dear),
        edges=tuple(
            OpEdge(source=source, target=target, bytes=made[source])
            for target, sources in waits(((r.op.op.id, r.op.op.after) for r in rows), dear).items()
            for source in sources
        ),
        left=sum(spent(r) for r in rows if r.op.op.id not in dear),
    )


def _node(e: Evidence, row: OpRow) -> OpNode:
    op = row.op.op
    return OpNode(
        id=op.id,
        name=op.name,
        kind=op.collective.kind.replace("_", "-") if op.collective else op.op_class,
        stream=op.stream,
        body=op.body,
        count=row.count,
        seconds=spent(row),
        share=spent(row) / e.timeline.expected if e.timeline.expected else 0.0,
        bound_by=row.bound_by,
        where=e.where(row.op),
    )


def _made(e: Evidence, row: OpRow) -> float:
    _, found = e.located(row.op)
    return sum(a.bytes for a in arrays(found.shape)) if found else 0.0


def waits(
    ops: Iterable[tuple[str, Sequence[str]]], dear: Set[str]
) -> Mapping[str, tuple[str, ...]]:
    """Of each op that is shown those that are shown and that it waits for, through the others.

    `ops` are ids with the ids that they come after, in the order of the schedule.
    """
    before: dict[str, dict[str, None]] = {}
    for op_id, after in ops:
        found: dict[str, None] = {}
        for id in after:
            found |= {id: None} if id in dear else before.get(id, {})
        before[op_id] = found
    return {op_id: tuple(found) for op_id, found in before.items() if op_id in dear}


COLOURS = {
    "matmul": "#a6cee3",
    "attention": "#b2df8a",
    "elementwise": "#ffff99",
    "copy": "#dddddd",
    "gather": "#cab2d6",
}
WIRE = "#fdbf6f"
"""Of a class of ops, and of what crosses a network (ColorBrewer's "Paired")."""


def _colour(node: OpNode) -> str:
    return WIRE if node.stream.startswith("net:") else COLOURS.get(node.kind, "#ffffff")


def _words(node: OpNode) -> tuple[str, str, str]:
    """A box's three lines: name, cost, place."""
    runs = f" in {node.count:g} runs" if node.count > 1 else ""
    cost = f"{node.kind}, {format_seconds(node.seconds)} ({100 * node.share:.1f} %){runs}"
    return node.name, f"{cost}, {node.bound_by}", "/".join(node.where.split("/")[-2:])


# Graphviz ----------------------------------------------------------------------------------------


def dot_text(graph: OpGraph, title: str) -> str:
    """The graph in Graphviz's language, what runs in one loop within one frame."""
    lines = [f"digraph {_quoted(title)} {{", f"  label={_quoted(_title(graph, title))};"]
    lines.append('  node [shape=box, style=filled, fontname="monospace", fontsize=10];')
    for i, (body, nodes) in enumerate(grouped(graph.nodes, lambda n: n.body).items()):
        boxes = [_box(node) for node in nodes]
        if body:
            name = body.rpartition("/")[2]
            head = f"  subgraph cluster_{i} {{ label={_quoted(f'loop {name}')};"
            lines += [head, *(f"  {box}" for box in boxes), "  }"]
        else:
            lines += boxes
    for edge in graph.edges:
        ends = f"{_quoted(edge.source)} -> {_quoted(edge.target)}"
        lines.append(f"  {ends} [label={_quoted(format_bytes(edge.bytes))}];")
    return "\n".join([*lines, "}", ""])


def _title(graph: OpGraph, title: str) -> str:
    left = f"; others {format_seconds(graph.left)}" if graph.left else ""
    return f"{title}: {len(graph.nodes)} ops{left}"


def _box(node: OpNode) -> str:
    label = "\\n".join(_escaped(word) for word in _words(node))
    return f'  {_quoted(node.id)} [label="{label}", fillcolor="{_colour(node)}"];'


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


def _quoted(text: str) -> str:
    return f'"{_escaped(text)}"'


# SVG ---------------------------------------------------------------------------------------------

WIDE, HIGH, GAP_X, GAP_Y, TOP = 330, 50, 70, 18, 60
"""Pixels of a box, between boxes, and above the first."""
FONT = 'font-family="monospace" font-size="10"'


def svg_text(graph: OpGraph, title: str) -> str:
    """The graph as a picture: the dark bar of a box is its share of the dearest op's seconds."""
    streams = list(dict.fromkeys(("compute", *(n.stream for n in graph.nodes))))
    at = {
        node.id: (20 + streams.index(node.stream) * (WIDE + GAP_X), TOP + i * (HIGH + GAP_Y))
        for i, node in enumerate(graph.nodes)
    }
    width = 20 + len(streams) * (WIDE + GAP_X)
    height = TOP + len(graph.nodes) * (HIGH + GAP_Y) + 20
    most = max((n.seconds for n in graph.nodes), default=1.0)
    size = f'width="{width}" height="{height}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} viewBox="0 0 {width} {height}" {FONT}>',
        f'<rect {size} fill="white"/>',
        _text(20, 20, _title(graph, title), size=13),
        *(_text(20 + i * (WIDE + GAP_X), 44, s, size=12) for i, s in enumerate(streams)),
        *(_curve(at[edge.source], at[edge.target], edge) for edge in graph.edges),
    ]
    for node in graph.nodes:
        parts += _drawn(node, *at[node.id], node.seconds / most)
    return "\n".join([*parts, "</svg>", ""])


def _drawn(node: OpNode, x: int, y: int, part: float) -> Iterator[str]:
    size = f'x="{x}" y="{y}" width="{WIDE}" height="{HIGH}"'
    yield f'<rect {size} fill="{_colour(node)}" stroke="#555"/>'
    yield f'<rect x="{x}" y="{y + HIGH - 4}" width="{WIDE * part:.1f}" height="4" fill="#333"/>'
    for i, word in enumerate(_words(node)):
        yield _text(x + 6, y + 13 + 13 * i, word if len(word) <= 52 else f"{word[:51]}…")


def _curve(source: tuple[int, int], target: tuple[int, int], edge: OpEdge) -> str:
    x, y = source[0] + WIDE // 2, source[1] + HIGH
    to_x, to_y = target[0] + WIDE // 2, target[1]
    # Far ones of one column bend aside, so as not to run behind the boxes between.
    aside = (WIDE // 2 + 50) if x == to_x and to_y - y > GAP_Y else 0
    path = f"M{x},{y} C{x + aside},{y + 20} {to_x + aside},{to_y - 20} {to_x},{to_y}"
    said = escape(f"{edge.source} to {edge.target}: {format_bytes(edge.bytes)}")
    return f'<path d="{path}" fill="none" stroke="#999"><title>{said}</title></path>'


def _text(x: int, y: int, text: str, *, size: int = 10) -> str:
    return f'<text x="{x}" y="{y}" font-size="{size}">{escape(text)}</text>'
