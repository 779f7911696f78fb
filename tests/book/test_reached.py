"""No public function of `shardwise.book` is there for tests alone: commands call each of them.

The commands below are run with a tracer, and every public function, method and property under
`src/shardwise/book`, and every rule wherever it stands, must have been entered.
"""

import importlib
import inspect
import pkgutil
import shlex
import sys
from collections.abc import Callable, Iterator
from functools import cached_property
from types import CodeType

import pytest
from tests.apps.commands import run
from tests.book.test_more_rules import CASES, FIELDS

import shardwise.book
from shardwise.book.figure_index import FIGURES, figure_settings
from shardwise.book.registry import RULES
from shardwise.commands.tables.book_show import BookShowRequest
from shardwise.plans.named import audit_names

OTHER = {
    "forward_flops_per_token": "--set cfg=llama-3-8b --set context=8192",
    "model_flops_per_token": "--set cfg=llama-3-8b --set context=8192",
    "activation_bytes": "--set cfg=llama-3-8b --set tokens=4096 --set policy=block",
    "topology_table": "--on v5e --set param_bytes=70e9 --set kv_bytes=1342177280",
    "vector_ops": "--on v5e",
}
"""Rules that neither a number of the book nor a command of `test_more_rules.py` asks for."""
OF_A_PROTOCOL = {
    f"shardwise.book.simulators.batching.RuleCost.{name}_seconds" for name in ("host", "transfer")
}
"""What the simulator's `StepCost` must have, and one replica without a host tier never asks."""
PLANNED = ("plan", "train", "--batch", "64seq", "--seq", "4096", "--book")


def public(module) -> Iterator[tuple[str, Callable]]:
    """The functions, methods and properties that a module defines, by their names."""
    for name, value in vars(module).items():
        if name.startswith("_") or getattr(value, "__module__", "") != module.__name__:
            continue
        if inspect.isclass(value):
            yield from methods(value)
        elif callable(value):
            yield f"{module.__name__}.{name}", value


def methods(cls) -> Iterator[tuple[str, Callable]]:
    """Those that the class writes itself, `__call__` among them."""
    for name, value in vars(cls).items():
        if name.startswith("_") and name != "__call__":
            continue
        found = value.fget if isinstance(value, property) else value
        found = found.func if isinstance(found, cached_property) else found
        if inspect.isfunction(found):
            yield f"{cls.__module__}.{cls.__name__}.{name}", found


def code_of(function: Callable) -> CodeType:
    """Its code, whatever wraps it; answers kept before are forgotten, so that it runs again."""
    clear = getattr(function, "cache_clear", None)
    if clear is not None:
        clear()
    return inspect.unwrap(function).__code__


@pytest.fixture(scope="module")
def wanted() -> dict[CodeType, str]:
    """Every public function by its code."""
    names = [m.name for m in pkgutil.walk_packages(shardwise.book.__path__, "shardwise.book.")]
    found = {code_of(f): name for m in names for name, f in public(importlib.import_module(m))}
    return found | {code_of(r.function): f"rule {name}" for name, r in RULES.items()}


def commands() -> Iterator[tuple[str, ...]]:
    """What a reader may type."""
    yield from (("book", "list"), ("book", "errata"), ("book", "errata", "--edition", "first"))
    yield from (("book", "rule"), ("book", "quiz", "1.1.3", "--answer", "241"))
    yield ("book", "quiz", "--chapter", "5", "--seed", "3")
    yield ("book", "show", "1.1.3", "--constants", "seed", "--set", "peak=4e14")
    for text in (*CASES, *FIELDS, *(f"{name} {words}" for name, words in OTHER.items())):
        yield ("book", "rule", *shlex.split(text))
    yield ("book", "rule", "book_mesh", "--set", "batch_tokens=1.6e7", "--set", "d_ff=28672",
           "--set", "chips=8960", "--on", "v5p", "--edition", "first")  # fmt: skip
    for name in FIGURES:
        changed = next((n for n in figure_settings(name) if n == "chips"), None)
        yield ("book", "figure", name, *(["--set", "chips=64"] if changed else []))
    for name in audit_names():
        yield ("plan", "show", f"audit:{name}", "--book")
    yield (*PLANNED, "--model", "llama-3-8b", "--on", "v5p:2x2x2")
    yield (*PLANNED, "--model", "mixtral-8x7b", "--on", "h100:16")


@pytest.mark.slow
def test_every_public_function_is_called_by_a_command(wanted, capsys):
    """Numbers by the request that `book show` makes; everything else by the command line."""
    seen: set[CodeType] = set()
    sys.settrace(lambda frame, *_: seen.add(frame.f_code))  # of calls alone, not those of C
    try:
        for words in commands():
            code, _, err = run(capsys, *words)
            assert code == 0, f"{' '.join(words)}: {err}"
        for entry_id in shardwise.book.entries():
            str(BookShowRequest(entry_id).answer())
    finally:
        sys.settrace(None)
    left = {name for code, name in wanted.items() if code not in seen}
    assert left == OF_A_PROTOCOL
