"""The ops of a step as a graph."""

import gzip
import json
import xml.etree.ElementTree as ET
from itertools import pairwise
from pathlib import Path

import pytest

from shardwise.hardware import parse_slice
from shardwise.profiler.explain import explain_program
from shardwise.profiler.explain.graph import dot_text, svg_text
from shardwise.sharding import Mesh

DATA = Path(__file__).parent / "data"
INDEX = json.loads((DATA / "index.json").read_text())

LABELS = ["ping_pong.a.fault", "copied_weights.b.fault", "good_fsdp.a.clean"]


def explained(label):
    row = INDEX[label]
    with gzip.open(DATA / f"{label}.hlo.gz", "rt") as file:
        return explain_program(
            file.read(), parse_slice(row["on"]), Mesh(tuple(row["mesh"].items()))
        )


@pytest.mark.parametrize("label", [label for label, row in INDEX.items() if row["faulty"]])
def test_boxes_and_what_is_left_out_are_the_step(label):
    found = explained(label)
    graph = found.graph
    total = sum(node.seconds for node in graph.nodes) + graph.left
    assert total == pytest.approx(found.timeline.expected, rel=0.02)
    assert all(node.seconds > 0 for node in graph.nodes)


@pytest.mark.parametrize("label", LABELS)
def test_edges_go_forward_in_the_schedule(label):
    graph = explained(label).graph
    place = {node.id: i for i, node in enumerate(graph.nodes)}
    assert graph.edges
    assert all(place[edge.source] < place[edge.target] for edge in graph.edges)
    assert all(edge.bytes > 0 for edge in graph.edges)


def test_an_exchange_there_and_back_is_a_path():
    graph = explained("ping_pong.a.fault").graph
    exchanges = [node.id for node in graph.nodes if node.kind == "all-to-all"]
    reached = {exchanges[0]}
    for edge in sorted(graph.edges, key=lambda e: [n.id for n in graph.nodes].index(e.target)):
        if edge.source in reached:
            reached.add(edge.target)
    assert set(exchanges) <= reached


@pytest.mark.parametrize("label", LABELS)
def test_the_picture_has_a_box_per_op_in_the_order_of_the_schedule(label):
    graph = explained(label).graph
    drawn = ET.fromstring(svg_text(graph, "step <of> 'a' & b"))
    boxes = [r for r in drawn.iter() if r.get("stroke") == "#555"]
    assert len(boxes) == len(graph.nodes)
    heights = [float(box.attrib["y"]) for box in boxes]
    assert all(a < b for a, b in pairwise(heights))


@pytest.mark.parametrize("label", LABELS)
def test_graphviz_text_names_every_op_and_edge(label):
    graph = explained(label).graph
    text = dot_text(graph, 'a "step"')
    assert text.count(" -> ") == len(graph.edges)
    assert text.count("fillcolor=") == len(graph.nodes)
    assert text.count("{") == text.count("}")
    assert 'digraph "a \\"step\\"" {' in text
