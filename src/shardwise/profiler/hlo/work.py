"""A compiled module as Work: every instruction that does something, in the order it is scheduled.

`module_work` walks the entry and what it calls. A fusion is one op, a loop a nested block with its
trip count, a conditional its branch with the most to do. What a start begins runs on a stream of
its own ("copy", "host", "net:<axes>") until its done. No op is dropped: one without a rule is of
class "unknown". Seconds are not read here, `profiler/timeline.py` makes them.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod

from shardwise.errors import BadRequest
from shardwise.models.components import CORE
from shardwise.plans.layouts import BATCH_AXES
from shardwise.profiler.hlo.collectives import (
    CompiledCollective,
    chain_part,
    collective_of,
    done_of,
    fused_collectives,
    read_collectives,
    sent_collective,
)
from shardwise.profiler.hlo.flops import (
    matmul_dtype,
    matmul_flops,
    matmul_of,
    multiplies,
    passes,
    vector_flops,
)
from shardwise.profiler.hlo.groups import mesh_axes, recover_mesh, ring_step, sends_of
from shardwise.profiler.hlo.kernels import attention_of, stated_flops
from shardwise.profiler.hlo.loops import rounds, trip_counts
from shardwise.profiler.hlo.rules import CALLS, FREE_CALLS, rule
from shardwise.profiler.hlo.scopes import component_in, phase_of, scope_of
from shardwise.profiler.hlo.shapes import arrays
from shardwise.profiler.hlo.sources import Source
from shardwise.profiler.hlo.text import Computation, Instruction, Module
from shardwise.profiler.hlo.traffic import Traffic, traffic
from shardwise.profiler.hlo.transfers import slices_of
from shardwise.sharding.mesh import Mesh
from shardwise.units import many
from shardwise.work import Collective, Op, OpClass, Work, tally


@dataclass(frozen=True, slots=True, kw_only=True)
class HloOp:
    """One instruction of a compiled program, per run.

    `op` counts it: FLOPs of matmuls by the dtype of their operands, HBM bytes with tiles filled up
    (`padding` of them only fill), the product of most FLOPs as `matmul`, runs per step as `count`.
    `chip_bytes` move in VMEM and cost no HBM. `vector_flops` are elementwise. `cycles` is the
    compiler's estimate or None. `passes` is how often a float32 product is multiplied in bf16.
    `asynchronous`: it runs until a `Wait`. `step` is how many places along its axis a permute
    moves, 0 where that is not one number. `counted` is False inside a loop whose end data decides,
    which counts once. `note` says why an op is unknown.
    """

    op: Op
    opcode: str
    computation: str
    scope: str = ""
    op_name: str = ""
    sources: tuple[Source, ...] = ()
    cycles: float | None = None
    chip_bytes: float = 0.0
    padding: float = 0.0
    vector_flops: float = 0.0
    passes: int = 1
    asynchronous: bool = False
    step: int = 0
    counted: bool = True
    whole_axes: bool = True
    note: str = ""

    @property
    def name(self) -> str:
        """The instruction's name."""
        return self.op.name


@dataclass(frozen=True, slots=True)
class Wait:
    """The compute stream waits until the asynchronous op of this id has finished."""

    id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Nested:
    """A block that runs `times` times: a loop's body, or a branch or a called computation once."""

    name: str
    times: int
    counted: bool
    block: "Block"


Item = HloOp | Wait | Nested
Block = tuple[Item, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class HloWork:
    """A program of one device: its schedule as a block, the mesh its collectives run over."""

    name: str
    devices: int
    mesh: Mesh
    block: Block

    @property
    def ops(self) -> tuple[HloOp, ...]:
        """Every op in program order, loops' bodies in place; `op.count` is its runs per step."""
        return tuple(_flat(self.block))

    @property
    def work(self) -> Work:
        """The counting alone, as all of shardwise knows it."""
        return Work(tuple(item.op for item in self.ops))

    def unknown(self) -> tuple[HloOp, ...]:
        """Ops without a rule: reported, never priced as zero."""
        return tuple(item for item in self.ops if item.op.op_class == "unknown")


def module_work(module: Module, mesh: Mesh | None = None) -> HloWork:
    """Count a scheduled module.

    `mesh` names the axes of collectives, its devices in the order of the partition ids; without it
    the axes are recovered from the groups and named a0, a1, ... Raises BadRequest for a mesh of
    another number of devices.
    """
    devices = module.devices * slices_of(module)
    if mesh is None:
        groups = {c.groups for c in read_collectives(_known(module)) if c.kind != "permute"}
        mesh = recover_mesh(sorted(groups), devices)
    elif mesh.size != devices:
        raise BadRequest(
            f"the program runs on {many(devices, 'device')} and mesh {mesh} has {mesh.size}; give "
            "the mesh that it was compiled for"
        )
    reader = _ModuleReader(module=module, mesh=mesh)
    block = tuple(reader.block(module.entry, 1.0, True, ""))
    return HloWork(name=module.name, devices=devices, mesh=mesh, block=block)


def _known(module: Module) -> Module:
    """The module without the collectives that have no rule, which the work lists as unknown."""
    kept = {
        name: Computation(
            name=name,
            instructions=tuple(
                i for i in c.instructions if not i.opcode.startswith("collective-broadcast")
            ),
        )
        for name, c in module.computations.items()
    }
    return replace(module, computations=kept)


def _flat(block: Block) -> Iterator[HloOp]:
    for item in block:
        if isinstance(item, HloOp):
            yield item
        elif isinstance(item, Nested):
            yield from _flat(item.block)


@dataclass
class _ModuleReader:
    """The walk: what is the same for every computation of a module, and the ids given so far."""

    module: Module
    mesh: Mesh
    given: dict[str, int] = field(default_factory=dict)

    @cached_property
    def trips(self) -> Mapping[tuple[str, str], int | None]:
        return trip_counts(self.module)

    def block(self, name: str, count: float, counted: bool, body: str) -> Iterator[Item]:
        """The items of one computation; `body` is the path of loops around it."""
        computation = self.module.computation(name)
        makers: dict[str, tuple[str, ...]] = {}  # a value -> ids of the ops that make it
        begun: dict[str, list[str]] = {}  # a done -> ids of what it ends
        held: tuple[str, ...] = ()  # a synchronous collective, for which all others wait
        for instruction in computation.instructions:
            yield from (Wait(id) for id in begun.pop(instruction.name, ()))
            given = [makers[o] for o in instruction.operands if makers.get(o)]
            # Views hand on what they were given; programs have long chains of them.
            after = given[0] if len(given) == 1 else [i for ids in given for i in ids]
            made: list[str] = []
            for item in self.items(computation, instruction, count, counted, body):
                if not isinstance(item, HloOp):
                    yield item
                    continue
                waits = tuple(dict.fromkeys([*after, *held, *made]))
                op = replace(item.op, after=waits)
                yield replace(item, op=op)
                made.append(op.id)
                if item.asynchronous:
                    begun.setdefault(self.done(computation, instruction), []).append(op.id)
                else:
                    held = () if op.stream == "compute" else (op.id,)
            makers[instruction.name] = tuple(made) or _once(after)

    def done(self, computation: Computation, start: Instruction) -> str:
        """The instruction that waits for what `start` began."""
        if start.opcode == "send":
            sent = sent_collective(self.module, computation, start)
            if sent is not None:
                return sent.done
        if start.opcode in ("send", "recv"):
            ends = computation.readers(start.name)
            return next((i.name for i in ends if i.opcode.endswith("-done")), start.name)
        return done_of(self.module, computation, start)

    def items(
        self, computation: Computation, found: Instruction, count: float, counted: bool, body: str
    ) -> Iterator[Item]:
        """What one instruction adds to its block: nothing, ops, or a nested block."""
        kind = rule(found.opcode)
        if kind in ("free", "done") or found.target in FREE_CALLS:
            return
        if kind == "nested" and found.opcode != "fusion":
            yield self.nested(computation, found, count, counted, body)
            return
        make = _Maker(self, computation, found, count, counted, body)
        if kind == "collective":
            yield make.collective(collective_of(self.module, computation, found))
        elif kind == "transfer":
            yield from make.transfer()
        elif found.opcode == "fusion":
            yield from make.fusion()
        elif found.opcode == "async-start":
            inner = fused_collectives(self.module, computation, found)
            yield from (make.collective(c) for c in inner) if inner else (make.copy(),)
        elif found.opcode == "copy-start":
            yield make.copy()
        else:
            yield make.plain()

    def nested(
        self, computation: Computation, found: Instruction, count: float, counted: bool, body: str
    ) -> Nested:
        inside = f"{body}/{found.name}" if body else found.name
        if found.opcode == "while":
            times = self.trips[computation.name, found.name]
            runs = rounds(self.module, found, count, times)
            known = counted and times is not None
            parts = (found.attribute("condition"), found.attribute("body"))
            block = tuple(
                item for part in parts for item in self.block(part.lstrip("%"), runs, known, inside)
            )
            once = 1 if times is None else times
            return Nested(name=found.name, times=once, counted=times is not None, block=block)
        ids, blocks = dict(self.given), []
        for name in found.called:
            self.given = dict(ids)
            blocks.append((tuple(self.block(name, count, counted, inside)), self.given))
        block, self.given = max(blocks, key=lambda pair: _amount(pair[0]), default=((), ids))
        return Nested(name=found.name, times=1, counted=True, block=block)

    def id_of(self, name: str) -> str:
        """The instruction's name, with a number where a computation is called twice."""
        self.given[name] = self.given.get(name, 0) + 1
        return name if self.given[name] == 1 else f"{name}#{self.given[name]}"


def _once(ids: Sequence[str]) -> tuple[str, ...]:
    """Ids without repetition, in order."""
    return ids if isinstance(ids, tuple) else tuple(dict.fromkeys(ids))


def _amount(block: Block) -> tuple[float, float]:
    work = Work(tuple(item.op for item in _flat(block)))
    return float(work.flops()), float(work.hbm_bytes()) + float(work.collective_bytes())


@dataclass(frozen=True, slots=True)
class _Maker:
    """Makes the ops of one instruction."""

    reader: _ModuleReader
    computation: Computation
    found: Instruction
    count: float
    counted: bool
    body: str

    def op(self, op_class: OpClass, moved: Traffic, stream: str = "compute", **more) -> HloOp:
        """An op of this instruction; `more` are fields of Op, or of HloOp where Op has none."""
        found = self.found
        name = more.pop("op_name", found.op_name)
        own = {key: more.pop(key) for key in list(more) if key in HloOp.__slots__}
        op = Op(
            id=self.reader.id_of(found.name),
            name=found.name,
            phase=phase_of(name),
            component=more.pop("component", component_in(name)),
            op_class=op_class,
            hbm_bytes=moved.main,
            host_bytes=moved.host,
            count=self.count,
            stream=stream,
            body=self.body,
            **more,
        )
        return HloOp(
            op=op,
            opcode=found.opcode,
            computation=self.computation.name,
            scope=scope_of(name),
            op_name=name,
            sources=self.reader.module.sources(found),
            cycles=found.cycles,
            chip_bytes=moved.chip,
            padding=moved.padding,
            counted=self.counted,
            **own,
        )

    def moved(self) -> Traffic:
        return traffic(self.reader.module, self.computation, self.found)

    def collective(self, collective: CompiledCollective) -> HloOp:
        axes, whole = mesh_axes(collective.groups, self.reader.mesh)
        permute, ragged = collective.kind == "permute", "ragged" in collective.kind
        size = float(prod(self.reader.mesh[axis] for axis in axes))
        name = collective.op_name or self.found.op_name
        wire = Collective(
            kind=collective.kind,
            axes=axes,
            bytes=collective.bytes,
            # Every destination may be reached; the text does not say how many are.
            fan_out=size if ragged else None,
            exchange=sends_of(collective.groups, axes, self.reader.mesh) if permute else None,
        )
        return self.op(
            "collective",
            Traffic(),
            stream="net:" + ",".join(axes),
            collective=wire,
            op_name=name,
            component="gradients" if _sums_over_tokens(wire, name) else component_in(name),
            asynchronous=collective.asynchronous,
            step=ring_step(collective.groups, self.reader.mesh) if permute else 0,
            whole_axes=whole or permute,
        )

    def copy(self) -> HloOp:
        moved = self.moved()
        stream = "host" if moved.host else "copy"
        return self.op("copy", moved, stream=stream, asynchronous=True)

    def transfer(self) -> Iterator[HloOp]:
        module = self.reader.module
        if self.found.opcode == "send":
            sent = sent_collective(module, self.computation, self.found)
            if sent is not None:
                yield self.collective(sent)
                return
        elif self.found.opcode == "recv" and _megascale(self.found):
            return  # the other end of a send, which is priced
        moved = self.moved()
        size = max(moved.main + moved.chip, moved.host)
        yield self.op("copy", replace(moved, host=size), stream="host", asynchronous=True)

    def fusion(self) -> Iterator[HloOp]:
        """The collectives that it runs or starts, then whatever else it does."""
        module = self.reader.module
        part = chain_part(module, self.found)
        inner = fused_collectives(module, self.computation, self.found)
        products = _products(module, self.found)
        if products or (not inner and part not in ("start", "done")):
            yield self.plain(products)
        yield from (self.collective(collective) for collective in inner)

    def plain(self, products: list[tuple[Computation, Instruction]] | None = None) -> HloOp:
        module, found = self.reader.module, self.found
        if products is None:
            products = [(self.computation, found)] if multiplies(found) else []
        matmuls = [matmul_of(where, product) for where, product in products]
        dtypes = (matmul_dtype(where, product) for where, product in products)
        flops = tally(zip(dtypes, map(matmul_flops, matmuls), strict=True))
        attention = attention_of(self.computation, found)
        stated = attention.flops if attention else stated_flops(found)
        if stated:
            flops = {_widest(self.computation, found): stated}
        op_class, note = _class(module, found, bool(products), bool(stated))
        if attention or (products and component_in(found.op_name) == CORE):
            op_class = "attention"
        return self.op(
            op_class,
            self.moved(),
            flops=flops,
            matmul=max(matmuls, key=matmul_flops, default=None),
            head_dims=attention.head_dims if attention else (),
            vector_flops=vector_flops(module, self.computation, found),
            passes=max((passes(product) for _, product in products), default=1),
            note=note,
        )


def _sums_over_tokens(wire: Collective, op_name: str) -> bool:
    """Whether devices with tokens of their own add something up in a backward pass: gradients of
    parameters, whichever product's scope the compiler does it in. In attention's core it is those
    of keys and values that were gathered."""
    if phase_of(op_name) != "backward" or component_in(op_name) == CORE:
        return False
    sums = wire.kind in ("all_reduce", "reduce_scatter")
    return sums and bool(wire.axes) and {*wire.axes} <= {*BATCH_AXES, "context"}


def _megascale(instruction: Instruction) -> bool:
    return "_xla_megascale_transfer_type" in instruction.attribute("frontend_attributes")


def _products(module: Module, fusion: Instruction) -> list[tuple[Computation, Instruction]]:
    found = []
    for name in fusion.called:
        inside = module.computation(name)
        for instruction in inside.instructions:
            if multiplies(instruction):
                found.append((inside, instruction))
            elif instruction.opcode == "fusion":
                found += _products(module, instruction)
    return found


def _widest(computation: Computation, call: Instruction) -> str:
    given = [a for name in call.operands for a in arrays(computation.shape_of(name))]
    floats = {a.dtype for a in given} & {"bf16", "f16", "f32"}
    return "f32" if floats == {"f32"} else "bf16"


_MOVING = frozenset({"movement", "free", "nested"})


def _class(module: Module, found: Instruction, products: bool, stated: bool) -> tuple[OpClass, str]:
    """The class of an op, and for one without a rule why."""
    kind = CALLS.get(found.target, rule(found.opcode))
    if kind == "unknown":
        return "unknown", f"no rule for '{found.opcode}'"
    if kind == "custom":
        if stated or products:
            return "matmul", ""
        return "unknown", f"custom call '{found.target}' says nothing of its FLOPs"
    if products:
        return "matmul", ""
    inside = [
        i
        for name in (found.called if found.opcode == "fusion" else ())
        for computation in module.reached(name)
        for i in computation.instructions
    ] or [found]
    strange = [i for i in inside if rule(i.opcode) == "unknown"]
    if strange:
        return "unknown", f"no rule for '{strange[0].opcode}'"
    kinds = {CALLS.get(i.target, rule(i.opcode)) for i in inside}
    if "gather" in kinds:
        return "gather", ""
    return ("copy", "") if kinds <= _MOVING else ("elementwise", "")
