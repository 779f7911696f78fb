"""Hardware nouns: Chip, its network, Slice, and how a mesh is placed on a slice.

`network.py` holds the kinds of network, `chip.py` one chip (its numbers are those of
`fields.toml`), `names.py` what chips are called (`cloud_names.py` by Google Cloud,
`device_names.py` by JAX). `data/` has a file per chip with a source for every number;
`catalogue.py` finds it, `record.py` reads and checks it, `prices.py` holds dollars per chip-hour.
`totals.py` adds up pods and fat trees, `fat_tree.py` counts their switches. `slices.py` spells and
checks slices, `shapes.py` says which shapes a torus is cut into, `placement.py` lays mesh axes on
physical axes, in one of the `boxes.py` of a slice, `misfits.py` says why a mesh cannot be placed
and `device_order.py` where each of its devices lies. No time is computed here: that is `roofline`.
Read `chip.py` first.
"""

from shardwise.hardware.boxes import boxes, every_part, parts
from shardwise.hardware.catalogue import catalogue, chip_ids, load_chip
from shardwise.hardware.chip import Chip
from shardwise.hardware.misfits import place_or_refuse
from shardwise.hardware.network import Alone, FullMesh, Switched, Torus
from shardwise.hardware.placement import AxisLinks, Part, Placement, place
from shardwise.hardware.prices import Price, parse_price
from shardwise.hardware.slices import (
    Slice,
    Spelling,
    describe,
    enough,
    parse_slice,
    read_slice,
    read_target,
    slices_of,
)
from shardwise.hardware.totals import node_egress

__all__ = [
    "Alone",
    "AxisLinks",
    "Chip",
    "FullMesh",
    "Part",
    "Placement",
    "Price",
    "Slice",
    "Spelling",
    "Switched",
    "Torus",
    "boxes",
    "catalogue",
    "chip_ids",
    "describe",
    "enough",
    "every_part",
    "load_chip",
    "node_egress",
    "parse_price",
    "parse_slice",
    "parts",
    "place",
    "place_or_refuse",
    "read_slice",
    "read_target",
    "slices_of",
]
