"""The folders are the architecture: which layer may import which, and planning without JAX."""

import ast
import subprocess
import sys
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
    "plans": f"{BASE} hardware sharding models",
    "scheduling": BASE,
    "roofline": f"{BASE} hardware sharding",
    "planner": PLANNING,
    "runtime": f"{BASE} sharding models plans scheduling",
    "profiler": f"{BASE} hardware sharding models plans roofline",
    "workflows": f"{PLANNING} planner runtime profiler",
    "apps": f"{PLANNING} planner workflows",
    "__main__": "apps",
}


def layer_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imports_of(path: Path) -> list[tuple[str, int]]:
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [(alias.name, node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: write imports in full"
            found.append((node.module or "", node.lineno))
            if node.module == "shardwise":
                found += [(f"shardwise.{alias.name}", node.lineno) for alias in node.names]
    return found


FILES = sorted(p for p in ROOT.rglob("*.py") if p != ROOT / "__init__.py")


@pytest.fixture(scope="module")
def imports():
    """What every file imports, with the line."""
    return {path: imports_of(path) for path in FILES}


def test_a_layer_imports_only_layers_above_it(imports):
    for path, found in imports.items():
        layer = layer_of(path)
        allowed = {layer, *MAY_IMPORT[layer].split()}
        for name, line in found:
            if name.split(".")[0] != "shardwise" or name == "shardwise":
                continue
            target = name.split(".")[1]
            assert target in allowed, f"{path}:{line}: layer '{layer}' may not import '{target}'"


def test_jax_lives_in_runtime_and_profiler_alone(imports):
    for path, found in imports.items():
        if layer_of(path) not in ("runtime", "profiler"):
            jax = [n for n, _ in found if n.split(".")[0] in ("jax", "jaxlib")]
            assert not jax, f"{path} imports {jax}"


def test_planning_loads_no_jax():
    code = (
        "import sys, shardwise, shardwise.planner, shardwise.apps.cli.plan\n"
        "sys.exit('jax loaded' if 'jax' in sys.modules else 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_folder_opens_with_a_paragraph():
    for path in sorted(ROOT.rglob("__init__.py")):
        doc = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
        assert doc, f"{path} says nothing"
        assert len(doc.split()) >= 15, f"{path} says too little"
