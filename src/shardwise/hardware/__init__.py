"""Hardware nouns: Chip, its network, Slice, and how a mesh is placed on a slice.

`network.py` holds the kinds of network, `chip.py` one chip, `catalogue.py` reads the data files
with a source for every number, `slices.py` spells and checks slices, `placement.py` lays mesh axes
on physical axes. No time is computed here: that is `roofline`. Read `chip.py` first.
"""
