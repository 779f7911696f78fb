"""What the name of a JAX operation says: its phase, and the named scopes around it.

`jit(f)/transpose(jvp(attention))/while/body/closed_call/checkpoint/btd,df->btf/dot_general` is of
the backward pass, in scope `attention/btd,df->btf`. Names of transformations and of control flow
are left out; the last word is the primitive.
"""

import re
from functools import lru_cache

from shardwise.models.components import component_of

DEEPEST = 50
"""Transformations around one word; a name of more is no scope of a person's."""
_WRAPPED = re.compile(r"(\w+)\((.*)\)$")
_KEPT = frozenset({"jvp", "transpose", "vmap", "remat", "checkpoint", "shard_map", "linearize"})
_STRUCTURE = frozenset(
    {
        *("while", "body", "cond", "scan", "closed_call", "core_call", "pjit", "jit", "xla_call"),
        *("checkpoint", "remat", "remat2", "rematted_computation", "shard_map", "custom_jvp_call"),
        *("custom_vjp_call", "custom_vjp_call_jaxpr", "branch", "named_call", "jvp", "transpose"),
    }
)


@lru_cache(maxsize=65536)
def phase_of(op_name: str) -> str:
    """ "recompute" and "backward" by JAX's own marks, "forward" in a differentiated function;
    elsewhere "optimizer" or "backward" by the component, else "step"; and nothing where the
    compiler gives no name. Parameters that are gathered again are so for the backward pass."""
    component = _component(op_name)
    if "rematted_computation" in op_name:
        return "backward" if component == "parameters" else "recompute"
    if "transpose(" in op_name:
        return "backward"
    if "jvp(" in op_name:
        return "forward"
    return _OUTSIDE.get(component, "step") if op_name else ""


_OUTSIDE = {"gradients": "backward", "optimizer": "optimizer", "parameters": "optimizer"}


@lru_cache(maxsize=65536)
def scope_of(op_name: str) -> str:
    """The named scopes, outermost first, without the primitive.

    >>> scope_of("jit(f)/transpose(jvp(mlp))/while/body/bd,df->bf/dot_general")
    'mlp/bd,df->bf'
    """
    words = (_unwrapped(word) for word in _split(op_name)[:-1])
    kept = (w for w in words if w and w not in _STRUCTURE and not w.startswith("branch_"))
    return "/".join(kept)


@lru_cache(maxsize=65536)
def component_in(op_name: str) -> str:
    """The component of an operation (`models/components.py`), "" where no scope names one. What
    brings parameters to where they are used takes gradients home when it is transposed.

    >>> component_in("jit(f)/transpose(jvp(parameters))/reduce_scatter")
    'gradients'
    """
    found = _component(op_name)
    transposed = "transpose(" in op_name and "rematted_computation" not in op_name
    return "gradients" if found == "parameters" and transposed else found


def _component(op_name: str) -> str:
    """By the scopes alone; of operations that the compiler joined, `a/(b/x:c/y)`, their common
    one."""
    *outer, last = _split(op_name)
    if not (last.startswith("(") and last.endswith(")")):
        return component_of(scope_of(op_name))
    each = {_component("/".join((*outer, part))) for part in last[1:-1].split(":")}
    return each.pop() if len(each) == 1 else ""


def _split(name: str) -> list[str]:
    """Cut at the slashes outside brackets."""
    words, depth, word = [], 0, ""
    for mark in name:
        depth += (mark == "(") - (mark == ")")
        if mark == "/" and depth <= 0:
            words.append(word)
            word = ""
        else:
            word += mark
    return [*words, word]


def _unwrapped(word: str) -> str:
    for _ in range(DEEPEST):
        found = _WRAPPED.match(word)
        if found is None:
            return word
        word = found[2] if found[1] in _KEPT else ""
    return ""
