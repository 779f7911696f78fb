"""The dearest finding of a function as a report for a maintainer: op, cost, versions, and a program
of JAX alone that shows it."""

import ast
import platform
import re
from collections.abc import Iterable, Iterator, Mapping
from importlib.machinery import PathFinder
from pathlib import Path

from shardwise.boundary import read_text
from shardwise.commands.program.compiling import PlanProgram
from shardwise.commands.program.explaining import seen
from shardwise.errors import BadRequest
from shardwise.profiler.ahead.compile import environment
from shardwise.profiler.ahead.target import CompileTarget
from shardwise.profiler.explain import Explanation
from shardwise.units import format_seconds

LONGEST = 300
"""Lines of a module that a report holds, and letters of an op."""
_REST = re.compile(r", (?:metadata|backend_config|frontend_attributes)=")
ON_TPU = """\
def place(device):
    return (getattr(device, "slice_index", 0) or 0, *device.coords[:{axes}], device.core_on_chip)


topology = topologies.get_topology_desc(platform="tpu", topology_name={topology!r}, **{options!r})
devices = {{place(device): device for device in topology.devices}}
order = {order!r}
"""
ON_GPU = """\
topology = topologies.get_topology_desc(platform="cuda", topology={topology!r}, **{options!r})
devices = {{(d.id // {domain}, d.id % {domain}, 0): d for d in topology.devices}}
order = {order!r}
"""
CALL = """\
mesh = jax.sharding.Mesh(np.array([devices[at] for at in order]).reshape({shape!r}), {axes!r})
whole = jax.NamedSharding(mesh, jax.P())


def laid(x):
    at = getattr(x, "sharding", None)
    at = at if isinstance(at, jax.NamedSharding) else whole
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=at) if hasattr(x, "shape") else x


with jax.set_mesh(mesh):
    given, keywords = jax.tree.map(laid, {args}), {{}}
    given = given if isinstance(given, tuple) else (given,)
    if len(given) == 2 and isinstance(given[0], tuple) and isinstance(given[1], dict):
        given, keywords = given
    jitted = {function} if hasattr({function}, "lower") else jax.jit({function})
    compiled = jitted.lower(*given, **keywords).compile()
print(compiled.as_text())
"""


def issue_text(
    program: PlanProgram, e: Explanation, target: CompileTarget, args: str, beside: str = ""
) -> str:
    """The report, as Markdown; `beside` is what another program says of it."""
    parts = [*_cost(program, e), *_versions(program), *_script(program, target, args)]
    if beside:
        parts += ["", "Beside another version:", "", "```text", beside, "```"]
    return "\n".join(parts)


def _cost(program: PlanProgram, e: Explanation) -> Iterator[str]:
    step, first = e.timeline.expected, next(iter(e.findings), None)
    where = first.where if first else e.lines[0].where
    seconds = first.seconds if first else e.lines[0].seconds
    most = "at most " if first and first.at_most else ""
    yield (
        f"### {first.rule if first else 'Dearest line'}: {most}{format_seconds(seconds)} of a "
        f"step of {format_seconds(step)} on {program.compiled.slice}"
    )
    yield ""
    yield first.what if first else "No known fault: this line takes most of the step."
    yield ""
    share = f"{100 * seconds / step:.1f} % of the step"
    yield f"At `{seen(where)}`, {share} by a timeline of the program (no device was timed)."
    if op := _op(program.compiled.hlo, e, where):
        yield from ("", "```text", op, "```")
    if first:
        yield from ("", f"What may help: {first.remedy}")


def _op(hlo: str, e: Explanation, where: str) -> str:
    """The dearest op of a line, as the compiler writes it."""
    nodes = [node for node in e.graph.nodes if node.where == where]
    if not nodes:
        return ""
    name = max(nodes, key=lambda node: node.seconds).name
    found = re.search(rf"^ *(?:ROOT )?%?{re.escape(name)} = .*$", hlo, re.MULTILINE)
    return _REST.split(found[0].strip())[0][:LONGEST] if found else ""


def _versions(program: PlanProgram) -> Iterator[str]:
    named = [f"{name} {number}" for name, number in program.compiled.versions.items()]
    yield ""
    yield f"Versions: {', '.join([*named, f'Python {platform.python_version()}'])}."


def _script(program: PlanProgram, target: CompileTarget, args: str) -> Iterator[str]:
    function, mesh = program.phase, dict(program.compiled.mesh)
    sources = {text.partition(":")[0]: "" for text in (function, args)}
    for module in sources:
        sources[module] = _source(module)
    called, made = (text.partition(":")[2] for text in (function, args))
    asks = _asks_mesh(sources[args.partition(":")[0]], made)
    yield ""
    yield "It compiles ahead of time, so that no accelerator is needed:"
    futures, texts = _futures(sources.values())
    yield from ("", "```python", *futures, "import os", "")
    yield f"os.environ.update({dict(_environment(target, program.compiled.partitioned))!r})"
    yield from ("import jax", "import numpy as np", "from jax.experimental import topologies", "")
    yield from texts
    yield _devices(target, program.compiled.partitioned)
    words = {"shape": tuple(mesh.values()), "axes": tuple(mesh), "function": called}
    yield CALL.format(args=f"{made}({'mesh' if asks else ''})", **words).rstrip()
    yield "```"


def _futures(texts: Iterable[str]) -> tuple[list[str], list[str]]:
    """Lines that must stand first, and the texts without them."""
    lines = [text.splitlines() for text in texts]
    first = [line for each in lines for line in each if line.startswith("from __future__")]
    return list(dict.fromkeys(first)), ["\n".join(w for w in t if w not in first) for t in lines]


def _environment(target: CompileTarget, partitioned: bool) -> Mapping[str, str]:
    count = len(target.coordinates)
    flags = {"XLA_FLAGS": f"--xla_force_host_platform_device_count={count}"}
    return {"JAX_PLATFORMS": "cpu", **(flags if partitioned else environment(target))}


def _devices(target: CompileTarget, partitioned: bool) -> str:
    if partitioned:
        return "devices = dict(enumerate(jax.devices()))\norder = sorted(devices)"
    return (ON_TPU if target.platform == "tpu" else ON_GPU).format(
        topology=target.topology,
        options=dict(target.options),
        order=list(target.coordinates),
        axes=len(target.coordinates[0]) - 2,
        domain=target.domain,
    )


def _source(module: str) -> str:
    """The text of a module, or its import where that is long, or of an installed package."""
    root, *inner = module.split(".")
    path = Path(*([root, *inner[:-1]] if inner else []), f"{(inner or [root])[-1]}.py")
    if path.is_file():
        text = read_text(path, "the module")
        if len(text.splitlines()) <= LONGEST:
            return text
    elif PathFinder.find_spec(root) is None:
        raise BadRequest(f"--issue: there is no module '{module}' here; run in its folder")
    return f"from {module} import *  # not shown: too long, or of an installed package\n"


def _asks_mesh(source: str, name: str) -> bool:
    """Whether the function of the arguments takes the mesh."""
    functions = (node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef))
    made = next((f for f in functions if f.name == name), None)
    return made is None or bool(made.args.args or made.args.vararg)
