"""Reading einsums: inference, chains, what is not local, and the errors."""

import pytest

from shardwise.errors import BadRequest
from shardwise.sharding import Einsum, Layout


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("A[I_X, J] * B[J, K_Y]", "A[I_X, J] * B[J, K_Y] -> C[I, K]"),
        ("[I, J] * [J, K] -> [I, K_X]", "A[I, J] * B[J, K] -> C[I, K_X]"),
        ("A[Iₓ, J] ⋅ B[J, Kᵧ] → C[Iₓ, Kᵧ]", "A[I_X, J] * B[J, K_Y] -> C[I_X, K_Y]"),
        ("A[I_XY] -> [I_Y]", "A[I_XY] -> A[I_Y]"),
        ("C[I]{U_X} -> C[I_X]", "C[I]{U_X} -> C[I_X]"),
        ("C[I, J] * D[J, K]", "C[I, J] * D[J, K] -> E[I, K]"),
        ("x[B, D] * W[D, F] * V[F, D]", "x[B, D] * W[D, F] * V[F, D] -> C[B, D]"),
    ],
)
def test_reads_and_infers(text, printed):
    einsum = Einsum.parse(text)
    assert str(einsum) == printed
    assert einsum.free == ("->" not in text and "→" not in text)
    assert str(Einsum.parse(printed)) == printed


@pytest.mark.parametrize(
    ("text", "products"),
    [
        (
            "In[B, D] * W_in[D, F] * W_out[F, D] -> Out[B, D]",
            ["In[B, D] * W_in[D, F] -> Tmp[B, F]", "Tmp[B, F] * W_out[F, D] -> Out[B, D]"],
        ),
        (
            "x[E, B, D] * W[E, D, F] * V[E, F, D] -> y[E, B, D]",
            ["x[E, B, D] * W[E, D, F] -> Tmp[E, B, F]", "Tmp[E, B, F] * V[E, F, D] -> y[E, B, D]"],
        ),
        (
            "A[I, J] * B[J, K] * C[K, L] * D[L, M] -> Z[I, M]",
            [
                "A[I, J] * B[J, K] -> Tmp1[I, K]",
                "Tmp1[I, K] * C[K, L] -> Tmp2[I, L]",
                "Tmp2[I, L] * D[L, M] -> Z[I, M]",
            ],
        ),
    ],
)
def test_a_chain_is_products_from_left_to_right(text, products):
    assert [str(p) for p in Einsum.parse(text).products()] == products


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("A[I_X, J] * B[J, K_Y] -> C[I_X, K_Y]", []),
        (
            "A[I, J_X] * B[J, K] -> C[I, K]",
            ["the contracted dim J is sharded differently: J_X in A and J in B"],
        ),
        (
            "A[I, J_X] * B[J_X, K] -> C[I, K]",
            ["the local product is C[I, K]{U_X}, C[I, K] is wanted"],
        ),
        (
            "A[I_X, J] * B[J, K_X] -> C[I_X, K]",
            ["axis X shards I of A and K of B: only the diagonal blocks would be multiplied"],
        ),
    ],
)
def test_the_books_cases_say_what_stands_in_the_way(text, said):
    assert list(Einsum.parse(text).obstacles()) == said


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "A[I_X, J_X] * B[J, K]",
            r"mesh axis 'X' cuts both I and J in 'A\[I_X, J_X\]'; an axis may cut one dimension",
        ),
        (
            "A[I_X, J] * B[J, K_X] -> C[I_X, K_X]",
            r"mesh axis 'X' cuts both I and K in 'C\[I_X, K_X\]'",
        ),
        ("A[I, J] * B[J, K] -> C[I, L]", "unknown dim 'L'; known: I, J, K .the result 'C.I, L.'"),
        ("A[I, J] * A[J, K]", "array 'A' is twice in .*; every array has a name of its own"),
        ("A[I, J] -> A[I]", "loses J; a reshard keeps every dim; to sum over one, multiply"),
        ("A[I, J] -> A[J, I]", "transposes its dims; a reshard keeps the order"),
        ("A[I] * B[I]", "would have no dim: the operands share every letter; write the result"),
        ("A[I, J] * B[J, K] ->", r"expected '\[' at column 21"),
    ],
)
def test_refusals(text, message):
    with pytest.raises(BadRequest, match=message):
        Einsum.parse(text)


def test_another_result_keeps_the_letters():
    einsum = Einsum.parse("A[I, J] * B[J, K] -> C[I, K]")
    assert str(einsum.to(Layout.parse("[I_X, K]"))) == "A[I, J] * B[J, K] -> C[I_X, K]"
    with pytest.raises(BadRequest, match="unknown dim 'L'"):
        einsum.to(Layout.parse("C[I, L]"))
