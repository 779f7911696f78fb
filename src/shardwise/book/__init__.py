"""What the book says, each rule once, computed through the rest; nothing is planned or measured.

`rules/` holds its closed rules of thumb and the audit of a plan by them, `thresholds.py` sets them
beside a searched plan and `figures.py` has the data of its figures, read from `data/`. Screens ask
for both beside an answer: no answer needs them. Read `rules/` first.
"""
