"""The proof of the resolver on a real compiler: random einsums, run, counted and compared with XLA.

`draw.py` makes einsums from fixed seeds, `check.py` resolves, runs and compares one of them,
`pricing.py` prices both programs alike, `rules.py` says when XLA's own may be cheaper (on meshes
whose axes are in parts, `parts.py`), and `report.py` writes the result down. `scripts/prove` runs
hundreds, a test some dozens. Read `check.py` first.
"""

from proof.check import ProofVerdict, prove
from proof.draw import DrawnEinsum, draw
from proof.report import report

__all__ = ["DrawnEinsum", "ProofVerdict", "draw", "prove", "report"]
