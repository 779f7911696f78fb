"""The kinds of input: whole examples of each, and the commands that they go to.

A kind makes a case from a random generator: it draws an example, damages it and names a command.
A file here is registered by being here: its `KINDS` has its kinds by name, none of which another
file has. The slow tests run a few cases of each file in a process of its own, the long ones many.
"""

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from functools import cache
from random import Random

from fuzz.cases import Case, run_case
from fuzz.mutate import WHOLE, Harm

FILES = {
    found.name: importlib.import_module(f"{__name__}.{found.name}")
    for found in pkgutil.iter_modules(__path__)
}
KINDS: Mapping[str, Callable[[Random, Harm], Case]] = {
    kind: make for file in FILES.values() for kind, make in file.KINDS.items()
}
EXAMPLES = 8


def case_of(kind: str, seed: int, number: int, whole: bool = False) -> Case:
    """The case of a kind, a seed and a number: the same on every machine. `whole` leaves the
    example and the command as they are."""
    random = Random(f"{kind}/{seed}/{number}")
    return KINDS[kind](random, WHOLE if whole else Harm(random))


@cache
def undamaged(kind: str) -> int:
    """Bytes of memory that whole examples of a kind take at most."""
    return max(run_case(case_of(kind, 0, i, whole=True)).bytes for i in range(EXAMPLES))
