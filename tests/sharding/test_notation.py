"""The notation: what parses, what prints, that it round-trips, and the text of every refusal."""

import hypothesis.strategies as st
import pytest
from hypothesis import given

from shardwise.errors import BadRequest
from shardwise.sharding import Dim, Layout, MatmulExpr

WORDS = st.from_regex(r"[a-z][a-z0-9_]{0,5}", fullmatch=True)
AXES = st.one_of(st.sampled_from("XYZWU"), WORDS)
DIM_NAMES = st.from_regex(r"[A-Za-z][A-Za-z0-9]{0,4}", fullmatch=True)
ARRAY_NAMES = st.from_regex(r"([A-Za-z](\w{0,4}[0-9a-z])?'{0,2})?", fullmatch=True).filter(
    str.isascii
)


@st.composite
def layouts(draw):
    names = draw(st.lists(DIM_NAMES, min_size=1, max_size=4, unique=True))
    axes = draw(st.lists(AXES, max_size=5, unique=True))
    homes = [draw(st.integers(0, len(names))) for _ in axes]
    cuts = [tuple(a for a, h in zip(axes, homes, strict=True) if h == i) for i in range(len(names))]
    return Layout(
        name=draw(ARRAY_NAMES),
        dims=tuple(Dim(name, cut) for name, cut in zip(names, cuts, strict=True)),
        unreduced=tuple(a for a, h in zip(axes, homes, strict=True) if h == len(names)),
    )


@given(layouts())
def test_a_layout_round_trips(layout):
    text = str(layout)
    assert text.isascii()
    assert Layout.parse(text) == layout
    assert str(Layout.parse(text)) == text
    assert hash(Layout.parse(text)) == hash(layout)


@given(st.lists(layouts(), min_size=2, max_size=4), st.none() | layouts())
def test_a_product_round_trips(operands, result):
    expr = MatmulExpr(operands=tuple(operands), result=result)
    assert MatmulExpr.parse(str(expr)) == expr


@given(layouts(), st.randoms())
def test_spaces_do_not_matter(layout, random):
    spaced = "".join(c + " " * random.randrange(2) if c in "[]{}, " else c for c in str(layout))
    assert Layout.parse(spaced) == layout


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("A[I_X,J_Y]", "A[I_X, J_Y]"),
        ("A[ I_XY , J ]", "A[I_XY, J]"),
        ("[E_Y, F]", "[E_Y, F]"),
        ("C[I, K]{U_X}", "C[I, K]{U_X}"),
        ("C[I, K] { U_{tensor,fsdp} }", "C[I, K]{U_{fsdp,tensor}}"),
        ("W_in[D_fsdp, F_tensor]", "W_in[D_fsdp, F_tensor]"),
        ("w[D_{fsdp, tensor}]", "w[D_{fsdp,tensor}]"),
        ("w[D_{X,tensor}]", "w[D_{X,tensor}]"),
        ("w[D_{XY}]", "w[D_XY]"),
        ("w[D_expert_over_tensor, heads]", "w[D_expert_over_tensor, heads]"),
        ("A[Iₓ, J]", "A[I_X, J]"),
        ("A[Iₓᵧ, J]{U_Z}", "A[I_XY, J]{U_Z}"),
        ("x[Bₓ, Dₜₑₙₛₒᵣ]", "x[B_X, D_tensor]"),
        ("𝐀[𝐼_𝑋, 𝐽]", "A[I_X, J]"),
        ("A′[I]", "A'[I]"),
        (r"$\mathbf{A}[I_{XY}, J]\{U_Z\}$", "A[I_XY, J]{U_Z}"),
    ],
)
def test_spellings(text, canonical):
    assert str(Layout.parse(text)) == canonical


@pytest.mark.parametrize(
    "text",
    [
        "A[I_X, J] * B[J, K_Y] -> C[I_X, K_Y]",
        "A[I_X,J]·B[J,K_Y]→C[I_X,K_Y]",
        "A[Iₓ, J] ⋅ B[J, Kᵧ] → C[Iₓ, Kᵧ]",
        "A[I_X, J] @ B[J, K_Y] ⟶ C[I_X, K_Y]",
        r"$$A[I_X, J] \cdot B[J, K_Y] \rightarrow C[I_X, K_Y]$$",
        "A[I_X, J] *\n  B[J, K_Y] -> C[I_X, K_Y]",
    ],
)
def test_products_in_every_typography(text):
    assert str(MatmulExpr.parse(text)) == "A[I_X, J] * B[J, K_Y] -> C[I_X, K_Y]"


def test_chains_and_the_arrow_left_out():
    expr = MatmulExpr.parse("A[I_X, J] * B[J, K_Y] * C[K_Y, L]")
    assert len(expr.operands) == 3
    assert expr.result is None
    assert str(expr) == "A[I_X, J] * B[J, K_Y] * C[K_Y, L]"


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("A[I_X, J_Y]", ("X", "Y")),
        ("A[I_XY, J]", (("X", "Y"), None)),
        ("A[I_YX, J]", (("Y", "X"), None)),
        ("w[D_{fsdp,tensor}, F]{U_data}", (("fsdp", "tensor"), None)),
    ],
)
def test_spec_is_partition_spec_form(text, spec):
    assert Layout.parse(text).spec() == spec


def test_dims_and_axes_of_a_layout():
    layout = Layout.parse("A[I_XY, J, K_Z]")
    assert layout.letters == ("I", "J", "K")
    assert layout.axes == ("X", "Y", "Z")
    assert layout.dim("I") == Dim("I", ("X", "Y"))
    with pytest.raises(BadRequest, match=r"unknown dim 'L'; known: I, J, K \(the array is"):
        layout.dim("L")


def test_unreduced_axes_have_no_order():
    assert Layout.parse("C[I]{U_YX}") == Layout.parse("C[I]{U_XY}")


AXIS_RULE = "an axis is one capital letter (X) or a lower-case word (fsdp)"
REFUSED = {
    "A[B_X, D_X]": "mesh axis 'X' cuts both B and D in 'A[B_X, D_X]'; an axis may cut one "
    "dimension, so remove one of them",
    "A[I_XX]": "mesh axis 'X' cuts I twice in 'A[I_XX]'; an axis may cut a dimension once, so "
    "remove one of them",
    "C[I_X, K]{U_X}": "mesh axis 'X' both cuts I and is unreduced in 'C[I_X, K]{U_X}'; partial "
    "sums over an axis cannot be cut by it, so remove one of them",
    "C[I]{U_XX}": "mesh axis 'X' is unreduced twice in 'C[I]{U_XX}'; name it once",
    "A[I, I]": "dim 'I' appears twice in 'A[I, I]'; the dims of one array have different names, so "
    "rename one",
    "A[2I]": "'2I' in 'A[2I]' is not a dim name; a dim is a letter or a word of letters and digits "
    "(D, heads)",
    "2A[I]": "array '2A' is not an array name; a name has letters, digits, inner '_' and trailing "
    "primes (A, W_in, A')",
    "A[I_X, J": """\
'[' is never closed at column 2 of 'A[I_X, J'; close it with ']'
  A[I_X, J
   ^""",
    "A[I]]": """\
']' closes nothing at column 5 of 'A[I]]'; remove it
  A[I]]
      ^""",
    "A[I, J_{X, Y]": """\
']' where ',' or '}' belongs at column 13 of 'A[I, J_{X, Y]'; separate with ',' and close what \
is open
  A[I, J_{X, Y]
              ^""",
    "A[I]{U_X": """\
'{' is never closed at column 5 of 'A[I]{U_X'; close it with '}'
  A[I]{U_X
      ^""",
    "A[]": """\
an array without dims at column 3 of 'A[]'; write at least one dim, such as A[I]
  A[]
    ^""",
    "A[I,]": """\
a dim's name is missing at column 5 of 'A[I,]'; write dims like I, J_X or D_fsdp
  A[I,]
      ^""",
    "A[I_]": f"""\
'_' without an axis at column 4 of 'A[I_]'; {AXIS_RULE}
  A[I_]
     ^""",
    "A[I_{}]": f"""\
an axis is missing at column 6 of 'A[I_{{}}]'; {AXIS_RULE}
  A[I_{{}}]
       ^""",
    "A[I_{X,": """\
'{' is never closed at column 5 of 'A[I_{X,'; close it with '}'
  A[I_{X,
      ^""",
    "A[I_Xy]": f"""\
'Xy' is not a mesh axis at column 5 of 'A[I_Xy]'; {AXIS_RULE}; put several in braces
  A[I_Xy]
      ^""",
    "A[I]{V_X}": """\
unreadable braces at column 6 of 'A[I]{V_X}'; unreduced axes are written {U_X}
  A[I]{V_X}
       ^""",
    "A[I]{U_X, U_Y}": """\
one {U_..} per array at column 5 of 'A[I]{U_X, U_Y}'; write {U_XY} or {U_{fsdp,tensor}}
  A[I]{U_X, U_Y}
      ^""",
    "A B[I]": """\
expected '[' after 'A' at column 3 of 'A B[I]'; an array is written A[I_X, J]
  A B[I]
    ^""",
    " ": "the notation is empty; an array is written A[I_X, J]",
    "A[I] B[J]": """\
'B' is not expected at column 6 of 'A[I] B[J]'; join arrays with '*' or '->'
  A[I] B[J]
       ^""",
    "A[I%]": """\
cannot read '%' at column 4 of 'A[I%]'; the notation is A[I_X, J] * B[J, K_Y] -> C[I_X, K_Y]
  A[I%]
     ^""",
    "A[I] * B[J]": """\
a product starts at column 6 of 'A[I] * B[J]'; give one array, such as A[I_X, J]
  A[I] * B[J]
       ^""",
}


@pytest.mark.parametrize("text", REFUSED)
def test_refused_with_this_text(text):
    with pytest.raises(BadRequest) as caught:
        Layout.parse(text)
    assert str(caught.value) == REFUSED[text]


def test_one_array_is_no_product():
    with pytest.raises(BadRequest, match=r"'A\[I\]' is not a product; a product has at least two"):
        MatmulExpr.parse("A[I]")


@pytest.mark.parametrize(
    ("bad", "text"),
    [
        ({"name": "A-B", "dims": (Dim("I"),)}, "array 'A-B' is not an array name"),
        ({"name": "A", "dims": (Dim("I", ("Xy",)),)}, "'Xy' in 'A.I_Xy.' is not a mesh axis"),
    ],
)
def test_a_layout_built_by_hand_is_checked_too(bad, text):
    with pytest.raises(BadRequest, match=text):
        Layout(**bad)


@given(st.text(alphabet="AIJXY_[]{},*-> uU'fsₓ", max_size=20))
def test_any_text_parses_or_is_refused(text):
    try:
        layout = Layout.parse(text)
    except BadRequest:
        return
    assert Layout.parse(str(layout)) == layout
