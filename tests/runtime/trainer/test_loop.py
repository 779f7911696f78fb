"""The loop: resuming changes nothing, microbatches hardly, and errors name their remedy."""

import shutil
import signal
import sys
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from runtime.trainer.made import make_plan, make_run
from shardwise.errors import BadRequest, ShardwiseError
from shardwise.runtime import initialise, shapes
from shardwise.runtime.trainer import Settings, loop, read_metrics, train
from shardwise.runtime.trainer.checkpoint import read_params
from shardwise.runtime.trainer.events import EventFile

sys.path.insert(0, str(Path(__file__).parents[3] / "scripts"))
from held_out import held_out_loss


def losses(run):
    return [(m["step"], m["loss"]) for m in read_metrics(run.out / "metrics.jsonl")]


def bits(folder):
    return {p.name: p.read_bytes() for p in folder.glob("*.safetensors")}


class Stop(Exception):
    """What ends a run in the middle."""


def stop_at(step):
    def report(metrics):
        if metrics.step == step:
            raise Stop

    return report


@pytest.mark.parametrize("optimizer", ["adam", pytest.param("muon", marks=pytest.mark.slow)])
def test_resuming_is_bit_identical(tmp_path, optimizer):
    plan = make_plan(tmp_path, optimizer=optimizer)
    whole = make_run(tmp_path, plan, save_every=2, out=tmp_path / "whole")
    done = train(whole)
    cut = make_run(tmp_path, plan, save_every=2, out=tmp_path / "cut", resume=True)
    with pytest.raises(Stop):
        train(cut, stop_at(5))
    assert [s for s, _ in losses(cut)][-1] == 5
    resumed = train(cut)
    assert resumed.from_step == 4
    assert losses(cut) == losses(whole)
    assert bits(resumed.checkpoint) == bits(done.checkpoint) != {}
    assert resumed.loss == done.loss


@pytest.mark.slow
def test_a_run_that_is_done_does_nothing(tmp_path):
    run = make_run(tmp_path, settings=Settings(steps=1))
    train(run)
    again = train(replace(run, resume=True))
    assert (again.from_step, again.loss) == (1, None)


def test_a_resume_without_a_checkpoint_begins_and_says_so(tmp_path):
    run, said = make_run(tmp_path, settings=Settings(steps=1), resume=True), []
    assert train(run, note=said.append).from_step == 0
    assert said[0].startswith("no checkpoint in '")
    assert said[0].endswith("out/checkpoints', starting at step 0")


@pytest.fixture
def listening():
    """SIGINT as a terminal's programs have it; a shell's background jobs are started without."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("listening")
def test_an_interrupt_saves_its_step_and_the_run_goes_on(tmp_path):
    whole = make_run(tmp_path, out=tmp_path / "whole")
    done = train(whole)
    cut, said, before = make_run(tmp_path, resume=True), [], signal.getsignal(signal.SIGINT)

    def stop(metrics):
        if metrics.step == 3:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        train(cut, stop, said.append)
    assert "stopping after this step is saved; press Ctrl-C again to stop at once" in said
    assert signal.getsignal(signal.SIGINT) is before
    resumed = train(cut)
    assert resumed.from_step == 4
    assert losses(cut) == losses(whole)
    assert bits(resumed.checkpoint) == bits(done.checkpoint) != {}


@pytest.mark.usefixtures("listening")
def test_a_second_interrupt_ends_the_run_at_once(tmp_path):
    def stop(metrics):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    run = make_run(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        train(run, stop)
    assert not list(run.out.glob("checkpoints/step-*"))


def test_a_folder_with_a_run_is_not_overwritten(tmp_path):
    run = make_run(tmp_path, settings=Settings(steps=1))
    train(run)
    with pytest.raises(BadRequest, match="holds a run up to step 1; add --resume"):
        train(run)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"seed": 1}, "was made with seed 0, and this run has 1"),
        ({"settings": Settings(steps=2, lr=0.5)}, "was made with lr 0.001, and this run has 0.5"),
        ({"settings": Settings(steps=3)}, "was made with steps 2, and this run has 3"),
        ({"config": {"hidden_size": 64}}, "was made with model"),
        ({"text": "other"}, "was made with data"),
    ],
)
def test_another_runs_checkpoint_is_refused(tmp_path, change, text):
    run = make_run(tmp_path, settings=Settings(steps=2))
    train(run)
    if "config" in change:
        (tmp_path / "wide").mkdir()
        change = {"plan": make_plan(tmp_path / "wide", config=change["config"])}
        change["cfg"] = make_run(tmp_path, change["plan"]).cfg
    if "text" in change:
        (run.data / "file0.txt").write_text(change["text"] * 300)
        change = {}
    with pytest.raises(BadRequest, match=text):
        train(replace(run, resume=True, **change))


@pytest.mark.slow
def test_microbatches_only_round_differently(tmp_path):
    found = []
    for count in (1, 4):
        plan = make_plan(tmp_path, microbatches=count)
        run = make_run(tmp_path, plan, out=tmp_path / str(count))
        train(run)
        found.append([loss for _, loss in losses(run)])
    np.testing.assert_allclose(found[0], found[1], rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    "mesh",
    [{"data": 2, "fsdp": 2}, pytest.param({"fsdp": 2, "tensor": 2}, marks=pytest.mark.slow)],
)
def test_a_mesh_follows_one_device(tmp_path, mesh):
    one = make_run(tmp_path, save_every=3, out=tmp_path / "one")
    train(one)
    plan = make_plan(tmp_path, mesh)
    many = make_run(tmp_path, plan, save_every=3, out=tmp_path / "many")
    train(many)
    np.testing.assert_allclose([x for _, x in losses(one)], [x for _, x in losses(many)], rtol=1e-4)
    params = read_params(many.out / "checkpoints" / "step-00000006", _whole_shapes(one))
    alone = read_params(one.out / "checkpoints" / "step-00000006", _whole_shapes(one))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-2, atol=1e-3), params, alone)


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["sgd", "adam8bit", "adafactor", "muon"])
def test_any_optimizer_follows_one_device(tmp_path, optimizer):
    """Cut over fsdp and tensor, and resumed from one device's checkpoint."""
    plan = make_plan(tmp_path, optimizer=optimizer)
    one = make_run(tmp_path, plan, settings=Settings(steps=4), save_every=2)
    with pytest.raises(Stop):
        train(one, stop_at(3))
    shutil.copytree(one.out, tmp_path / "many")
    train(replace(one, resume=True))
    plan = make_plan(tmp_path, {"fsdp": 2, "tensor": 2}, optimizer=optimizer)
    many = replace(one, plan=plan, out=tmp_path / "many", resume=True)
    assert train(many).from_step == 2
    np.testing.assert_allclose([x for _, x in losses(one)], [x for _, x in losses(many)], rtol=1e-4)


@pytest.mark.slow
def test_another_mesh_goes_on(tmp_path):
    """From one device's checkpoint, as one device would but for rounding."""
    one = make_run(tmp_path, save_every=3)
    with pytest.raises(Stop):
        train(one, stop_at(5))
    shutil.copytree(one.out, tmp_path / "many")
    train(replace(one, resume=True))
    plan = make_plan(tmp_path, {"data": 2, "fsdp": 2})
    many = make_run(tmp_path, plan, out=tmp_path / "many", resume=True)
    assert train(many).from_step == 3
    np.testing.assert_allclose([x for _, x in losses(one)], [x for _, x in losses(many)], rtol=1e-4)


@pytest.mark.slow
def test_stages_are_trained_and_resumed(tmp_path):
    plan = make_plan(tmp_path, {"stage": 2}, microbatches=2, layers_per_stage=(1, 1))
    whole = make_run(tmp_path, plan, save_every=2, out=tmp_path / "whole")
    train(whole)
    cut = make_run(tmp_path, plan, save_every=2, out=tmp_path / "cut", resume=True)
    with pytest.raises(Stop):
        train(cut, stop_at(5))
    train(cut)
    assert losses(cut) == losses(whole)
    one = make_run(tmp_path, out=tmp_path / "one")
    train(one)
    np.testing.assert_allclose([x for _, x in losses(one)], [x for _, x in losses(cut)], rtol=1e-4)


def _whole_shapes(run):
    return shapes(run.cfg)


def test_a_loss_that_is_no_number_stops_the_run(tmp_path):
    run = make_run(tmp_path, settings=Settings(steps=6, lr=1e30, clip=0.0), save_every=1)
    with pytest.raises(ShardwiseError, match=r"the loss of step \d is (nan|inf); lower --lr"):
        train(run)


@pytest.mark.slow
def test_a_gradient_is_clipped(tmp_path):
    """SGD by a rate of 1 moves the parameters by no more than the clip."""
    settings = Settings(steps=1, lr=1.0, schedule="constant", clip=0.5, decay=0.0)
    run = make_run(tmp_path, make_plan(tmp_path, optimizer="sgd"), settings=settings)
    train(run)
    after = read_params(run.out / "checkpoints" / "step-00000001", _whole_shapes(run))
    before = initialise(run.cfg, jax.random.key(0))
    moved = jax.tree.map(lambda a, b: jnp.square(a - b).sum(), after, before)
    assert read_metrics(run.out / "metrics.jsonl")[0]["grad_norm"] > 0.5
    assert float(jnp.sqrt(sum(jax.tree.leaves(moved)))) == pytest.approx(0.5, rel=1e-4)


def test_metrics_and_events_are_written(tmp_path):
    run = make_run(tmp_path, settings=Settings(steps=3))
    seen = []
    train(run, seen.append)
    lines = read_metrics(run.out / "metrics.jsonl")
    assert [m["step"] for m in lines] == [m.step for m in seen] == [1, 2, 3]
    assert lines[0]["seconds"] is None
    assert lines[2]["tokens"] == 3 * 8 * 32
    assert lines[2]["tokens_per_second"] == pytest.approx(256 / lines[2]["seconds"])
    events = next((run.out / "tensorboard").iterdir()).read_bytes()
    assert events.count(b"loss") == 3


def test_an_event_file_has_the_bytes_of_the_format(tmp_path, monkeypatch):
    """One value of one step, as `tensorboard` 2.20 reads it (length, CRC, event, CRC)."""
    monkeypatch.setattr("time.time", lambda: 1.0)
    file = EventFile(tmp_path)
    file.scalars(300, {"loss": 1.5})
    file.close()
    data = next(tmp_path.iterdir()).read_bytes()
    event = b"\x09" + b"\0" * 6 + b"\xf0\x3f" + b"\x10\xac\x02" + b"\x2a\x0d\x0a\x0b\x0a\x04loss"
    assert data[:8] == (26).to_bytes(8, "little")
    assert b"brain.Event:2" in data
    assert event + b"\x15\0\0\xc0\x3f" in data


@pytest.mark.slow
def test_a_profile_is_taken(tmp_path):
    train(make_run(tmp_path, profile=True))
    assert list((tmp_path / "out" / "profile").rglob("*.xplane.pb"))


def test_the_mesh_must_be_the_devices(tmp_path, all_devices):
    with pytest.raises(
        BadRequest,
        match=r"mesh data=2 has 2 device\(s\) and 8 cpu device\(s\) are here; plan for 8, or give "
        "--cpu-devices 2",
    ):
        loop.check_devices(make_plan(tmp_path, {"data": 2}))


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"lora_rank": 4}, "lora_rank"),
        ({"offload_optimizer": True}, "offload_optimizer"),
        ({"frozen": ("embedding",)}, "frozen"),
    ],
)
def test_choices_that_are_not_run_are_refused(tmp_path, changes, text):
    with pytest.raises(BadRequest, match=text):
        train(make_run(tmp_path, make_plan(tmp_path, **changes)))


def test_an_out_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(BadRequest, match="cannot write to --out"):
        train(make_run(tmp_path, out=tmp_path / "file" / "out"))


def test_the_loss_on_other_text(tmp_path):
    run = make_run(tmp_path)
    done = train(run)
    loss, tokens = held_out_loss(run, done.checkpoint, run.data)
    assert done.loss == pytest.approx(loss, rel=0.1)
    assert tokens > 3000


@pytest.mark.parametrize("all_of_them", [False, True])
def test_a_damaged_checkpoint_is_told_with_the_one_that_is_used(tmp_path, all_of_them):
    run = make_run(tmp_path, save_every=3)
    whole = train(run)
    curve = read_metrics(tmp_path / "out" / "metrics.jsonl")
    for step in (3, 6) if all_of_them else (6,):
        file = next(tmp_path.glob(f"out/checkpoints/step-{step:08}/*.safetensors"))
        file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(BadRequest, match="holds a run up to step 6; add --resume"):
        train(run)
    notes = []
    again = train(replace(run, resume=True), note=notes.append)
    assert again.from_step == (0 if all_of_them else 3)
    used = "starting at step 0" if all_of_them else "continuing from step 3"
    told = [text for text in again.warnings if "damaged" in text]
    assert told[0].endswith(f" bytes); {used}")
    assert all(text in notes for text in told)
    assert len(told) == 1 + all_of_them
    assert not any("no checkpoint" in text for text in notes)
    assert again.loss == whole.loss
    losses = [
        [(m["step"], m["loss"]) for m in found]
        for found in (curve, read_metrics(tmp_path / "out" / "metrics.jsonl"))
    ]
    assert losses[0] == losses[1]
