"""The programs of scripts/hlo_corpus.py: small, of many kinds, each for a mesh of eight devices.

`compile_one(name, chip, folder)` of `targets.py`, called in a child process, compiles a program for
a chip that is not at hand. A program is a function of a mesh (2, 2, 2) with axes (replica, fsdp,
tensor) to (function, arguments, options of jax.jit). Read `base.py` first.
"""

from hlo_programs import collectives, layers, matmuls, operations
from hlo_programs.base import PROGRAMS
from hlo_programs.targets import compile_one

__all__ = ["PROGRAMS", "collectives", "compile_one", "layers", "matmuls", "operations"]
