"""Saved plans shown, compared and exported; imports the rooms that make and price them.

`show.py` is `plan show`, `diff.py` is `plan diff`, `export.py` is `export` (its texts:
`exported.py`). Read `show.py` first.
"""
