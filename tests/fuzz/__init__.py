"""A seeded fuzzer of the boundary: damaged input of every kind, through the commands that read it.

`mutate.py` damages bytes, text and documents; `kinds.py` lists the kinds of input, each with whole
examples and the commands that they go to; `cases.py` runs one case in a process of its own and says
what it broke; `test_fuzz.py` runs a few hundred of each kind, `scripts/fuzz` any number.
A case is known by its kind, seed and number, and is the same on every machine. Read `kinds.py`
first.
"""
