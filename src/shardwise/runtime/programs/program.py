"""A program to be lowered: a jitted function with abstract arguments on a mesh."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import jax


@dataclass(frozen=True, slots=True, kw_only=True)
class AbstractProgram:
    """A jitted function and its arguments, to be lowered: `function.lower(*arguments)`; `notes` say
    what an answer should of how it is computed, and `options` are the compiler's that the function
    has itself."""

    function: Any
    arguments: tuple[Any, ...]
    mesh: jax.sharding.Mesh
    notes: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
