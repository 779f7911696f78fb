"""Exchanges: who gets whose block, from the cuts before and after. By hand."""

import numpy as np
import pytest

from shardwise.errors import BadRequest
from shardwise.sharding.exchange import exchange_of, exchanged
from shardwise.work import Exchange, Sends


def test_axes_that_stay_and_the_order_of_dims_make_no_other_exchange():
    one = exchange_of([("X", "Z"), ("Y",)], [("Y", "Z"), ("X",)], ("X", "Y"))
    other = exchange_of([("Y",), ("X",)], [("X",), ("Y",)], ("X", "Y"))
    assert one == other
    assert one.before == (("X",), ("Y",))


def test_a_transpose_keeps_the_diagonal():
    exchange = exchange_of([("X",), ("Y",)], [("Y",), ("X",)], ("X", "Y"))
    held, wanted, found = exchanged(exchange, (2, 2))
    assert found.tolist() == [0, 2, 1, 3]
    assert np.array_equal(held[found], wanted)


def test_copies_stay_where_they_may():
    """A[I_X] -> A[I_Y] on 2 x 2: devices (0, 0) and (1, 1) have what they need."""
    exchange = exchange_of([("X",)], [("Y",)], ("X", "Y"))
    *_, found = exchanged(exchange, (2, 2))
    assert found.tolist() == [0, 2, 1, 3]


def test_pairs_that_were_read_leave_the_others():
    sends = Sends(axes=("X",), pairs=((0, 1), (1, 0)))
    *_, found = exchanged(sends, (4,))
    assert found.tolist() == [1, 0, 2, 3]


def test_blocks_of_other_shapes_are_refused():
    exchange = Exchange(axes=("X", "Y"), before=(("X",), ("Y",)), after=(("Y",), ("X",)))
    with pytest.raises(BadRequest, match="their shapes differ, so gather and slice instead"):
        exchanged(exchange, (2, 4))
