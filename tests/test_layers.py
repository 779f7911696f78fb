"""The folders are the architecture: who may import whom, no cycles, planning without JAX."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from pathlib import Path

import pytest

import shardwise

ROOT = Path(shardwise.__file__).parent
BASE = "units errors work boundary"
PLANNING = f"{BASE} hardware sharding models plans scheduling roofline"
MAY_IMPORT = {
    "errors": "",
    "units": "errors",
    "work": "",
    "boundary": "errors units",
    "hardware": BASE,
    "sharding": f"{BASE} hardware",
    "models": f"{BASE} sharding",
    "scheduling": BASE,
    "plans": f"{BASE} hardware sharding models scheduling",
    "roofline": f"{BASE} hardware sharding",
    "planner": PLANNING,
    "runtime": f"{BASE} sharding models plans scheduling",
    "profiler": f"{BASE} hardware sharding models plans scheduling roofline",
    "results": f"{PLANNING} planner",
    "evidence": f"{PLANNING} planner results",
    "book": f"{PLANNING} planner results",
    "commands": f"{PLANNING} planner runtime profiler results evidence book",
    "apps": f"{PLANNING} planner results evidence book commands",
    "__main__": "apps",
}


ROOMS = [
    "base",
    "pricing",
    "program",
    "shard",
    "plan_train",
    "plan_serve",
    "plan_file",
    "run",
    "tables",
]
"""Of `commands/`; a room imports only those before it."""
LIBRARIES = ("jax", "jaxlib")


@dataclass(frozen=True)
class Import:
    """One name that a file imports: the module it is in, and whether a function does it."""

    module: str
    line: int
    inside: bool


def layer_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = sorted(p for p in ROOT.rglob("*.py") if p != ROOT / "__init__.py")
MODULES = {module_of(path): path for path in FILES}


@cache
def imports_of(path: Path) -> tuple[Import, ...]:
    """All imports of a file, those inside functions and of type checkers too."""
    return tuple(_imports(ast.parse(path.read_text(encoding="utf-8")), path, inside=False))


def _imports(node: ast.AST, path: Path, *, inside: bool) -> Iterator[Import]:
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield Import(alias.name, node.lineno, inside)
    elif isinstance(node, ast.ImportFrom):
        assert node.level == 0, f"{path}:{node.lineno}: write imports in full"
        for alias in node.names:
            name = f"{node.module}.{alias.name}"
            known = name in MODULES or node.module == "shardwise"
            yield Import(name if known else str(node.module), node.lineno, inside)
    inside = inside or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
    for child in ast.iter_child_nodes(node):
        yield from _imports(child, path, inside=inside)


def test_the_table_lists_layers_from_the_bottom_up():
    order = list(MAY_IMPORT)
    for layer, allowed in MAY_IMPORT.items():
        late = [name for name in allowed.split() if order.index(name) >= order.index(layer)]
        assert not late, f"'{layer}' may import {late}, which the table lists after it"


def test_a_layer_imports_only_layers_above_it():
    for path in FILES:
        layer = layer_of(path)
        allowed = {layer, *MAY_IMPORT[layer].split()}
        for found in imports_of(path):
            if found.module.split(".")[0] != "shardwise" or found.module == "shardwise":
                continue
            target = found.module.split(".")[1]
            where = f"{path}:{found.line}"
            assert target in allowed, f"{where}: layer '{layer}' may not import '{target}'"


def test_jax_lives_in_runtime_and_profiler_alone():
    for path in FILES:
        if layer_of(path) not in ("runtime", "profiler"):
            jax = [i for i in imports_of(path) if i.module.split(".")[0] in LIBRARIES]
            assert not jax, f"{path} imports {jax}"


# ---- no cycles -----------------------------------------------------------------------------------

FOLDERS = sorted({path.parent for path in FILES} | {ROOT})


def needs_of(folder: Path) -> dict[str, dict[str, str]]:
    """Which files and folders of a folder need which others, each with an import that says so.

    A sub-folder is one thing here, with all that lies in it.
    """
    needs: dict[str, dict[str, str]] = {}
    for path in (p for p in FILES if folder in p.parents):
        here = path.relative_to(folder).parts[0]
        for found in imports_of(path):
            target = MODULES.get(found.module)
            if target is None or folder not in target.parents:
                continue
            there = target.relative_to(folder).parts[0]
            if there != here:
                said = f"{path.relative_to(ROOT)}:{found.line} imports {found.module}"
                needs.setdefault(here, {}).setdefault(there, said)
    return needs


def test_no_two_things_of_a_folder_need_each_other():
    """Neither directly nor by way of others; an import inside a function counts like any."""
    for folder in FOLDERS:
        needs = needs_of(folder)
        try:
            TopologicalSorter(needs).prepare()
        except CycleError as error:
            ring = error.args[1][::-1]
            pytest.fail("a cycle: " + "; ".join(needs[a][b] for a, b in pairwise(ring)))


@cache
def loads_jax(module: str) -> bool:
    """Whether importing a module imports JAX, by itself or by what it imports."""
    if module.split(".")[0] in LIBRARIES:
        return True
    path = MODULES.get(module)
    return path is not None and any(loads_jax(i.module) for i in imports_of(path) if not i.inside)


COSTLY = {
    "shardwise.commands.program.candidate",
    "shardwise.commands.plan_train.second_opinion",
    "shardwise.commands.plan_serve.second_opinion",
    "shardwise.commands.pricing.plans",
    "shardwise.evidence.training.own",
}
"""Imported where they are used: a search without --compile would wait a tenth of a second, a fifth
of its imports, for the readers of compiled programs; one without --against or --evidence as long
for those of plans, of other programs' files and of tables of runs."""


def test_an_import_inside_a_function_is_for_start_up_or_an_optional_part():
    """Elsewhere one hides that a file lies on the wrong floor."""
    for path in (p for p in FILES if layer_of(p) not in ("apps", "__main__")):
        for found in imports_of(path):
            if found.inside and found.module in MODULES and found.module not in COSTLY:
                where = f"{path}:{found.line}"
                assert loads_jax(found.module), f"{where}: import '{found.module}' at the top"


def test_a_room_of_commands_imports_only_those_before_it():
    commands = ROOT / "commands"
    there = {path.parent.name for path in commands.glob("*/__init__.py")}
    assert there == set(ROOMS)
    for path in (p for p in FILES if commands in p.parents and p.parent != commands):
        room = path.relative_to(commands).parts[0]
        allowed = ROOMS[: ROOMS.index(room) + 1]
        for found in imports_of(path):
            if found.module.startswith("shardwise.commands."):
                target = found.module.split(".")[2]
                where = f"{path}:{found.line}"
                assert target in allowed, f"{where}: room '{room}' may not import '{target}'"


# ---- start-up and folders ------------------------------------------------------------------------


def test_a_search_loads_no_reader_of_plan_files_or_runs():
    code = (
        "import sys, shardwise.commands.plan_train.train\n"
        "names = ('commands.pricing.plans', 'evidence.training.own', 'evidence.training.table')\n"
        "print([name for name in names if f'shardwise.{name}' in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_planning_loads_neither_jax_nor_a_server():
    code = (
        "import sys, shardwise, shardwise.planner, shardwise.apps.cli.plan_train\n"
        "import shardwise.apps.cli.serve, shardwise.apps.cli.generate\n"
        "heavy = {'jax', 'starlette', 'uvicorn', 'jinja2', 'prometheus_client'}\n"
        "sys.exit(f'loaded: {heavy & set(sys.modules)}' if heavy & set(sys.modules) else 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_folder_opens_with_a_paragraph():
    for path in sorted(ROOT.rglob("__init__.py")):
        doc = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
        assert doc, f"{path} says nothing"
        assert len(doc.split()) >= 15, f"{path} says too little"


def test_a_folder_names_all_that_lies_in_it():
    """Its opening paragraphs are a map: `file.py`, `folder/`."""
    for init in sorted(ROOT.rglob("__init__.py")):
        doc = ast.get_docstring(ast.parse(init.read_text(encoding="utf-8"))) or ""
        beside = [
            f"{path.name}/" if path.is_dir() else path.name
            for path in sorted(init.parent.iterdir())
            if path.is_dir() or (path.suffix == ".py" and path != init)
        ]
        missing = [name for name in beside if name != "__pycache__/" and f"`{name}" not in doc]
        assert not missing, f"{init} does not name {', '.join(missing)}"


NAMED = re.compile(r"(?<![\w/.<>*-])(?:[\w.-]+/)*[\w-]+\.(?:py|csv)\b|`(?:[\w-]+/)+`")
"""A path as documents write it: `planner/step/work.py`, and folders such as `planner/step/`."""


@pytest.mark.parametrize("page", ["docs/architecture.md", "CONTRIBUTING.md"])
def test_every_path_in_a_page_for_contributors_exists(page):
    """As written from the repository or the package, or by its end (`prefix.py`)."""
    repository = Path(__file__).parents[1]
    text = (repository / page).read_text(encoding="utf-8")
    files = [path.as_posix() for path in ROOT.rglob("*")]
    for found in NAMED.findall(text):
        name = found.strip("`").rstrip("/")
        if "NAME" in name:
            continue  # of what a reader adds
        there = (repository / name).exists() or any(path.endswith(f"/{name}") for path in files)
        assert there, f"{page} names {name}, which is not there"
