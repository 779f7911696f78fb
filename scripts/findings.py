"""The page of all rules of `shardwise explain`: docs/findings.md, made when the site is built.

A rule's cause is the docstring of its function, its number the expression that makes it; symptom,
cure and the two programs are the rows of tests/explain/corpus, whose kept texts are explained for
the figures. A new rule or row needs nothing here.
"""

import ast
import gzip
import inspect
import json
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from shardwise.hardware import parse_slice
from shardwise.profiler import explain
from shardwise.profiler.ahead import Buffer
from shardwise.profiler.explain import Explanation, explain_program
from shardwise.sharding import Mesh
from shardwise.units import format_seconds

ROOT = Path(__file__).resolve().parent.parent
CORPUS = ROOT / "tests/explain/corpus"
OLDER = ROOT / "tests/profiler/explain/data"
PROGRAMS = {CORPUS: CORPUS / "programs.py", OLDER: ROOT / "scripts/explain_programs.py"}
HEAD = """# What `explain` looks for

Every rule of `shardwise explain`: what it looks for, how its number is made, and the programs
that it is held to. A fault is a small JAX program with a mistake that somebody has reported. Its
twin is the same program cured. Both are compiled for the chips in the row, and the tests hold
the finding's seconds to what the cure saves. Seconds are per step and device.

The formulas are those of the code. There `per_step` are the seconds of an op, and `exposed` those
for which compute waits for it. `spent(row)` is what it takes from the step, `count` its runs per
step. `e.bandwidth` are the bytes per second of memory that a device reaches. A finding is told
from {worth:g} % of the step on, or where it frees memory. [Find why a JAX step is
slow](site/tasks/find_a_slow_step.md) shows it at work.
"""


@dataclass(frozen=True, kw_only=True)
class Written:
    """A rule as it is written: its name, its cause, and how seconds and bytes are made."""

    name: str
    cause: str
    seconds: str
    frees: str
    file: str


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A fault and its twin: where their texts lie, on what, and who reported it."""

    name: str
    folder: Path
    stem: str
    twin: str
    program: str
    row: Mapping[str, str]


# ---- the rules as written ------------------------------------------------------------------------


def written() -> list[Written]:
    """Every rule, in the order of the code."""
    found = [one for function in explain.RULES for one in _of(function)]
    return list({one.name: one for one in found}.values())


def _of(function: Any) -> Iterator[Written]:
    module = sys.modules[function.__module__]
    cause = " ".join((inspect.getdoc(function) or "").split("\n\n")[0].split())
    for caller, call in _findings(module, function.__name__, ()):
        given = {word.arg: word.value for word in call.keywords}
        for name in _names(given["rule"], caller):
            maker = caller[-1][0]
            yield Written(
                name=name,
                cause=cause,
                seconds=_made(given["seconds"], maker),
                frees=_made(given["frees"], maker) if "frees" in given else "",
                file=f"profiler/explain/{Path(str(module.__file__)).name}",
            )


def _made(number: ast.expr, function: ast.FunctionDef) -> str:
    """The expression of a number; of a bare name what the function gives it."""
    if isinstance(number, ast.Name):
        for node in ast.walk(function):
            pairs = _assigned(node) if isinstance(node, ast.Assign) else {}
            if number.id in pairs:
                return ast.unparse(pairs[number.id])
    return ast.unparse(number)


def _assigned(node: ast.Assign) -> dict[str, ast.expr]:
    """Names and what an assignment gives them."""
    target, value = node.targets[0], node.value
    if isinstance(target, ast.Name):
        return {target.id: value}
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        both = zip(target.elts, value.elts, strict=False)
        return {name.id: of for name, of in both if isinstance(name, ast.Name)}
    return {}


@cache
def _functions(module: ModuleType) -> dict[str, ast.FunctionDef]:
    tree = ast.parse(inspect.getsource(module))
    return {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}


Callers = tuple[tuple[ast.FunctionDef, ast.Call | None], ...]


def _findings(
    module: ModuleType, name: str, way: Callers, via: ast.Call | None = None
) -> Iterator[tuple[Callers, ast.Call]]:
    """The findings that a function makes, by itself or by functions of its file, with the way."""
    functions = _functions(module)
    here = (*way, (functions[name], via))
    for node in ast.walk(functions[name]):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
            continue
        if node.func.id == "Finding":
            yield here, node
        elif node.func.id in functions and node.func.id not in {f.name for f, _ in here}:
            yield from _findings(module, node.func.id, here, node)


def _names(rule: ast.expr, way: Callers) -> list[str]:
    """The names that an expression may be: constants, or those that a caller gives."""
    if isinstance(rule, ast.IfExp):
        return [*_names(rule.body, way), *_names(rule.orelse, way)]
    if isinstance(rule, ast.Constant):
        return [str(rule.value)]
    function, call = way[-1]
    if isinstance(rule, ast.Name) and call is not None:
        parameters = [a.arg for a in function.args.args]
        given = dict(zip(parameters, call.args, strict=False))
        given |= {word.arg: word.value for word in call.keywords if word.arg}
        if rule.id in given:
            return _names(given[rule.id], way[:-1])
    raise ValueError(f"the name of a rule is {ast.unparse(rule)}, which no caller says")


# ---- the corpus ----------------------------------------------------------------------------------


def pairs() -> dict[str, list[Pair]]:
    """The faults with their twins by rule: those that people reported, and where a rule has none
    those that were made for it."""
    rows = tomllib.loads((CORPUS / "corpus.toml").read_text(encoding="utf-8"))
    found: dict[str, list[Pair]] = {}
    for name, row in rows.items():
        if "rule" not in row:
            continue
        folder, stem = (OLDER, row["compiled"]) if "compiled" in row else (CORPUS / "data", name)
        twin = f"{stem}.{'clean' if folder == OLDER else 'twin'}"
        program = stem.partition(".")[0]
        pair = Pair(name=name, folder=folder, stem=stem, twin=twin, program=program, row=row)
        found.setdefault(row["rule"], []).append(pair)
    for name in dict.fromkeys(v["name"] for v in _index(OLDER).values() if v["faulty"]):
        pair = Pair(
            name=name,
            folder=OLDER,
            stem=f"{name}.a",
            twin=f"{name}.a.clean",
            program=name,
            row={},
        )
        first = explained(pair, "fault").findings[0].rule
        if first not in found:
            found[first] = [pair]
    return found


@cache
def _index(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "index.json").read_text(encoding="utf-8"))


def explained(pair: Pair, kind: str) -> Explanation:
    """The fault or the twin, explained from its kept text."""
    label = pair.twin if kind == "twin" else f"{pair.stem}.fault"
    kept = _index(pair.folder)[label]
    on, mesh = pair.row.get("on") or kept["on"], pair.row.get("mesh") or kept["mesh"]
    axes = Mesh.parse(mesh) if isinstance(mesh, str) else Mesh(tuple(mesh.items()))
    buffers = [Buffer(**b) for b in kept["buffers"]]
    with gzip.open(pair.folder / f"{label}.hlo.gz", "rt") as file:
        return explain_program(
            file.read(), parse_slice(on), axes, buffers=buffers, fits=kept["fits"]
        )


def _line(pair: Pair) -> str:
    """file:line of the program."""
    path = PROGRAMS[CORPUS if pair.folder == CORPUS / "data" else OLDER]
    marks = (f"def {pair.program}(", f'"{pair.program}"')
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if any(mark in line for mark in marks):
            return f"{path.relative_to(ROOT)}:{number}"
    return str(path.relative_to(ROOT))


# ---- the page ------------------------------------------------------------------------------------


def page() -> str:
    """docs/findings.md."""
    every, parts = pairs(), [HEAD.format(worth=100 * explain.WORTH)]
    parts += ["\n".join(_section(rule, every.get(rule.name, []))) for rule in written()]
    return "\n".join(parts)


def _section(rule: Written, of: Sequence[Pair]) -> Iterator[str]:
    yield f"\n## {rule.name[0].upper()}{rule.name[1:]}\n"
    yield f"{rule.cause}\n"
    frees = f", and frees `{rule.frees}` bytes" if rule.frees else ""
    yield f"It costs `{rule.seconds}` seconds{frees} (`{rule.file}`).\n"
    if not of:
        yield "No program of the corpus shows it yet.\n"
        return
    yield from _reports(of)
    fault = explained(of[0], "fault")
    for finding in [f for f in fault.findings if f.rule == rule.name][:1]:
        yield f"\nOf `{of[0].name}` it says\n\n```text\n{finding.what}\n  at {finding.where}"
        yield f"{finding.remedy}\n```"


def _reports(of: Sequence[Pair]) -> Iterator[str]:
    yield "| symptom | cure | programs | step | cured |"
    yield "|---|---|---|---|---|"
    for pair in of:
        steps = (explained(pair, kind).timeline.expected for kind in ("fault", "twin"))
        seen = pair.row.get("seen", "made for this rule")
        report = pair.row.get("report")
        symptom = f"[{seen}]({report})" if report else seen
        cells = [symptom, pair.row.get("cured", ""), f"`{_line(pair)}`"]
        cells = [cell.replace("|", "\\|") for cell in cells]
        yield f"| {' | '.join([*cells, *map(format_seconds, steps)])} |"


if __name__ == "__main__":
    print(page())
