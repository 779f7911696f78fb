"""What a program is made by: the modules that its builder and the compile job import."""

import hashlib
import os
import re
from functools import cache
from pathlib import Path

import shardwise

JOB = "shardwise.profiler.ahead.job"
TABLES = "plans/data/software/*.toml"
"""Data of this package that a program follows from."""

_IMPORT = re.compile(rb"from (shardwise\.[\w.]+) import (\([^)]*\)|.*)")
_NAME = re.compile(rb"[a-z_]\w+")


@cache
def source_hash(builder: str) -> str:
    """A hash of the sources that make the program of a builder, "module:function"."""
    digest = hashlib.sha256()
    for name, text in sorted(sources(builder.partition(":")[0], JOB).items()):
        digest.update(name.encode() + text)
    root = Path(shardwise.__file__).parent
    for path in sorted(root.glob(TABLES)):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()


def sources(*starts: str) -> dict[str, bytes]:
    """The text of some modules of this package and of all that they import, by name.

    The package itself is left out: its names are loaded where they are asked for.
    """
    modules, found, ahead = _modules(), {}, list(starts)
    while ahead:
        name = ahead.pop()
        if name in found or name not in modules:
            continue
        found[name] = text = Path(modules[name]).read_bytes()
        ahead.append(name.rpartition(".")[0])
        for place, names in _IMPORT.findall(text):
            ahead.append(place.decode())
            ahead += (f"{place.decode()}.{n.decode()}" for n in _NAME.findall(names))
    return found


def _modules() -> dict[str, str]:
    """The files of this package's modules by name; all but that of the package itself."""
    found, root = {}, os.path.dirname(shardwise.__file__)
    for folder, _, names in os.walk(root):
        inside = f"shardwise{folder.removeprefix(root).replace(os.sep, '.')}"
        for name in names:
            stem, ending = os.path.splitext(name)
            if ending == ".py":
                path = inside if stem == "__init__" else f"{inside}.{stem}"
                found[path] = os.path.join(folder, name)
    del found["shardwise"]
    return found
