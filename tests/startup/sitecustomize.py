"""Counts compiles for TPUs: Python imports this by itself in every process that the tests start.

Tests compile in children, and in children of those; `tests/conftest.py` puts this folder on their
PYTHONPATH and names a file. Where JAX's compiler is imported, its one entry to XLA is wrapped: each
program for a TPU is a line of that file, before it is compiled and with the test that asked for it.
"""

import functools
import json
import os
import sys
from importlib.machinery import PathFinder

FILE = "SHARDWISE_TPU_COMPILES"
MODULE, ENTRY = "jax._src.compiler", "backend_compile_and_load"


def counted(module):
    """Wrap the entry of JAX's module; one that JAX no longer has is an error, not a count of 0."""
    entry = getattr(module, ENTRY)
    if hasattr(entry, "counts_tpus"):
        return

    @functools.wraps(entry)
    def compile_counted(backend, program, *args, **kwargs):
        if backend.platform == "tpu" and FILE in os.environ:
            name = str(program.operation.attributes["sym_name"]).strip('"')
            test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0]  # less "(call)"
            write({"test": test, "name": name})
        return entry(backend, program, *args, **kwargs)

    compile_counted.counts_tpus = True
    setattr(module, ENTRY, compile_counted)


def write(line):
    """Append a line; one write of so few bytes is whole beside those of other processes."""
    with open(os.environ[FILE], "a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


class Finder:
    """Finds JAX's compiler as Python does, to wrap it when it has been imported."""

    def find_spec(self, name, path=None, target=None):
        if name != MODULE:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None:
            run = spec.loader.exec_module
            spec.loader.exec_module = lambda module: (run(module), counted(module))
        return spec


def install():
    """From now on in this process."""
    if MODULE in sys.modules:
        counted(sys.modules[MODULE])
    elif not any(type(finder).__name__ == "Finder" for finder in sys.meta_path):
        sys.meta_path.insert(0, Finder())


if FILE in os.environ:
    install()
