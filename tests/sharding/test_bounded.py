"""Searches end: axes of one device are left out; many are tried in fewer orders, or refused."""

import pytest
from tests.work import calls, seconds

from shardwise.commands.shard.expression import shard_expression
from shardwise.commands.shard.result import sharded_product
from shardwise.errors import BadRequest
from shardwise.sharding import Einsum, Layout, Mesh, resolve
from shardwise.sharding.bounded import orders_of
from shardwise.sharding.reshard import arrangements, few_arrangements

HANGS = "D[I_{data,fsdp}, K, B_X, J_Z] * C[L_Z, K_fsdp, F_Y]{U_X}"
SIZES = "B=8,F=8,I=64,J=512,K=1024,L=64"


def test_axes_of_one_device_are_not_searched():
    answer = shard_expression(HANGS, dims=SIZES, mesh="X=1,Y=2,Z=1,data=1,fsdp=4")
    plain = shard_expression(
        "D[I_fsdp, K, B, J] * C[L, K_fsdp, F_Y]", dims=SIZES, mesh="Y=2,fsdp=4"
    )
    assert answer.best.summary == plain.best.summary
    assert answer.best.wire_bytes == plain.best.wire_bytes
    assert answer.resolution.enumerated == plain.resolution.enumerated
    assert answer.notes == ("X, Z, data have one device and are left out of layouts",)
    # Axis Z of one device stands in no way of a local product.
    assert sharded_product(answer).obstacles == sharded_product(plain).obstacles


def test_a_mesh_of_one_device_still_answers():
    answer = shard_expression("A[I_X] -> A[I_Y]", dims="I=8", mesh="X=1,Y=1")
    assert answer.best.wire_bytes == 0
    assert answer.best.result == Layout.parse("A[I]")


@pytest.mark.slow
def test_many_axes_are_tried_in_fewer_orders_and_the_answer_says_so():
    text = "A[I_{c,b}, J, K_a] * B[J_d, K, L] -> C[I_{e,b}, L]"
    mesh = "a=2,b=2,c=2,d=2,e=2"
    answer = shard_expression(text, dims="I=64,J=64,K=64,L=64", mesh=mesh)
    assert "tried only in mesh order and as written" in answer.notes[-1]
    assert answer.best.result == Layout.parse("C[I_{e,b}, L]")


def test_orders_hold_what_is_written_and_the_order_of_the_mesh():
    mesh, sizes = Mesh.parse("a=2,b=2,c=2,d=2,e=2"), dict.fromkeys("IJKLM", 64)
    found = orders_of(Einsum.parse("A[I_{c,b,a}, J, K] * B[J, K, L, M]"), mesh, sizes)
    assert found is not None
    assert {("c", "b", "a"), ("c", "a"), ("a", "b", "c", "d", "e"), ()} <= found
    assert ("e", "a") not in found
    small = Mesh.parse("a=2,b=2")
    assert orders_of(Einsum.parse("A[I_{b,a}, J] * B[J, K]"), small, sizes) is None


def test_a_product_is_cut_in_those_orders_alone():
    mesh, orders = Mesh.parse("a=2,b=2"), {(), ("a",), ("b",), ("a", "b")}
    every, few = arrangements([4], mesh), arrangements([4], mesh, orders)
    assert [dims for dims in every if dims[0] in orders] == list(few)
    assert set(every) - set(few) == {(("b", "a"),)}


def test_the_count_of_arrangements_stops_early():
    many = Mesh.parse(",".join(f"{x}=2" for x in "abcdefghijkl"))
    assert calls(lambda: few_arrangements([4096] * 6, many, 4000)) < 100_000
    assert not few_arrangements([4096] * 6, many, 4000)


@pytest.mark.parametrize(
    ("axes", "said"),
    [(13, "13 axes of more than one device, of at most 12"), (11, "layouts of one array")],
)
def test_what_would_not_end_is_refused_with_the_remedy(axes, said):
    mesh = ",".join(f"{x}=2" for x in "abcdefghijklm"[:axes])
    dims = ",".join(f"{x}=8192" for x in "IJKLMN")

    def refused():
        said_of_all = f"too many layouts for these arrays.*{said}.*use fewer"
        with pytest.raises(BadRequest, match=said_of_all):
            shard_expression("A[I_a, J, K, L] * B[L_b, M, N]", dims=dims, mesh=mesh)

    assert seconds(refused) < 20


def test_memory_limits_are_bounded_too():
    mesh, sizes = Mesh.parse("a=2,b=2,c=2,d=2"), dict.fromkeys("IJKLM", 64)
    einsum = Einsum.parse("A[I_a, J_b, K] * B[J, K_c, L, M_d]")

    def searched():
        try:
            resolve(einsum, mesh, sizes, max_bytes=3e6, free_inputs=("A", "B"))
        except BadRequest as error:
            assert "--max-hbm" in str(error)  # noqa: PT017

    assert seconds(searched) < 40
