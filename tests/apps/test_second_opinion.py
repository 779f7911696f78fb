"""`plan train --compile N`: which plans are compiled, and which of them is the answer.

A compiler stands in that makes of each plan what a test says;
`tests/commands/program/test_compiling.py` goes through the real one.
"""

import threading

import pytest
from tests.apps.commands import document, refused, run
from tests.apps.test_compile import kept
from tests.apps.test_plan_train import HELD, small

from shardwise.boundary import at_once
from shardwise.commands.base.inputs import Hardware
from shardwise.commands.program import candidate
from shardwise.commands.program.compiling import CompiledPlan, PlanProgram
from shardwise.commands.program.tune import Tuning
from shardwise.errors import ShardwiseError
from shardwise.plans.software.xla_flags import flag_sets, trained_flags, tried_sets
from shardwise.plans.train import mesh_text
from shardwise.profiler.hlo.door import read_module
from shardwise.profiler.hlo.work import module_work
from shardwise.profiler.timeline import schedule
from shardwise.sharding import Mesh

pytestmark = pytest.mark.usefixtures("answers_kept")

CAPACITY = 15.75 * 2**30


@pytest.fixture
def compiler(monkeypatch):
    """Makes of the i-th plan the step `steps[i]`: its seconds, None for one that does not fit, or
    an error; gives the meshes asked for."""
    program = kept("good_mlp.a.clean")
    work = module_work(read_module(program.hlo), Mesh(tuple(program.mesh.items())))
    line = schedule(work, Hardware().slice("v5e:2x4").slice)

    def stand_in(*steps):
        asked, lock = [], threading.Lock()

        def compile_plan(plan, hardware, **more):
            with lock:
                step = steps[len(asked)]
                asked.append((mesh_text(plan.mesh), plan, more))
            if isinstance(step, Exception):
                raise step
            needed = 2**30 if step else int(CAPACITY) + 2**30
            compiled = kept("good_mlp.a.clean", fits=step is not None, needed_bytes=needed)
            made = (
                line
                if step is None
                else type(line)(
                    **{name: getattr(line, name) for name in line.__slots__} | {"expected": step}
                )
            )
            found = PlanProgram(
                phase="train", compiled=compiled, work=work, timeline=made, predicted=None
            )
            return CompiledPlan(priced=None, programs=(found,))

        monkeypatch.setattr(candidate, "compile_plan", compile_plan)
        monkeypatch.setattr(candidate, "places_for", lambda size: 1)
        return asked

    return stand_in


def compiling(count, *more):
    return [*small(model="llama-3.2-1b", on="v5e:2x4"), *HELD[:2], "--compile", count, *more]


def test_the_best_as_compiled_is_the_answer(capsys, compiler):
    asked = compiler(3.0, 2.0)
    doc = document(capsys, *compiling(2))
    rows = doc["result"]["compiled"]["plans"]
    assert [row["best"] for row in rows] == [False, True]
    assert [row["step_seconds"]["compiled"] for row in rows] == [3.0, 2.0]
    assert rows[0]["mesh"] == document(capsys, *compiling(2)[:-2])["result"]["mesh"]
    assert doc["result"]["mesh"] == rows[1]["mesh"] == dict(asked[1][1].mesh)
    assert all(plan.software == "jax" and "stage" not in plan.mesh for _, plan, _ in asked)


def test_a_plan_that_does_not_fit_is_followed_by_the_next(capsys, compiler):
    asked = compiler(None, 2.0)
    code, page, _ = run(capsys, *compiling(1))
    assert (code, len(asked)) == (0, 2)
    assert f"{asked[0][0]}: does not fit: 1 GiB (1.07 GB) too much" in page
    assert f"{asked[1][0]} (best)" in page
    assert "compiled  2 s (" in page
    assert "16.8 GiB: too much" in page


def test_a_program_that_was_refused_has_no_seconds(capsys, compiler):
    """Its text was never scheduled, so that the reader's seconds are none of the compiler's."""
    compiler(None, 2.0)
    over, best = document(capsys, *compiling(1))["result"]["compiled"]["plans"]
    assert over["step_seconds"]["compiled"] is None
    assert over["peak_bytes"]["compiled"] == int(CAPACITY) + 2**30
    assert best["step_seconds"]["compiled"] == 2.0


def test_what_the_compiler_is_told(capsys, compiler):
    asked = compiler(2.0)
    run(capsys, *compiling(1, "--timeout", 60, "--option", "xla_a=8", "--option", "xla_b=true"))
    (_, _, more) = asked[0]
    assert more["options"] == {"xla_a": 8, "xla_b": "true"}
    assert more["limits"].seconds == 60


def test_where_none_fits_or_none_compiles(capsys, compiler):
    compiler(None, None, None, None)
    assert "plans fits once compiled" in refused(capsys, compiling(1), code=3)
    compiler(*[ShardwiseError("it was stopped after 60 s")] * 4)
    said = refused(capsys, compiling(1), code=1)
    assert "no plan could be compiled: it was stopped after 60 s" in said


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--for", "maxtext"], "--compile compiles our own trainer's step, and --for is maxtext"),
        (["--pin", "stage=2"], "leave out --pin stage"),
    ],
)
def test_what_cannot_be_compiled_is_refused(capsys, more, said):
    assert said in refused(capsys, compiling(1, *more))


def test_several_at_once_stay_in_order_and_raise():
    both = threading.Barrier(2, timeout=30)  # passed only where two run at a time

    def call(i):
        both.wait()
        return i * i

    assert at_once.at_once(call, range(4), 2) == [0, 1, 4, 9]
    with pytest.raises(ZeroDivisionError):
        at_once.at_once(lambda i: 1 // i, [1, 0], 2)


def test_memory_decides_how_many(tmp_path, monkeypatch):
    said = tmp_path / "meminfo"
    said.write_text("MemTotal: 9 kB\nMemAvailable:   12582912 kB\n")
    assert at_once.available_bytes(said) == 12 * 2**30
    monkeypatch.setattr(at_once.os, "cpu_count", lambda: 64)
    monkeypatch.setattr(at_once, "available_bytes", lambda: 12 * 2**30)
    assert at_once.places_for(5 * 2**30) == 2


def test_flags_that_pay_are_named(capsys, compiler):
    """Four sets for a v5e: two shorten the step by 10 and 5 %, both together by 14."""
    asked = compiler(2.0, 1.8, 2.0, 1.9, 2.2, 1.72)
    doc = document(capsys, *compiling(1, "--tune"))
    tuning = doc["result"]["compiled"]["tuning"]
    assert [row["name"] for row in tuning["tried"]][-1] == tuning["best"] == "together"
    assert tuning["tried"][0]["change"] == pytest.approx(-0.1)
    assert tuning["tried"][3]["change"] == pytest.approx(0.1)
    together = {**tuning["tried"][0]["options"], **tuning["tried"][2]["options"]}
    assert asked[-1][2]["options"] == together == tuning["tried"][-1]["options"]
    assert tuning["libtpu_init_args"].split()[0] == "--xla_enable_async_all_gather=true"


def test_flags_of_which_none_pays(capsys, compiler):
    compiler(2.0, 2.0, 1.99, None, 2.1)
    code, page, _ = run(capsys, *compiling(1, "--tune"))
    assert code == 0
    assert "No set of flags shortens this step by more than 1 %." in page
    assert "does not fit" in page


def test_flags_are_those_of_option_and_the_page_has_them_before_all_else(capsys, compiler):
    """So that what --tune compiled is there for --option, which makes numbers of numbers."""
    asked = compiler(2.0, 1.8, 2.0, 2.0, 1.9, 1.7)
    _, page, _ = run(capsys, *compiling(1, "--tune"))
    assert asked[4][2]["options"] == {"xla_jf_spmd_threshold_for_windowed_einsum_mib": 1000000}
    before, flags, _ = page.partition("  flags  ")
    assert flags
    assert "where the step goes" not in before
    assert "tuned     1.7 s with 'together', below" in page
    assert "Run it with: export LIBTPU_INIT_ARGS='--xla_enable_async_all_gather=true" in page


def test_flags_that_the_trainer_has_on_are_not_tried_and_are_named():
    own = trained_flags("v5p")
    assert own["xla_tpu_scoped_vmem_limit_kib"] == "49152"
    assert not {"async gathers", "most of VMEM"} & {one.name for one in tried_sets("v5p")}
    assert tried_sets("v5e") == flag_sets("v5e")
    page = "\n".join(map(str, Tuning(seconds=1.0, tried=(), own=own).page()))
    assert "shardwise train already sets: --xla_enable_async_all_gather=true" in page


def test_flags_need_a_compiled_plan(capsys):
    said = refused(capsys, [*small(model="llama-3.2-1b", on="v5e:2x4"), "--tune"])
    assert "give --compile N too" in said
