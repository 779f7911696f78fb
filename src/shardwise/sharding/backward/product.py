"""Which letter each mesh axis works on in a sharded product, and what has to move for that.

In one product an axis works on one letter (or on none, when every device along it does the same).
An operand that is cut by the axis elsewhere is gathered or swapped, one that is not cut is sliced;
if the letter is contracted the result is unreduced over the axis. Among the letters that the axis
cuts in some operand or in the wanted result, the one that moves the fewest arrays is taken, weighed
by what a ring moves (all-gather and reduce-scatter 1, all-reduce 2, all-to-all 1/4: book 3.3.1).

The sizes are left out on purpose: a strategy IS its layouts, and FSDP gathers its weights even
where the tokens would be cheaper to move. The resolver prices alternatives; this derives the one
that was given.
"""

from collections.abc import Mapping, Sequence

from shardwise.sharding.layout import Dim, Layout

WEIGHT = {"all_gather": 1.0, "reduce_scatter": 1.0, "all_reduce": 2.0, "all_to_all": 0.25}
"""What one collective of V bytes moves, as a share of V / W_bidirectional (book 3.3.1)."""
_NEVER = 1e9
_PARTIAL = "{U}"

Place = str | None
"""Where an axis is in an array: the letter that it cuts, `_PARTIAL`, or None."""
Cost = tuple[float, int, int]
"""Weight of what moves, number of collectives, 1 if the work is repeated over the axis."""


def place(layout: Layout, axis: str) -> Place:
    """The letter that `axis` cuts in the array."""
    if axis in layout.unreduced:
        return _PARTIAL
    return next((dim.name for dim in layout.dims if axis in dim.axes), None)


def local_product(operands: Sequence[Layout], wanted: Layout) -> tuple[tuple[Layout, ...], Layout]:
    """The layouts in which the operands must be, and in which their local product comes out.

    >>> a, b, c = map(Layout.parse, ("In[B_X, D]", "W_in[D_X, F]", "Tmp[B_X, F]"))
    >>> needed, made = local_product((a, b), c)
    >>> [str(n) for n in needed], str(made)
    (['In[B_X, D]', 'W_in[D, F]'], 'Tmp[B_X, F]')
    """
    arrays = (*operands, wanted)
    axes = dict.fromkeys(axis for array in arrays for axis in (*array.axes, *array.unreduced))
    letters = tuple(array.letters for array in operands)
    roles = {
        axis: choose(
            [place(o, axis) for o in operands], letters, wanted.letters, place(wanted, axis)
        )
        for axis in axes
    }
    cuts = cuts_of(arrays, roles)
    contracted = tuple(a for a, role in roles.items() if role and role not in wanted.letters)
    made = Layout(name=wanted.name, dims=_dims(wanted, cuts), unreduced=contracted)
    needed = tuple(Layout(name=o.name, dims=_dims(o, cuts)) for o in operands)
    return needed, made


def choose(
    places: Sequence[Place],
    letters: Sequence[tuple[str, ...]],
    result: tuple[str, ...],
    goal: Place,
) -> str | None:
    """The letter on which one axis works in one product: the cheapest, see the module."""
    found = dict.fromkeys(p for p in (*places, goal) if p and p != _PARTIAL)
    roles: list[str | None] = [*found, None]
    return min(roles, key=lambda role: cost(role, places, letters, result, goal))


def cost(
    role: str | None,
    places: Sequence[Place],
    letters: Sequence[tuple[str, ...]],
    result: tuple[str, ...],
    goal: Place,
) -> Cost:
    """What one axis costs in one product if it works on the letter `role`."""
    weight, count = 0.0, 0
    for at, own in zip(places, letters, strict=True):
        moved = _move(at, role if role in own else None)
        weight, count = weight + moved, count + (moved > 0)
    made = role if role in result or role is None else _PARTIAL
    moved = _move(made, goal)
    return weight + moved, count + (moved > 0), int(role is None)


def _move(at: Place, goal: Place) -> float:
    """Weight of the collective that takes an axis from one place of an array to another."""
    if at == goal or (at is None and goal != _PARTIAL):
        return 0.0
    if goal == _PARTIAL:
        return _NEVER
    if at == _PARTIAL:
        return WEIGHT["reduce_scatter" if goal else "all_reduce"]
    return WEIGHT["all_to_all" if goal else "all_gather"]


def cuts_of(
    arrays: Sequence[Layout], roles: Mapping[str, str | None]
) -> dict[str, tuple[str, ...]]:
    """The axes of every letter, in the order of the array that has most of them already."""
    cuts: dict[str, tuple[str, ...]] = {}
    for letter in dict.fromkeys(role for role in roles.values() if role):
        mine = [axis for axis, role in roles.items() if role == letter]
        orders = [
            tuple(axis for axis in dim.axes if axis in mine)
            for array in arrays
            for dim in array.dims
            if dim.name == letter
        ]
        longest = max(orders, key=len)
        cuts[letter] = longest + tuple(axis for axis in mine if axis not in longest)
    return cuts


def _dims(layout: Layout, cuts: Mapping[str, tuple[str, ...]]) -> tuple[Dim, ...]:
    return tuple(Dim(dim.name, cuts.get(dim.name, ())) for dim in layout.dims)
