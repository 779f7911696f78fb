"""`serve plan.yaml`: a plan's mesh, replicas and scheduling; predicted beside measured."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from random import Random
from urllib.request import Request, urlopen

import pytest
from tests.apps.commands import refused, run
from tests.apps.server.made import folder_of
from tests.runtime import goldens
from tests.tiers import spread

from shardwise import plans
from shardwise.apps.server.run import running
from shardwise.commands.run.serving import ServeModelRequest, StepRecord, open_replica
from shardwise.errors import BadRequest
from shardwise.models import load_model
from shardwise.plans import model_hash
from shardwise.plans.files import save_plan
from shardwise.plans.serve import (
    CHECKPOINT,
    ENGINE_CACHES,
    ENGINE_WEIGHTS,
    ServeDtypes,
    ServePlan,
    ServeScheduling,
)
from shardwise.plans.servers import JAX
from shardwise.runtime.cache_entry import CACHES
from shardwise.runtime.engine import GREEDY
from shardwise.runtime.engine.opening import EngineSettings, open_engine
from shardwise.runtime.quant import NARROW
from shardwise.scheduling.step import StepShape

PLAN = {"slice": "v5e:2x2", "mesh": {"data": 2, "tensor": 2}, "box": (2, 2), "batch": 4}
LENGTHS = {"input_length": 64, "output_length": 32, "prefill_chunk": 32}
HEADERS = {"content-type": "application/json"}
F32 = ServeDtypes(weights="f32", kv="f32")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder = folder_of(tmp_path_factory.mktemp("tiny"))
    config = {
        **goldens.document("llama")["config"],
        "vocab_size": 320,
        "max_position_embeddings": 128,
    }
    (folder / "config.json").write_text(json.dumps(config))
    goldens.write_checkpoint(load_model(folder), folder)
    return folder


def plan_of(folder, path, **changes):
    values = {**PLAN, **LENGTHS, "dtypes": F32, "scheduling": ServeScheduling(page_size=4)}
    values |= {"model": str(folder), "model_hash": model_hash(load_model(folder))}
    save_plan(ServePlan(**{**values, **changes}), path)
    return path


def test_what_a_plan_says_is_what_the_engine_is_opened_with(checkpoint, tmp_path):
    path = plan_of(checkpoint, tmp_path / "plan.yaml", replicas=2, kv_sharding="heads")
    asked = ServeModelRequest(path=str(path), kv="bf16", kv_tokens=1024)
    settings = asked.settings(asked.plan)
    assert (settings.mesh, settings.kv_sharding) == (PLAN["mesh"], "heads")
    assert (settings.batch, settings.budget, settings.pages) == (4, 32, 256)
    assert (settings.weights, settings.cache) == ("f32", "bf16")
    assert settings.devices == 8


def test_plans_that_cannot_be_served_here_are_refused(checkpoint, tmp_path, capsys):
    def said(*words, **changes):
        path = plan_of(checkpoint, tmp_path / "plan.yaml", **changes)
        code, out, err = run(capsys, "serve", path, "--port", 0, *words)
        assert (code, out) == (2, "")
        return err.rpartition("error: ")[2]

    assert "32 devices are requested and 8 are here" in said(replicas=8)
    assert "has another model's layers" in said(model_hash="another")
    weights = ServeDtypes(weights="mxfp4", kv="f32")
    assert "weights in mxfp4" in said(dtypes=weights)
    assert "a cache in f64" in said(dtypes=ServeDtypes(weights="f32", kv="f64"))
    assert "unknown value of --weights 'f64'" in said("--weights", "f64")
    assert "unknown value of --kv 'int4'" in said("--kv", "int4")
    mesh = "mesh data=2 x tensor=4 has 8 devices and its slice v5e:2x2 4"
    assert mesh in said(mesh={"data": 2, "tensor": 4})
    assert "is not a plan's file" in refused(
        capsys, ["serve", checkpoint, "--port", 0, "--model", checkpoint]
    )
    assert "has no tokenizer.json" in said("--model", str(tmp_path))
    audit = Path(plans.__file__).parent / "data" / "audits" / "llama-3-405b-8k.yaml"
    assert "give a serving plan" in refused(capsys, ["serve", audit, "--port", 0])


@pytest.mark.slow
def test_a_plan_is_served_with_its_times_beside_those_measured(checkpoint, tmp_path):
    told = []
    path = plan_of(checkpoint, tmp_path / "plan.yaml", engine="vllm")
    replica = open_replica(ServeModelRequest(path=str(path), seq=100), told.append)
    assert any("the plan has the times of vllm" in line for line in told)
    assert [pool.scheduler.config.batch for pool in replica.engine.pools] == [2, 2]
    serves = {"mesh": "data=2 x tensor=2", "weights": "f32", "cache": "f32", "slots": 4}
    assert serves.items() <= replica.serves.items()
    assert replica.serves["pages"] == replica.engine.pages
    decode = StepShape(decodes=4, decode_tokens=4, decode_context=400, samples=4)
    one = replica.predict(StepRecord(decode, 1, 0, 1, 0, 0))
    assert 0 < one < 0.1
    assert replica.predict(StepRecord(decode, 4, 0, 1, 0, 0)) == pytest.approx(4 * one)
    with running(replica) as (state, url):
        body = {"prompt": "the dog", "max_tokens": 5, "temperature": 0}
        asked = Request(f"{url}/v1/completions", json.dumps(body).encode(), HEADERS)
        with urlopen(asked) as answer:
            assert json.load(answer)["usage"]["completion_tokens"] == 5
        (step, *_) = [e for e in state.trace.events(9) if e.ph == "X"]
        assert step.args["predicted_seconds"] > 0
        found = state.metrics.text().decode()
        with urlopen(f"{url}/debug/state") as answer:
            assert serves.items() <= json.load(answer)["server"]["serves"].items()
    seconds = [
        float(line.rpartition(" ")[2])
        for line in found.splitlines()
        if line.startswith(("shardwise:step_seconds_total", "shardwise:predicted_step_seconds_to"))
    ]
    assert len(seconds) == 2
    assert min(seconds) > 0


PAGES = ServeScheduling(page_size=4)
ONE = EngineSettings(batch=4, budget=32, most_tokens=60, scheduling=PAGES)


@pytest.mark.parametrize(
    "changes",
    spread(
        [
            {"prefill_replicas": 1},
            {"scheduling": ServeScheduling(page_size=4, policy="interleaved")},
            {"replicas": 2, "mesh": {"tensor": 2}, "routing": "prefix_aware"},
            {
                "prefill_replicas": 2,
                "prefill_mesh": {"tensor": 2},
                "mesh": {"data": 2, "tensor": 2},
            },
        ],
        quick=0,
        slow=1,
    ),
    ids=str,
)
def test_two_pools_and_replicas_say_what_one_says(checkpoint, changes):
    """Mixed, interleaved and disaggregated, the pages moved between meshes; second turns too."""
    draw, answers = Random(1), []
    prompts = [[draw.randrange(300) for _ in range(n)] for n in (5, 21, 12, 33, 21, 8)]
    for settings in (ONE, replace(ONE, **changes)):
        engine = open_engine(checkpoint, settings)
        asked = []
        for prompt in prompts:
            asked += engine.add(prompt, GREEDY, answers=2 if len(prompt) == 12 else 1)
            engine.step()
        while not engine.idle:
            engine.step()
        asked += engine.add([*prompts[1], *asked[1].tokens, 7], GREEDY)
        while not engine.idle:
            engine.step()
        engine.check()
        answers.append([generation.tokens for generation in asked])
    assert answers[0] == answers[1]
    assert asked[-1].cached_tokens > 0


def test_an_end_id_that_is_text_is_warned_of(checkpoint, tmp_path):
    folder = tmp_path / "odd"
    shutil.copytree(checkpoint, folder)
    (folder / "generation_config.json").write_text('{"eos_token_id": 76}')
    told = []
    path = plan_of(folder, tmp_path / "plan.yaml", replicas=8)
    with pytest.raises(BadRequest, match="devices are requested"):
        open_replica(ServeModelRequest(path=str(path)), told.append)
    assert "eos_token_id names ordinary text of the tokenizer, 76 (" in told[0]


def test_one_list_of_dtypes_is_the_engines():
    assert {*ENGINE_CACHES} <= {*CACHES}
    assert {*ENGINE_WEIGHTS} == {*ENGINE_CACHES, *NARROW}
    assert JAX.weights == (CHECKPOINT, *ENGINE_WEIGHTS)
    assert JAX.caches == ENGINE_CACHES
