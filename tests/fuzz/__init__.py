"""A seeded fuzzer of the boundary: damaged input of every kind, through the commands that read it.

`mutate.py` damages bytes, text and documents. `kinds/` has the kinds of input, each with whole
examples and the commands that they go to; a file there is registered by being there. `cases.py`
runs one case in a process of its own and says what it broke. `test_fuzz.py` runs a hundred of each
kind, `scripts/fuzz` any number. A case is known by its kind, seed and number, and is the same on
every machine. Read `kinds/__init__.py` first.
"""
