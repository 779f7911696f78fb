"""Derived steps against the book's boxes; remarks, frees, transposes, memory and errors."""

import re
from collections import Counter

import pytest
from tests.sharding.moved import moved_bytes, state_bytes
from tests.sharding.strategies import STRATEGIES, strategy
from tests.sharding.transposed import transpose

from shardwise.errors import BadRequest
from shardwise.sharding import Layout, Mesh
from shardwise.sharding.backward import backward_boxes, derive
from shardwise.sharding.backward.analyse import analyse
from shardwise.sharding.backward.boxes import backward_lines, forward_lines
from shardwise.sharding.backward.forward import forward
from shardwise.sharding.backward.infer import forward_of
from shardwise.sharding.steps import ShardStep

MESH = Mesh.parse("X=4,Y=2,Z=2")

# The boxes as printed in book.txt 5.1.1 to 5.1.4, in ASCII, with these repairs: the axis stands at
# every collective (the boxes of 5.1.1 to 5.1.3 leave it out); dW = In * dTmp has its operands in
# the order of the DP box everywhere (errata 5.13); `W_2` in 5.1.4 is W_out. Of the remarks only
# what the dependencies say is kept: "c" on critical path, "a" ahead of time (also "during previous
# layer"), "s" async, "p" needed for previous layers, "t NAME" can throw away NAME here, "k" can be
# skipped by sharing with the forward. "+" marks a remark that the book's box leaves out.
DP = """
Tmp[B_X, F] = In[B_X, D] *_D W_in[D, F]
Out[B_X, D] = Tmp[B_X, F] *_F W_out[F, D]
--
dOut[B_X, D] = ...
dW_out[F, D]{U_X} = Tmp[B_X, F] *_B dOut[B_X, D]
dW_out[F, D] = AllReduce_X(dW_out[F, D]{U_X})           # s
dTmp[B_X, F] = dOut[B_X, D] *_D W_out[F, D]
dW_in[D, F]{U_X} = In[B_X, D] *_B dTmp[B_X, F]
dW_in[D, F] = AllReduce_X(dW_in[D, F]{U_X})             # s
dIn[B_X, D] = dTmp[B_X, F] *_F W_in[D, F]               # p
"""
FSDP = """
W_in[D, F] = AllGather_X(W_in[D_X, F])                  # a
Tmp[B_X, F] = In[B_X, D] *_D W_in[D, F]                 # t W_in[D, F]
W_out[F, D] = AllGather_X(W_out[F, D_X])                # a
Out[B_X, D] = Tmp[B_X, F] *_F W_out[F, D]               # +t W_out[F, D]
--
dOut[B_X, D] = ...
dW_out[F, D]{U_X} = Tmp[B_X, F] *_B dOut[B_X, D]
dW_out[F, D_X] = ReduceScatter_X(dW_out[F, D]{U_X})     # s
W_out[F, D] = AllGather_X(W_out[F, D_X])                # a
dTmp[B_X, F] = dOut[B_X, D] *_D W_out[F, D]             # t W_out[F, D]
dW_in[D, F]{U_X} = In[B_X, D] *_B dTmp[B_X, F]
dW_in[D_X, F] = ReduceScatter_X(dW_in[D, F]{U_X})       # s
W_in[D, F] = AllGather_X(W_in[D_X, F])                  # a
dIn[B_X, D] = dTmp[B_X, F] *_F W_in[D, F]               # p t W_in[D, F]
"""
TP = """
In[B, D] = AllGather_Y(In[B, D_Y])                      # c
Tmp[B, F_Y] = In[B, D] *_D W_in[D, F_Y]                 # +t In[B, D]
Out[B, D]{U_Y} = Tmp[B, F_Y] *_F W_out[F_Y, D]
Out[B, D_Y] = ReduceScatter_Y(Out[B, D]{U_Y})           # c
--
dOut[B, D_Y] = ...
dOut[B, D] = AllGather_Y(dOut[B, D_Y])                  # c
dW_out[F_Y, D] = Tmp[B, F_Y] *_B dOut[B, D]
dTmp[B, F_Y] = dOut[B, D] *_D W_out[F_Y, D]             # t dOut[B, D]
In[B, D] = AllGather_Y(In[B, D_Y])                      # +a k
dW_in[D, F_Y] = In[B, D] *_B dTmp[B, F_Y]               # +t In[B, D]
dIn[B, D]{U_Y} = dTmp[B, F_Y] *_F W_in[D, F_Y]          # p
dIn[B, D_Y] = ReduceScatter_Y(dIn[B, D]{U_Y})           # c
"""
FSDP_TP = """
In[B_X, D] = AllGather_Y(In[B_X, D_Y])                  # c
W_in[D, F_Y] = AllGather_X(W_in[D_X, F_Y])              # a
Tmp[B_X, F_Y] = In[B_X, D] *_D W_in[D, F_Y]             # +t In[B_X, D] and W_in[D, F_Y]
W_out[F_Y, D] = AllGather_X(W_out[F_Y, D_X])            # a
Out[B_X, D]{U_Y} = Tmp[B_X, F_Y] *_F W_out[F_Y, D]      # +t W_out[F_Y, D]
Out[B_X, D_Y] = ReduceScatter_Y(Out[B_X, D]{U_Y})       # c
--
dOut[B_X, D_Y] = ...
dOut[B_X, D] = AllGather_Y(dOut[B_X, D_Y])              # c
dW_out[F_Y, D]{U_X} = Tmp[B_X, F_Y] *_B dOut[B_X, D]
dW_out[F_Y, D_X] = ReduceScatter_X(dW_out[F_Y, D]{U_X}) # +s
W_out[F_Y, D] = AllGather_X(W_out[F_Y, D_X])            # a
dTmp[B_X, F_Y] = dOut[B_X, D] *_D W_out[F_Y, D]         # t dOut[B_X, D] and W_out[F_Y, D]
In[B_X, D] = AllGather_Y(In[B_X, D_Y])                  # a k
dW_in[D, F_Y]{U_X} = In[B_X, D] *_B dTmp[B_X, F_Y]      # +t In[B_X, D]
dW_in[D_X, F_Y] = ReduceScatter_X(dW_in[D, F_Y]{U_X})   # +s
W_in[D, F_Y] = AllGather_X(W_in[D_X, F_Y])              # a
dIn[B_X, D]{U_Y} = dTmp[B_X, F_Y] *_F W_in[D, F_Y]      # p +t W_in[D, F_Y]
dIn[B_X, D_Y] = ReduceScatter_Y(dIn[B_X, D]{U_Y})       # c
"""
BOXES = {"dp": DP, "fsdp": FSDP, "tp": TP, "fsdp+tp": FSDP_TP}
CHAINS = {
    "dp": "In[B_X, D] * W_in[D, F] * W_out[F, D] -> Out[B_X, D]",
    "fsdp": "In[B_X, D] * W_in[D_X, F] * W_out[F, D_X] -> Out[B_X, D]",
    "tp": "In[B, D_Y] * W_in[D, F_Y] * W_out[F_Y, D] -> Out[B, D_Y]",
    "fsdp+tp": "In[B_X, D_Y] * W_in[D_X, F_Y] * W_out[F_Y, D_X] -> Out[B_X, D_Y]",
    "2d-weight-stationary": "In[B, D_XYZ] * W_in[D_X, F_YZ] * W_out[F_YZ, D_X] -> Out[B, D_XYZ]",
}
REMARKS = {
    "c": "on critical path",
    "a": "not on critical path, can be done ahead of time",
    "s": "not on critical path, can be done async",
    "p": "needed for previous layers",
    "k": "can be skipped by keeping the result of forward step 1",
}


def expected(box):
    """The box as (step, remarks) of forward and of backward."""
    phases = []
    for phase in box.split("--"):
        lines = []
        for line in phase.strip().splitlines():
            step, _, marks = (part.strip() for part in line.partition("#"))
            plain, _, thrown = marks.replace("+", "").partition("t ")
            said = [REMARKS[mark] for mark in plain.split()]
            said += [f"can throw away {thrown} now"] if thrown else []
            lines.append((step, said))
        phases.append(lines)
    return phases


def told(lines):
    """Printed lines as (step, remarks), without what is said about keeping a copy."""
    found = []
    for line in lines:
        step, _, said = line.partition("  (")
        said = re.sub(r" or keep .* for the backward", "", said.removesuffix(")"))
        found.append((step, said.split("; ") if said else []))
    return found


@pytest.mark.parametrize("name", BOXES)
def test_steps_and_remarks_equal_the_books_boxes(name):
    derivation = derive(strategy(name).forward(), MESH, {})
    ahead, back = expected(BOXES[name])
    assert told(forward_lines(derivation)) == ahead
    assert told(backward_lines(derivation)) == back


@pytest.mark.parametrize("name", CHAINS)
def test_the_books_one_line_syntax_gives_the_same_steps(name):
    """The intermediate's layout follows from the chain."""
    source = forward_of(CHAINS[name])
    assert source.lines == strategy(name).forward().lines
    printed = backward_boxes(CHAINS[name], MESH)
    steps = [line.split(". ", 1)[1] for line in printed.splitlines() if line[:3].strip().isdigit()]
    derivation = derive(source, MESH, {})
    wanted = [*forward_lines(derivation), *backward_lines(derivation)]
    assert [step for step in steps if not step.startswith("Loss")] == wanted


def test_2d_weight_stationary_equals_exercise_7_7():
    derivation = derive(strategy("2d-weight-stationary").forward(), MESH, {})
    assert [step for step, _ in told(forward_lines(derivation))] == [
        "In[B, D_X] = AllGather_YZ(In[B, D_XYZ])",
        "Tmp[B, F_YZ]{U_X} = In[B, D_X] *_D W_in[D_X, F_YZ]",
        "Tmp[B, F_YZ] = AllReduce_X(Tmp[B, F_YZ]{U_X})",
        "Out[B, D_X]{U_YZ} = Tmp[B, F_YZ] *_F W_out[F_YZ, D_X]",
        "Out[B, D_XYZ] = ReduceScatter_YZ(Out[B, D_X]{U_YZ})",
    ]


def test_kv_batch_sharded_attention_equals_the_twelve_steps():
    """Book 7.3.3, steps 3 to 12 (1 and 2 are given), as many devices on Y as KV heads.

    The book calls queries, scores and outputs by one letter; here Q' is the reshaped Q, A the
    scores, P their softmax, O' the output before it is reshaped. Its step 7 drops Y by a slip.
    """
    sizes = {"N": 8, "K": 2, "M": 4}
    derivation = derive(strategy("kv-batch-sharded").forward(), MESH, sizes)
    assert [step for step, _ in told(forward_lines(derivation))] == [
        "Q[B, N_YZ, H] = X[B, D] *_D W_Q[D, N_YZ, H]",
        "Q[B_Z, N_Y, H] = AllToAll_{Z->B}(Q[B, N_YZ, H])",
        "Q'[B_Z, K_Y, M, H] = Reshape(Q[B_Z, N_Y, H])",
        "A[B_Z, S, K_Y, M] = Q'[B_Z, K_Y, M, H] *_H K[B_Z, S, K_Y, H]",
        "P[B_Z, S, K_Y, M] = softmax_S(A[B_Z, S, K_Y, M])",
        "O'[B_Z, K_Y, M, H] = P[B_Z, S, K_Y, M] *_S V[B_Z, S, K_Y, H]",
        "O'[B, K_Y, M_Z, H] = AllToAll_{Z->M}(O'[B_Z, K_Y, M, H])",
        "O[B, N_YZ, H] = Reshape(O'[B, K_Y, M_Z, H])",
        "Out[B, D]{U_YZ} = O[B, N_YZ, H] *_{N,H} W_O[N_YZ, H, D]",
        "Out[B, D] = AllReduce_YZ(Out[B, D]{U_YZ})",
    ]
    exchanges = [s for s in derivation.backward if s.communicates]
    assert [s.kind for s in exchanges] == ["all_to_all", "all_to_all", "all_reduce"]


def test_heads_are_swapped_after_the_reshape_where_their_blocks_differ():
    """With 6 KV heads on Y=2 and Z=4, N_YZ cuts through K: Z goes to N itself, not to K or M."""
    mesh, sizes = Mesh.parse("Y=2,Z=4"), {"N": 24, "K": 6, "M": 4}
    steps = forward_lines(derive(strategy("kv-batch-sharded").forward(), mesh, sizes))
    assert "O[B, N_YZ, H] = AllToAll_{Z->N}(O[B_Z, N_Y, H])  (on critical path)" in steps


def test_expert_parallelism_dispatches_and_combines_by_two_all_to_alls_each_way():
    derivation = derive(strategy("expert").forward(), MESH, {})
    for phase in ("forward", "backward"):
        notes = [note for note in analyse(derivation, phase) if note.step.communicates]
        kinds = [note.step.kind for note in notes if not note.made_in]
        assert kinds == ["all_to_all", "all_to_all"]
        assert all(note.critical for note in notes if not note.made_in)


@pytest.mark.parametrize("name", STRATEGIES)
def test_what_the_backward_moves_is_the_transpose_of_what_the_forward_moved(name):
    """Gathers give reduce-scatters and the other way round, all-to-alls themselves.

    All-reduces are left out: their transpose is no step, and the backward's own come from copies
    that the forward used for different things without moving them.
    """
    sizes = {"N": 8, "K": 2, "M": 4}
    derivation = derive(strategy(name).forward(), MESH, sizes)
    stored = derivation.source.storage
    transposed = Counter()
    for step in derivation.forward:
        back = transpose(step, partial=True) if step.communicates else None
        if back is not None and back.kind != "all_reduce":
            transposed[back.kind, back.axes] += 1
    moved = Counter()
    for note in analyse(derivation, "backward"):
        step = note.step
        again = note.made_in or step.inputs[0].name in stored
        if step.communicates and step.kind != "all_reduce" and not again:
            moved[step.kind, step.axes] += 1
    if name == "gated-fsdp+tp":  # In is gathered once and used twice; so are its gradients' sums
        assert moved["reduce_scatter", ("Y",)] == 1
    if name.startswith("zero"):  # what the forward does not gather is gathered in the update
        assert not transposed
        return
    assert moved == transposed


def test_transposes():
    def step(kind, before, after, axes, dim="", to_dim=""):
        layouts = Layout.parse(before), Layout.parse(after)
        return ShardStep(
            kind=kind, inputs=layouts[:1], output=layouts[1], axes=axes, dim=dim, to_dim=to_dim
        )

    def text(back):
        return back and f"{back.output} = {back.kind}_{''.join(back.axes)}({back.inputs[0]})"

    gather = step("all_gather", "A[I_XY]", "A[I_X]", ("Y",), "I")
    scatter = step("reduce_scatter", "A[I]{U_XY}", "A[I_Y]{U_X}", ("Y",), "I")
    reduce = step("all_reduce", "A[I]{U_X}", "A[I]", ("X",))
    swap = step("all_to_all", "A[I_X, J]", "A[I, J_X]", ("X",), "I", "J")
    permute = step("permute", "A[I_XY]", "A[I_YX]", ("Y", "X"), "I")
    cut = step("slice", "A[I]", "A[I_X]", ("X",), "I")
    assert text(transpose(gather, partial=True)) == "dA[I_XY] = reduce_scatter_Y(dA[I_X]{U_Y})"
    assert text(transpose(gather, partial=False)) == "dA[I_XY] = slice_Y(dA[I_X])"
    assert text(transpose(scatter, partial=False)) == "dA[I] = all_gather_Y(dA[I_Y])"
    assert transpose(reduce, partial=False) is None
    assert text(transpose(reduce, partial=True)) == "dA[I] = all_reduce_X(dA[I]{U_X})"
    back = transpose(swap, partial=False)
    assert back is not None
    assert (text(back), back.dim, back.to_dim) == (
        "dA[I_X, J] = all_to_all_X(dA[I, J_X])",
        "J",
        "I",
    )
    assert text(transpose(permute, partial=False)) == "dA[I_XY] = permute_XY(dA[I_YX])"
    assert text(transpose(cut, partial=False)) == "dA[I] = all_gather_X(dA[I_X])"


SIZES = {"B": 4096, "D": 512, "F": 2048}


@pytest.mark.parametrize(
    ("name", "forward_bytes", "backward_bytes", "update_bytes"),
    [  # in units of DF and BD elements of two bytes, times |X| or |Y| where divided by it
        ("dp", "0", "8*DF", "0"),
        ("zero-1", "0", "0", "8*DF"),
        ("zero-2", "0", "4*DF", "4*DF"),
        ("fsdp", "4*DF", "8*DF", "0"),
        ("tp", "4*BD", "4*BD", "0"),
        ("fsdp+tp", "4*BD/X+4*DF/Y", "4*BD/X+8*DF/Y", "0"),
        # Y and Z gather In and scatter Out over their blocks of X; X all-reduces Tmp.
        ("2d-weight-stationary", "4*BD/X+4*BF/(Y*Z)", "4*BD/X+4*BF/(Y*Z)", "0"),
    ],
)
def test_bytes_of_every_strategy(name, forward_bytes, backward_bytes, update_bytes):
    """The book's table of 5.2 with the FSDP+TP backward of errata 5.1, and what follows for ZeRO.

    ZeRO-1 and 2 move what DP moves (book 5.1.2): the all-reduce in its two halves.
    """
    derivation = derive(strategy(name).forward(), MESH, SIZES)
    b, d, f = SIZES.values()
    values = {"DF": d * f, "BD": b * d, "BF": b * f, **MESH}
    phases = {"forward": forward_bytes, "backward": backward_bytes, "update": update_bytes}
    for phase, formula in phases.items():
        assert moved_bytes(derivation, phase) == eval(formula, values), phase


def test_gathering_the_input_again_costs_half_as_much_more():
    """Errata 5.1: 6BD/X instead of 4BD/X in the backward of FSDP+TP."""
    derivation = derive(strategy("fsdp+tp").forward(), MESH, SIZES)
    b, d, f = SIZES.values()
    again = moved_bytes(derivation, "backward", share=False)
    assert again == 6 * b * d / MESH["X"] + 8 * d * f / MESH["Y"]


@pytest.mark.parametrize(
    ("name", "gigabytes"),
    [("dp", 120.0), ("zero-1", 31.40625), ("zero-2", 16.640625), ("fsdp", 1.875)],
)
def test_memory_per_device_of_the_zero_stages(name, gigabytes):
    """The ZeRO paper's figure (book 5.4.1): 7.5e9 parameters on 64 devices, K = 12 bytes.

    The paper prints 120, 31.4, 16.6 and 1.9 GB.
    """
    sizes = {"D": 48_000, "F": 78_125}
    widths = {"parameter": 2.0, "gradient": 2.0, "optimizer": 12.0}
    source = strategy(name).forward()
    held = state_bytes(source, sizes, Mesh.parse("X=64"), widths)
    assert sum(held.values()) == pytest.approx(gigabytes * 1e9, rel=1e-12)


def test_adam_takes_ten_bytes_a_parameter_without_gradients():
    held = state_bytes(strategy("dp").forward(), SIZES, MESH)
    count = 2 * SIZES["D"] * SIZES["F"]
    assert held["parameter"] + held["optimizer"] == 10 * count


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_freed_array_is_read_no_more_and_held_before(name):
    derivation = derive(strategy(name).forward(), MESH, {"N": 8, "K": 2, "M": 4})
    for phase in ("forward", "backward"):
        gone = set()
        for note in analyse(derivation, phase):
            assert not gone & {*note.step.inputs}
            assert {*note.frees} <= {*note.step.inputs}
            gone |= {*note.frees}


def test_saved_arrays_are_what_the_backward_reads():
    derivation = derive(strategy("gated-fsdp+tp").forward(), MESH, {})
    assert {a.name for a in derivation.saved} == {"In", "Gate", "Act", "Up", "Tmp"}
    softmax = derive(strategy("kv-batch-sharded").forward(), MESH, {"N": 8, "K": 2, "M": 4})
    assert "A" not in {a.name for a in softmax.saved}


def test_lines_of_several_products():
    expr = "In[B, D] * W[D_X, F] -> Tmp[B, F]; tanh(Tmp[B, F]) -> Out[B, F]"
    text = backward_boxes(expr, Mesh.parse("X=2"))
    assert "dTmp[B, F] = tanh'(dOut[B, F], Out[B, F])" in text
    assert backward_boxes("A[B, D] * B[B, D] -> C[B, D]", MESH, inputs=["B"]).count("dB[B, D]") > 0


def test_storage_of_gradients_and_optimizer_state():
    text = backward_boxes(
        "In[B_X, D] * W[D, F] -> Out[B_X, F]",
        Mesh.parse("X=2"),
        storage=["dW[D_X, F]", "mW[D_X, F]"],
    )
    assert "dW[D_X, F] = ReduceScatter_X(dW[D, F]{U_X})" in text
    assert text.split("Update: ")[1].splitlines()[1:4] == [
        "  1. W[D_X, F] = Slice_X(W[D, F])",
        "  2. W[D_X, F] = update(W[D_X, F], dW[D_X, F], mW[D_X, F])",
        "  3. W[D, F] = AllGather_X(W[D_X, F])",
    ]


def test_degrees_change_no_step():
    """A strategy is its layouts: the steps are the same on every mesh."""
    for name in BOXES:
        texts = {
            "\n".join(backward_lines(derive(strategy(name).forward(), Mesh.parse(mesh), {})))
            for mesh in ("X=2,Y=2", "X=64,Y=1", "X=1,Y=256")
        }
        assert len(texts) == 1


LINES = ("In[B_X, D] * W[D, F] -> Out[B_X, F]",)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: forward((), []), "the forward has no line; give at least one product"),
        (
            lambda: forward(["A[B] * W[B]"], ["W"]),
            "'A[B] * W[B]' has no result; add '-> C[I, K]'",
        ),
        (
            lambda: forward(["[B, D] * W[D, F] -> C[B, F]"], ["W"]),
            "array '[B, D]' has no name; a derivation needs one for each",
        ),
        (
            lambda: forward([*LINES, "Out[B, F] * V[F, D] -> C[B, D]"], ["W", "V"]),
            (
                "'Out[B, F]' was 'Out[B_X, F]' before; an array has one layout, that in which it "
                "is made or stored"
            ),
        ),
        (
            lambda: forward([*LINES, "Out[B_X, F] * V[F, D] -> In[B_X, D]"], ["W", "V"]),
            "array 'In' is already used above; a line makes a new array, so rename one of them",
        ),
        (
            lambda: forward(LINES, ["V"]),
            "unknown array 'V'; known: In, W, Out (it is named as a parameter or a constant)",
        ),
        (
            lambda: forward(LINES, ["Out"]),
            "array 'Out' is made by a line; a parameter is only read",
        ),
        (
            lambda: forward(LINES, ["W"], ["gW[D, F]"]),
            (
                "unknown stored array 'gW'; known: dW, mW (gradients are dNAME and "
                "optimizer state is mNAME of a parameter NAME)"
            ),
        ),
        (
            lambda: forward(LINES, ["W"], ["dW[F, D]"]),
            (
                "'dW[F, D]' is stored beside 'W[D, F]'; gradient and optimizer state have their "
                "parameter's dims"
            ),
        ),
        (
            lambda: forward(LINES, ["W"], ["mW[D, F]{U_X}"]),
            "'mW[D, F]{U_X}' is stored unreduced; only a gradient may be stored as partial sums",
        ),
        (
            lambda: forward(["A[B, D] * W[D, F] -> C[B, E]"], ["W"]),
            "dim 'E' of 'C[B, E]' is in none of its operands",
        ),
        (
            lambda: forward(["A[B, D] * W[D, F] -> C[B]"], ["W"]),
            "dim 'F' is only summed in making 'C[B]'; a contracted dim appears in two operands",
        ),
        (
            lambda: forward(["tanh(A[B, D]) -> C[D, B]"], []),
            "'A[B, D]' becomes 'C[D, B]'; tanh keeps the dims and their order",
        ),
        (
            lambda: derive(forward(LINES, ["W"], ["dW[D, F]{U_Y}"]), MESH, {}),
            (
                "'dW[D, F]{U_Y}' results in 'dW[D, F]{U_X}'; only axes over which the product "
                "makes partial sums can stay unreduced"
            ),
        ),
        (
            lambda: derive(forward(["reshape(A[N]) -> C[K, M]"], []), MESH, {}),
            "dim 'K' has no size; a reshape needs the sizes of its dims, such as K=8",
        ),
        (
            lambda: derive(forward(["reshape(A[B, N]) -> C[K, M]"], []), MESH, {}),
            (
                "'C[K, M]' cannot be reshaped to 'A[B, N]'; a reshape splits one dim or merges "
                "neighbours into one"
            ),
        ),
        (
            lambda: derive(forward(LINES, ["W"]), Mesh.parse("Y=2"), {}),
            "unknown mesh axis 'X'; known: Y ('In[B_X, D]' is laid out on mesh Y=2)",
        ),
        (
            lambda: forward_of("A[I_X] -> A[I]"),
            (
                "'A[I_X] -> A[I]' multiplies nothing; a backward pass needs a product, such as "
                "A[I, J] * B[J, K] -> C[I, K]"
            ),
        ),
        (
            lambda: strategy("fdsp"),
            "unknown strategy 'fdsp'; did you mean 'fsdp'",
        ),
    ],
)
def test_errors(make, message):
    with pytest.raises(BadRequest) as caught:
        make()
    assert str(caught.value).startswith(message)
