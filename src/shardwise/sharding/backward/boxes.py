"""The book's algorithm boxes: numbered forward and backward steps with remarks (book 5.1)."""

from collections.abc import Sequence
from types import MappingProxyType

from shardwise.sharding.backward.analyse import Note, analyse
from shardwise.sharding.backward.derive import Derivation, derive, gradient_layout
from shardwise.sharding.backward.infer import forward_of
from shardwise.sharding.layout import Layout
from shardwise.sharding.local import Sizes
from shardwise.sharding.mesh import Mesh
from shardwise.sharding.notation import print_axes
from shardwise.sharding.steps import ShardStep

_NO_SIZES: Sizes = MappingProxyType({})


def backward_boxes(
    expr: str,
    mesh: Mesh,
    storage: Sequence[str] = (),
    inputs: Sequence[str] = (),
    sizes: Sizes = _NO_SIZES,
) -> str:
    """The boxes of a chain in the book's form, as `shardwise shard ... --backward` prints them.

    `expr` is one chain `In[B_X, D] * W_in[D_X, F] * W_out[F, D_X] -> Out[B_X, D]`, or lines
    separated by `;` (see `forward.py`). All arrays but the first and those in `inputs` are
    parameters, stored as written; `storage` lays out gradients (`dW_in[D, F]`) and optimizer state
    (`mW_in[D_X, F]`) that are stored otherwise. Sizes matter to reshapes only.

    >>> print(backward_boxes("In[B_X, D] * W[D_X, F] -> Out[B_X, F]", Mesh.parse("X=4")))
    Forward: need to compute Loss[B_X]
      1. W[D, F] = AllGather_X(W[D_X, F])  (not on critical path, can be done ahead of time)
      2. Out[B_X, F] = In[B_X, D] *_D W[D, F]  (can throw away W[D, F] now)
      3. Loss[B_X] = ...
    Backward: need to compute dW[D_X, F], dIn[B_X, D]
      1. dOut[B_X, F] = ...
      2. dW[D, F]{U_X} = In[B_X, D] *_B dOut[B_X, F]
      3. dW[D_X, F] = ReduceScatter_X(dW[D, F]{U_X})  (not on critical path, can be done async)
      4. W[D, F] = AllGather_X(W[D_X, F])  (not on critical path, can be done ahead of time)
      5. dIn[B_X, D] = dOut[B_X, F] *_F W[D, F]  (needed for previous layers; \
can throw away W[D, F] now)
    Saved for backward: In[B_X, D]
    """
    return boxes(derive(forward_of(expr, storage, inputs), mesh, sizes))


def boxes(derivation: Derivation) -> str:
    """All steps of a derivation as text; the update only where it communicates."""
    source = derivation.source
    names = (*reversed(source.storage), *source.inputs)
    gradients = [gradient_layout(source, name) for name in names]
    lines = [f"Forward: need to compute {_loss(derivation)}"]
    lines += _numbered([*forward_lines(derivation), f"{_loss(derivation)} = ..."])
    lines.append(f"Backward: need to compute {', '.join(map(str, gradients))}")
    lines += _numbered(backward_lines(derivation))
    if any(step.communicates for step in derivation.update):
        lines.append("Update: need to compute " + ", ".join(map(str, _parameters(derivation))))
        lines += _numbered([step_text(step) for step in derivation.update])
    lines.append("Saved for backward: " + ", ".join(map(str, derivation.saved)))
    return "\n".join(lines)


def forward_lines(derivation: Derivation) -> list[str]:
    """The forward's steps with remarks, without the loss."""
    return [_line(note) for note in analyse(derivation, "forward")]


def backward_lines(derivation: Derivation) -> list[str]:
    """The backward's steps with remarks, after the gradients that the next layer gives."""
    source = derivation.source
    given = [f"{gradient_layout(source, name)} = ..." for name in source.outputs]
    wanted = {gradient_layout(source, name).name for name in source.inputs}
    return given + [_line(note, wanted) for note in analyse(derivation, "backward")]


def step_text(step: ShardStep) -> str:
    """One step in the book's notation, such as `Tmp[B_X, F] = In[B_X, D] *_D W_in[D, F]`."""
    if step.kind == "einsum":
        return f"{step.output} = {_product(step)}"
    arguments = ", ".join(map(str, step.inputs))
    if step.kind in ("map", "reshape"):
        along = f"_{step.dim}" if step.dim else ""
        return f"{step.output} = {step.title}{along}({arguments})"
    over = print_axes(step.axes)
    if step.kind == "all_to_all":
        over = f"_{{{over.strip('_{}')}->{step.to_dim}}}"
    return f"{step.output} = {step.title}{over}({arguments})"


def remarks(note: Note, wanted: frozenset[str] | set[str] = frozenset()) -> list[str]:
    """What the book writes behind a step; `wanted` names the gradients of the layer's inputs."""
    found = []
    step = note.step
    if step.communicates:
        if note.critical:
            found.append("on critical path")
        else:
            when = "can be done async" if note.waits else "can be done ahead of time"
            found.append(f"not on critical path, {when}")
    elif step.output.name in wanted:
        found.append("needed for previous layers")
    if note.made_in:
        found.append(f"can be skipped by keeping the result of forward step {note.made_in}")
    if note.copies:
        kept = f" or keep {_and(note.keepable)} for the backward" if note.keepable else ""
        found.append(f"can throw away {_and(note.copies)} now{kept}")
    return found


def _and(arrays: Sequence[Layout]) -> str:
    return " and ".join(map(str, arrays))


def _line(note: Note, wanted: frozenset[str] | set[str] = frozenset()) -> str:
    said = "; ".join(remarks(note, wanted))
    return f"{step_text(note.step)}  ({said})" if said else step_text(note.step)


def _numbered(lines: Sequence[str]) -> list[str]:
    return [f"{i:3}. {line}" for i, line in enumerate(lines, 1)]


def _product(step: ShardStep) -> str:
    """Operands joined by `*_D`, where D are the dims that no later operand and no result has."""
    text = str(step.inputs[0])
    for i in range(1, len(step.inputs)):
        later = {d for array in (*step.inputs[i + 1 :], step.output) for d in array.letters}
        before = {d for array in step.inputs[:i] for d in array.letters}
        done = [d for d in step.inputs[i].letters if d in before and d not in later]
        under = "_{" + ",".join(done) + "}" if len(done) > 1 else "".join(f"_{d}" for d in done)
        text += f" *{under} {step.inputs[i]}"
    return text


def _loss(derivation: Derivation) -> str:
    """The loss of every example: the dims of the output that no parameter has."""
    source = derivation.source
    used = {d for stored in source.storage.values() for d in stored.parameter.letters}
    output = source.arrays[source.outputs[0]]
    dims = tuple(dim for dim in output.dims if dim.name not in used)
    return str(Layout(name="Loss", dims=dims)) if dims else "Loss"


def _parameters(derivation: Derivation) -> list[Layout]:
    return [stored.parameter for stored in derivation.source.storage.values()]
