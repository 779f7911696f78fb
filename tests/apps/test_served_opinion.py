"""`plan serve --compile N`: which servers are compiled, and which of them are the answer.

A compiler stands in that makes of each step what a test says;
`tests/commands/program/test_compiling.py` goes through the real one.
"""

import threading

import pytest
from tests.apps.commands import document, over, refused, run
from tests.apps.test_compile import kept

from shardwise.commands.base.inputs import Hardware
from shardwise.commands.pricing.plans import load_plan, price_plan
from shardwise.commands.program import candidate
from shardwise.commands.program.compiling import CompiledPlan, PlanProgram, predicted_of
from shardwise.errors import ShardwiseError
from shardwise.planner.simulate.cost import DecodeLine, ScaledCost, StepShape
from shardwise.profiler.hlo.door import read_module
from shardwise.profiler.hlo.work import module_work
from shardwise.profiler.timeline import schedule
from shardwise.sharding import Mesh

CAPACITY = 15.75 * 2**30


@pytest.fixture
def compiler(monkeypatch):
    """Makes the steps of a plan so many times as long as priced: `factor(plan, phase)`, None for
    one that does not fit, or an error; gives the (plan, phase, options) asked for."""
    program = kept("good_mlp.a.clean")
    work = module_work(read_module(program.hlo), Mesh(tuple(program.mesh.items())))
    piece, lock = Hardware().slice("v5e:2x4").slice, threading.Lock()
    line, explained = schedule(work, piece), candidate.explained
    monkeypatch.setattr(candidate, "explained", lambda program, _: explained(program, piece))
    monkeypatch.setattr(candidate, "places_for", lambda size: 1)

    def stand_in(factor):
        asked = []

        def compile_plan(plan, hardware, *, phases, **more):
            (phase,) = phases
            with lock:
                asked.append((plan, phase, more))
            times = factor(plan, phase)
            if isinstance(times, Exception):
                raise times
            said = predicted_of(price_plan(plan, hardware), phase)
            needed = 2**30 if times else CAPACITY + 2**30
            compiled = kept("good_mlp.a.clean", fits=times is not None, needed_bytes=needed)
            seconds = said.seconds.expected * (times or 1.0)
            found = PlanProgram(
                phase=phase,
                compiled=compiled,
                work=work,
                timeline=type(line)(
                    **{name: getattr(line, name) for name in line.__slots__} | {"expected": seconds}
                ),
                predicted=said,
            )
            return CompiledPlan(priced=None, programs=(found,))

        monkeypatch.setattr(candidate, "compile_plan", compile_plan)
        return asked

    return stand_in


def compiling(count, *more):
    asked = ["plan", "serve", "--model", "llama-3.2-1b", "--on", "v5e:2x2"]
    return over((*asked, "--input", 512, "--output", 64, "--compile", count), *more)


@pytest.mark.slow
def test_the_cheapest_as_compiled_is_the_answer(capsys, compiler, tmp_path):
    """The mesh that is priced best takes three times as long as compiled: the next one answers,
    with the load that it holds so."""
    first = document(capsys, *compiling(1)[:-2], "--for", "jax")["result"]
    asked = compiler(lambda plan, phase: 3.0 if dict(plan.mesh) == first["mesh"] else 1.2)
    path = tmp_path / "plan.yaml"
    doc = document(capsys, *compiling(2, "-o", path))
    rows = doc["result"]["compiled"]["plans"]
    assert rows[0]["mesh"] == first["mesh"]
    assert [row["best"] for row in rows] == [False, True]
    assert doc["result"]["mesh"] == rows[1]["mesh"] == dict(load_plan(path).mesh)
    assert doc["result"]["software"] == doc["resolved"]["software"]["value"] == "jax"
    for row, times in zip(rows, (3.0, 1.2), strict=True):
        for name in ("decode_step_seconds", "prefill_step_seconds"):
            assert row[name]["compiled"] == pytest.approx(times * row[name]["predicted"])
        held = row["requests_per_second"]
        assert held["compiled"] < held["predicted"] < 2 * times * held["compiled"]
    # What is answered, and written, is the load that the compiled steps hold.
    load = load_plan(path).workload
    assert load.rate == doc["result"]["requests_per_second"]
    assert load.rate == rows[1]["requests_per_second"]["compiled"]
    assert doc["result"]["holds"]
    assert doc["result"]["tpot_seconds"]["expected"] == rows[1]["tpot_seconds"]
    assert [phase for _, phase, _ in asked] == ["decode", "prefill"] * 2
    assert all(plan.engine == "jax" for plan, _, _ in asked)


@pytest.mark.slow
def test_a_plan_that_does_not_fit_is_followed_by_the_next(capsys, compiler):
    seen = []

    def factor(plan, phase):
        seen.append(phase)
        return None if len(seen) == 1 else 1.1

    asked = compiler(factor)
    code, page, _ = run(capsys, *compiling(1))
    assert code == 0
    assert seen == ["decode", "decode", "prefill"]  # prefill of what does not fit is not compiled
    assert "decode does not fit: 1 GiB (1.07 GB) too much" in page
    assert "(best)" in page
    assert "(+10 % against predicted)" in page
    assert dict(asked[0][0].mesh) != dict(asked[1][0].mesh)


def test_what_the_compiler_is_told(capsys, compiler):
    asked = compiler(lambda plan, phase: 1.0)
    run(capsys, *compiling(1, "--timeout", 60, "--option", "xla_a=8"))
    (decode, _, more), (prefill, _, _) = asked
    assert more["options"] == {"xla_a": 8}
    assert more["limits"].seconds == 60
    assert prefill.input_length == min(512, prefill.prefill_chunk)
    assert decode.input_length == 512


@pytest.mark.slow
def test_where_none_holds_fits_or_compiles(capsys, compiler):
    compiler(lambda plan, phase: 1e4)
    said = refused(capsys, compiling(1, "--tpot", "20ms"), code=3)
    assert "none of 1 plan keeps the targets once compiled" in said
    compiler(lambda plan, phase: None)
    assert "none of the first 3 plans fits once compiled" in refused(capsys, compiling(1), code=3)
    compiler(lambda plan, phase: ShardwiseError("it was stopped after 60 s"))
    said = refused(capsys, compiling(1), code=1)
    assert "no plan could be compiled: decode: it was stopped after 60 s" in said


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--for", "vllm"], "--compile compiles our own server's steps, and --for is vllm"),
        (["--anyway"], "--compile ranks plans by the load that they hold"),
        (["--on", "v5e,v5p"], "--compile takes one chip or slice"),
    ],
)
def test_what_cannot_be_compiled_is_refused(capsys, more, said):
    assert said in refused(capsys, compiling(1, *more))


class Linear:
    """Ten seconds a step, one for each decoding sequence, a hundredth for each prompt token."""

    def seconds(self, shape):
        base = 10.0 + shape.decodes + 0.001 * shape.decode_context
        return base + 0.01 * shape.prefill_tokens

    def decode_line(self, decodes, context):
        return DecodeLine(10.0 + decodes, 0.001)

    def transfer_seconds(self, tokens):
        return 2.0 * tokens

    def host_seconds(self, tokens):
        return 3.0 * tokens


def test_a_mixed_step_is_its_decoding_and_what_prompts_add():
    cost = ScaledCost(cost=Linear(), decode=2.0, prefill=3.0)
    alone = StepShape(decodes=4, decode_tokens=4, decode_context=1000, samples=4)
    mixed = alone._replace(prefills=1, prefill_tokens=100, samples=5)
    assert cost.seconds(alone) == 2 * 15
    assert cost.seconds(mixed) == 2 * 15 + 3 * 1
    assert cost.seconds(StepShape(prefills=1, prefill_tokens=100)) == 3 * 11
    line = cost.decode_line(4, 1000)
    assert line.base + 1000 * line.per_token == cost.seconds(alone)
    assert (cost.transfer_seconds(1), cost.host_seconds(1)) == (2.0, 3.0)


@pytest.mark.slow
def test_servers_for_a_rate_are_as_many_as_compiled_steps_need(capsys, compiler):
    """A rate needs more servers where steps take longer."""
    asked = [*compiling(1, "--rate", 200)]
    asked[asked.index("v5e:2x2")] = "v5e"
    without = asked.index("--compile")
    plain = [*asked[:without], *asked[without + 2 :], "--for", "jax"]
    priced = document(capsys, *plain)["result"]
    compiler(lambda plan, phase: 2.5)
    found = document(capsys, *asked)["result"]
    assert found["chips"] > priced["chips"]
    assert found["requests_per_second"] == priced["requests_per_second"] == 200
    (row,) = found["compiled"]["plans"]
    assert row["chips"] == found["chips"]
