"""Which step waits for which: the critical path, what is freed when, what can be shared.

The critical path of a phase runs from what the neighbouring layer gives (activations forward, their
gradients backward) to what it waits for. A step off it either needs nothing of that, so it can run
ahead, or feeds nothing of it, so it can run behind.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from shardwise.sharding.backward.derive import Derivation, PhaseName, gradient_layout
from shardwise.sharding.backward.forward import Forward
from shardwise.sharding.layout import Layout
from shardwise.sharding.steps import ShardStep


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """A step and what its dependencies say about it.

    `waits`: it needs an activation (or gradient) that the neighbouring layer gives. `feeds`: the
    next layer in this phase needs it. `frees`: arrays that nothing reads any more after it, and
    `copies` those of them that were gathered from what is stored anyway. `made_in` is the number
    (from 1) of the forward step that makes the same copy of an activation, 0 if none: the step can
    be left out if that copy, one of the `keepable` copies of the forward, is not freed.
    """

    step: ShardStep
    waits: bool
    feeds: bool
    frees: tuple[Layout, ...]
    copies: tuple[Layout, ...]
    keepable: tuple[Layout, ...]
    made_in: int = 0

    @property
    def critical(self) -> bool:
        """Whether the layers' chain of activations runs through this step."""
        return self.waits and self.feeds


def analyse(derivation: Derivation, phase: PhaseName) -> tuple[Note, ...]:
    """The steps of one phase with what can be said of each, in order."""
    steps = derivation.steps(phase)
    given, wanted = _ends(derivation.source, phase)
    waits, feeds = _downstream(steps, given), _upstream(steps, wanted)
    frees = _frees(steps, _kept(derivation, phase))
    shared = _shared(derivation) if phase == "backward" else {}
    gathered = {step.output for step in steps if step.kind == "all_gather"}
    again = {step.output for step in _shared(derivation) if step in derivation.backward}
    return tuple(
        Note(
            step=step,
            waits=waits[i],
            feeds=feeds[i],
            frees=frees[i],
            copies=tuple(array for array in frees[i] if array in gathered),
            keepable=tuple(a for a in frees[i] if phase == "forward" and a in again),
            made_in=shared.get(step, 0),
        )
        for i, step in enumerate(steps)
    )


def _ends(source: Forward, phase: PhaseName) -> tuple[set[Layout], set[Layout]]:
    """What the neighbouring layers give a phase, and what they wait for."""
    arrays = source.arrays
    inputs, outputs = source.inputs, source.outputs
    match phase:
        case "forward":
            return {arrays[n] for n in inputs}, {arrays[n] for n in outputs}
        case "backward":
            given = {gradient_layout(source, n) for n in outputs}
            return given, {gradient_layout(source, n) for n in inputs}
        case "update":
            return set(), set()


def _downstream(steps: Sequence[ShardStep], given: set[Layout]) -> list[bool]:
    reached, found = set(given), []
    for step in steps:
        found.append(any(array in reached for array in step.inputs))
        if found[-1]:
            reached.add(step.output)
    return found


def _upstream(steps: Sequence[ShardStep], wanted: set[Layout]) -> list[bool]:
    reached, found = set(wanted), []
    for step in reversed(steps):
        found.append(step.output in reached)
        if found[-1]:
            reached.update(step.inputs)
    return found[::-1]


def _kept(derivation: Derivation, phase: PhaseName) -> set[Layout]:
    """What outlives the phase, or was never made for it."""
    source = derivation.source
    stored = {s.parameter for s in source.storage.values()}
    constants = {source.arrays[name] for name in source.constants}
    _, wanted = _ends(source, phase)
    if phase == "forward":
        given, _ = _ends(source, phase)
        return {*stored, *wanted, *given, *constants, *derivation.saved}
    gradients = {s.gradient for s in source.storage.values()}
    return {*stored, *gradients, *wanted, *constants}


def _frees(steps: Sequence[ShardStep], kept: set[Layout]) -> list[tuple[Layout, ...]]:
    last = {array: i for i, step in enumerate(steps) for array in step.inputs}
    return [
        tuple(a for a in dict.fromkeys(step.inputs) if last[a] == i and a not in kept)
        for i, step in enumerate(steps)
    ]


def _shared(derivation: Derivation) -> dict[ShardStep, int]:
    """Backward steps on activations that the forward does as well, with the forward's number."""
    return {
        step: number
        for number, step in enumerate(derivation.forward, 1)
        if step.communicates and step.inputs[0].name not in derivation.source.storage
    }
