"""Programs as text: the runnable JAX source of a program, in three styles. JAX is not imported.

| style | what it says |
|---|---|
| shard_map | every step by hand: what one device does, each collective named |
| jit | the products alone between the same input and output shardings; XLA chooses the rest |
| explicit | the products and reshards on a mesh of Explicit axes; every layout is in the types |

A file made here runs as it stands: `python file.py` takes virtual CPU devices, feeds whole numbers
in small shapes (`SMALL`, cut like the real `SHAPES`) and compares with the dense product. Imported,
it gives `make_mesh`, `inputs`, `dense` and one function `<style>_program(mesh)` per style, and sets
nothing.

An array that arrives unreduced, `A[I, J]{U_Z}`, is fed as its partial sums: a leading dim of size
|Z| that Z cuts, one partial sum per device; a result left unreduced comes back in the same form.
Plain `jit` has no word for {U}: there it adds the parts up first, and returns the reduced array.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from keyword import iskeyword
from math import prod
from pathlib import Path
from typing import Literal, get_args

from shardwise.errors import BadRequest, check_known
from shardwise.sharding.layout import Layout
from shardwise.sharding.local import Sizes, global_shape
from shardwise.sharding.lowering import lowered, permutation, small_sizes
from shardwise.sharding.mesh import Mesh
from shardwise.sharding.steps import Program, ShardStep

Style = Literal["shard_map", "jit", "explicit"]
JAX_DTYPES = {
    "f32": "float32",
    "bf16": "bfloat16",
    "f16": "float16",
    "int8": "int8",
}
LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


def program_source(program: Program, styles: Sequence[Style] = ("shard_map", "jit")) -> str:
    """Python source of the program in one or more styles; explicit stands alone.

    Raises BadRequest for an unknown style, for a mix with `explicit` (its mesh differs) and for a
    dtype that JAX cannot run on every device.
    """
    for style in styles:
        check_known("style", style, get_args(Style))
    if "explicit" in styles and len(styles) > 1:
        raise BadRequest("style 'explicit' needs Explicit axes; write it to a separate file")
    for step in program.steps:
        if step.kind in ("map", "reshape"):
            rule = "only products and communication can be written as source"
            raise BadRequest(f"step '{step}' is of kind '{step.kind}'; {rule}")
    check_known("dtype of a JAX program", program.dtype, JAX_DTYPES)
    if not program.steps:
        rule = "a program needs at least one step, so ask for another layout"
        raise BadRequest(f"no step multiplies or moves anything; {rule}")
    writer = _Writer(lowered(program))
    write = {"shard_map": writer.shard_map, "jit": writer.jit, "explicit": writer.explicit}
    parts = [writer.head(styles), *(write[style]() for style in styles), writer.tail(styles)]
    return "\n\n\n".join(parts) + "\n"


def unsaid_source(program: Program) -> str:
    """The explicit program without `out_sharding` at its products: what JAX's types then refuse is
    a product whose result could lie in several ways. Raises BadRequest as `program_source`."""
    source = program_source(program, ("explicit",))
    for step in lowered(program).steps:
        if step.kind == "einsum":
            source = source.replace(f", out_sharding={_typed(step.output)})", ")")
    return source


def program_inputs(program: Program) -> tuple[Layout, ...]:
    """The layouts that a program reads before any of its steps makes them, in order."""
    made: set[str] = set()
    found: dict[str, Layout] = {}
    for step in program.steps:
        for layout in step.inputs:
            if str(layout) not in made:
                found.setdefault(str(layout), layout)
        made.add(str(step.output))
    return tuple(found.values())


def spec_text(layout: Layout, *, stacked: bool = True) -> str:
    """`P(...)` of a layout; stacked: its partial sums are a leading dim.

    >>> spec_text(Layout.parse("A[I_XY, J]{U_Z}"))
    'P("Z", ("X", "Y"), None)'
    >>> spec_text(Layout.parse("A[I_X]{U_Z}"), stacked=False)
    'P("X")'
    """
    lead = (layout.unreduced[0],) if len(layout.unreduced) == 1 else (layout.unreduced,)
    entries = (*(lead if layout.unreduced and stacked else ()), *layout.spec())
    return f"P({', '.join(map(_quoted, entries))})"


@dataclass(slots=True)
class _Names:
    """Python names for arrays: one per layout, `A`, then `A_2` for its next form."""

    taken: dict[str, str]

    def of(self, layout: Layout) -> str:
        return self.taken[str(layout)]

    def new(self, layout: Layout) -> str:
        base = layout.name.replace("'", "_prime") or "x"
        base += "_" if base in _OWN_NAMES or iskeyword(base) else ""
        name, count = base, 2
        while name in self.taken.values():
            name, count = f"{base}_{count}", count + 1
        self.taken[str(layout)] = name
        return name


_OWN_NAMES = frozenset({"jax", "jnp", "lax", "np", "os", "P", "mesh"})


class _Writer:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.mesh: Mesh = program.mesh
        self.inputs = program_inputs(program)
        self.output = program.output
        names = [dim for step in program.steps for x in step.inputs for dim in x.letters]
        self.letters = _letters(names)

    def names(self) -> tuple[_Names, list[str]]:
        names = _Names({})
        return names, [names.new(layout) for layout in self.inputs]

    def head(self, styles: Sequence[Style]) -> str:
        kind = "Explicit" if "explicit" in styles else "Auto"
        shape, axes = tuple(self.mesh.values()), tuple(self.mesh)
        return _frame("head").format(
            title=f"{self.output} from {', '.join(map(str, self.inputs))}",
            mesh=self.mesh,
            styles=" and ".join(styles),
            devices=self.mesh.size,
            lax="from jax import lax\n" if "shard_map" in styles else "",
            shape=shape,
            axes=_quoted(axes),
            kind=kind,
            degree=len(axes),
            dtype=JAX_DTYPES[self.program.dtype],
            shapes=self.shapes(self.program.sizes),
            small=self.small(),
            specs=_tuple([spec_text(layout) for layout in self.inputs]),
            out=spec_text(self.output),
        )

    def small(self) -> str:
        small = small_sizes(self.program)
        if all(small[dim] == self.program.sizes[dim] for dim in small):
            return "SMALL = SHAPES"
        return (
            f"SMALL = (  # the same blocks, small enough to run anywhere\n{self.shapes(small)}\n)"
        )

    def shapes(self, sizes: Sizes) -> str:
        rows = []
        for layout in self.inputs:
            parts = prod(self.mesh[axis] for axis in layout.unreduced)
            lead = (parts,) if layout.unreduced else ()
            rows.append(f"    {(*lead, *global_shape(layout, sizes))},  # {layout}")
        return "\n".join(rows)

    def equation(self, step: ShardStep) -> str:
        """`ij,jk->ik`: one letter per dim."""
        terms = ["".join(self.letters[dim] for dim in x.letters) for x in step.inputs]
        return f"{','.join(terms)}->{''.join(self.letters[d] for d in step.output.letters)}"

    def shard_map(self) -> str:
        names, arguments = self.names()
        body = []
        for layout, name in zip(self.inputs, arguments, strict=True):
            if layout.unreduced:
                body.append(f"{name} = {name}[0]  # this device's partial sum: {layout}")
        for step in self.program.steps:
            body += self.by_hand(step, names)
        result = names.of(self.output) + ("[None]" if self.output.unreduced else "")
        body.append(f"return {result}")
        check = "" if self.proves_copies() else ", check_vma=False"
        return _frame("shard_map").format(
            arguments=", ".join(arguments), body=_indent(body, 8), check=check
        )

    def by_hand(self, step: ShardStep, names: _Names) -> list[str]:
        """One step of one device, with the notation above it."""
        sources = [names.of(layout) for layout in step.inputs]
        target = names.new(step.output)
        source = sources[0]
        over = _quoted(step.axes[0] if len(step.axes) == 1 else step.axes)
        dims = step.inputs[0].letters
        at = dims.index(step.dim) if step.dim else 0
        lines = [f"# {step}"]
        match step.kind:
            case "einsum":
                lines.append(
                    f'{target} = jnp.einsum("{self.equation(step)}", {", ".join(sources)})'
                )
            case "all_gather":
                kept = f"axis={at}, tiled=True"
                # Unchecked, JAX would drop the sum over copies from the gradient.
                kept += ', to="invarying"' if self.proves_copies() else ""
                lines.append(f"{target} = lax.all_gather({source}, {over}, {kept})")
            case "all_reduce":
                lines.append(f"{target} = lax.psum({source}, {over})")
            case "reduce_scatter":
                where = f"scatter_dimension={at}, tiled=True"
                lines.append(f"{target} = lax.psum_scatter({source}, {over}, {where})")
            case "all_to_all":
                to = dims.index(step.to_dim)
                where = f"split_axis={to}, concat_axis={at}, tiled=True"
                lines.append(f"{target} = lax.all_to_all({source}, {over}, {where})")
            case "permute":
                pairs = list(permutation(step, self.mesh))
                lines.append(f"{target} = lax.ppermute({source}, {over}, {pairs})")
            case "slice":
                lines += self.sliced(step, source, target, over, at)
        return lines

    def sliced(self, step: ShardStep, source: str, target: str, over: str, at: int) -> list[str]:
        parts = prod(self.mesh[axis] for axis in step.axes)
        if parts == 1:
            return [f"{target} = {source}"]
        length = f"{source}.shape[{at}] // {parts}"
        start = f"lax.axis_index({over}) * ({length})"
        return [f"{target} = lax.dynamic_slice_in_dim({source}, {start}, {length}, {at})"]

    def proves_copies(self) -> bool:
        """Whether JAX can see that every copy is one: a permute hides it if the axes change."""
        varying: dict[str, set[str]] = {}
        for layout in self.inputs:
            varying[str(layout)] = {*layout.axes, *layout.unreduced}
        for step in self.program.steps:
            seen = set().union(*(varying[str(layout)] for layout in step.inputs))
            if step.kind in ("all_gather", "all_reduce"):
                seen -= set(step.axes)
            else:
                seen |= set(step.axes)
            varying[str(step.output)] = seen
            if seen != {*step.output.axes, *step.output.unreduced}:
                return False
        return True

    def jit(self) -> str:
        names, arguments = self.names()
        body = self.whole(names, arguments, "jnp")
        reduced = spec_text(self.output, stacked=False)
        return _frame("jit").format(
            arguments=", ".join(arguments), body=_indent(body, 8), out=reduced
        )

    def whole(self, names: _Names, arguments: list[str], module: str) -> list[str]:
        """The products alone, on whole arrays; a step that only moves blocks changes nothing."""
        body = []
        for layout, name in zip(self.inputs, arguments, strict=True):
            if layout.unreduced:
                body.append(f"{name} = {name}.sum(0)  # the partial sums of {layout}")
        for step in self.program.steps:
            sources = [names.of(layout) for layout in step.inputs]
            if step.kind == "einsum":
                target = names.new(step.output)
                quick = ", optimize=True" if module == "np" else ""
                call = f'{module}.einsum("{self.equation(step)}", {", ".join(sources)}{quick})'
                body.append(f"{target} = {call}")
            else:
                names.taken[str(step.output)] = sources[0]
        return [*body, f"return {names.of(self.output)}"]

    def explicit(self) -> str:
        names, arguments = self.names()
        body: list[str] = []
        stacked = {str(layout) for layout in self.inputs if layout.unreduced}
        for step in self.program.steps:
            body.append(f"# {step}")
            if step.kind == "einsum" and any(x.unreduced for x in step.inputs):
                body += self.of_parts(step, names, stacked)
                continue
            for layout in step.inputs:
                if str(layout) in stacked:
                    body.append(self.typed_parts(layout, names))
                    stacked.remove(str(layout))
            sources = ", ".join(names.of(layout) for layout in step.inputs)
            target, typed = names.new(step.output), _typed(step.output)
            if step.kind == "einsum":
                call = f'"{self.equation(step)}", {sources}'
                body.append(f"{target} = jnp.einsum({call}, out_sharding={typed})")
            else:
                body.append(f"{target} = jax.reshard({sources}, {typed})")
        body.append(f"return {names.of(self.output)}")
        return _frame("explicit").format(arguments=", ".join(arguments), body=_indent(body, 8))

    def typed_parts(self, layout: Layout, names: _Names) -> str:
        """The partial sums of an input as an array whose type says so; nothing is added up yet."""
        name = names.of(layout)
        letters = "".join(self.letters[d] for d in layout.letters)
        lead = next(x for x in LETTERS if x not in self.letters.values())
        form = f'"{lead}{letters}->{letters}"'
        return f"{name} = jnp.einsum({form}, {name}, out_sharding={_typed(layout)})"

    def of_parts(self, step: ShardStep, names: _Names, stacked: set[str]) -> list[str]:
        """A product with partial sums: JAX's types refuse it, so each device multiplies its own."""
        for layout in step.inputs:
            if layout.unreduced and str(layout) not in stacked:
                remedy = "reduce it before the product, or use style shard_map"
                problem = f"style 'explicit' cannot multiply the unreduced '{layout}'"
                raise BadRequest(f"{problem}: JAX refuses partial sums there; {remedy}")
        sources = [names.of(layout) for layout in step.inputs]
        own = [f"{n}[0]" if x.unreduced else n for n, x in zip(sources, step.inputs, strict=True)]
        arguments, specs = ", ".join(sources), _tuple([spec_text(x) for x in step.inputs])
        product = f'lambda {arguments}: jnp.einsum("{self.equation(step)}", {", ".join(own)})'
        target = names.new(step.output)
        return [
            f"{target} = jax.shard_map(",
            f"    {product},",
            f"    in_specs={specs},",
            f"    out_specs={_typed(step.output)},",
            f")({arguments})",
        ]

    def tail(self, styles: Sequence[Style]) -> str:
        names, arguments = self.names()
        dense = self.whole(names, arguments, "np")
        lines = [_check_text(style, self.output) for style in styles]
        return _frame("tail").format(
            arguments=", ".join(arguments), dense=_indent(dense, 4), checks="\n".join(lines)
        )


def _check_text(style: Style, output: Layout) -> str:
    """How `main` runs one style and turns its result into the whole, reduced array."""
    lines = [f"result = {style}_program(mesh)(*arrays)"]
    whole = "np.asarray(result)"
    if output.unreduced and style == "shard_map":
        whole += ".astype(np.float64).sum(0)"
    if output.unreduced and style == "explicit":
        reduced = f"NamedSharding(mesh, {spec_text(output, stacked=False)})"
        lines.append(f"result = jax.jit(lambda x: jax.reshard(x, {reduced}))(result)")
    lines.append(f'compare("{style}", {whole}, want)')
    return _indent(lines, 4)


def _typed(layout: Layout) -> str:
    """The spec of an Explicit array, whose type knows about partial sums."""
    text = spec_text(layout, stacked=False)
    if layout.unreduced:
        text = f"{text[:-1]}, unreduced={{{', '.join(map(_quoted, layout.unreduced))}}})"
    return text


def _quoted(value: object) -> str:
    """Python text with double quotes; axis names hold neither kind."""
    return repr(value).replace("'", '"')


def _letters(dims: Sequence[str]) -> dict[str, str]:
    """A letter for every dim: its own where it is one, in lower case where that is free."""
    letters: dict[str, str] = {}
    for dim in dict.fromkeys(dims):
        choices = [dim.lower(), dim] if len(dim) == 1 else [dim[0].lower()]
        free = (x for x in (*choices, *LETTERS) if x not in letters.values())
        letters[dim] = next(free)
    return letters


def _tuple(items: Sequence[str]) -> str:
    return f"({', '.join(items)}{',' if len(items) == 1 else ''})"


def _indent(lines: Sequence[str], width: int) -> str:
    return "\n".join(" " * width + line for line in lines)


def _frame(name: str) -> str:
    """What stays the same in every written program, a file of `data/`."""
    return (Path(__file__).parent / "data" / f"{name}.txt").read_text("utf-8").removesuffix("\n")
