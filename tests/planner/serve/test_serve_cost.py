"""A server's step cost against pricing every step: equal, or near where a cut is uneven."""

import numpy as np
import pytest
from tests.every import over_every

from shardwise.errors import BadRequest
from shardwise.hardware import load_chip, parse_slice
from shardwise.models import load_model, zoo_names
from shardwise.planner.serve.answer import evaluate_serve
from shardwise.planner.serve.cost import MOST_TOKENS, engine_cost
from shardwise.planner.serve.count import step_work
from shardwise.planner.serve.request import ServeRequest
from shardwise.planner.serve.server import Server, place_mesh
from shardwise.plans.serve import SERVE_AXES, ServeDtypes, ServePlan
from shardwise.roofline import price
from shardwise.roofline.engines import IDEAL_ENGINE, load_engine
from shardwise.scheduling.step import StepShape

EXACT = [
    ("llama-3.1-70b", "h100:8", {"tensor": 8}, "heads"),
    ("gpt-oss-120b", "h200:2", {"tensor": 2}, "heads"),  # windows
    ("deepseek-v3", "b200:8", {"tensor": 8}, "heads_then_batch"),  # latent, sequences spread
    ("llama-3.1-8b", "h100:8", {"tensor": 8}, "heads_then_batch_then_sequence"),
    ("deepseek-v3", "b200:8", {"tensor": 8}, "heads_then_batch_then_sequence"),
    ("qwen3-next-80b-a3b", "h100:4", {"tensor": 4}, "heads"),  # recurrent layers
    ("gemma-2-9b", "v5e:2x2", {"tensor": 4}, "heads"),
    ("llama-3.1-70b", "v5e:4x4", {"fsdp": 4, "tensor": 4}, "heads"),  # weights cut both ways
    ("deepseek-v2-lite", "v5e:2x4", {"fsdp": 2, "tensor": 4}, "heads_then_batch_then_sequence"),
    ("qwen3-next-80b-a3b", "v5p:2x2x2", {"fsdp": 2, "tensor": 4}, "heads"),
    ("deepseek-v4-flash", "b200:8", {"tensor": 8}, "heads"),  # compressed, chosen entries
]
UNEVEN = [
    ("deepseek-v3", "h200:8", {"expert": 8}, "heads"),
    ("llama-3.1-8b", "tpu7x:2x2x1", {"data": 2, "tensor": 4}, "heads"),
]


class Case:
    """A model on a slice, with its cost and its price of one step."""

    def __init__(self, model, slice_, mesh, kv_sharding, engine="vllm"):
        self.cfg, piece = load_model(model), parse_slice(slice_)
        self.chip, self.engine = piece.chip, load_engine(engine)
        self.placement = place_mesh(piece, mesh, piece.shape)
        request = ServeRequest(
            cfg=self.cfg,
            model=model,
            pieces=(piece,),
            input_length=1,
            output_length=1,
            engine=self.engine,
        )
        server = Server(
            request=request,
            piece=piece,
            box=piece.shape,
            degrees={axis: mesh.get(axis, 1) for axis in SERVE_AXES},
            kv_sharding=kv_sharding,
            dtypes=ServeDtypes(),
        )
        self.shape, self.cost = server.shape(), engine_cost(server)

    def priced(self, step):
        work = step_work(self.cfg, self.shape, step)
        kernels = price(work, self.chip, self.placement, stack=self.engine.stack).expected
        sequences = (step.decodes + step.prefills) / self.shape.splits
        return float(kernels) + self.engine.sequence_seconds * sequences


def steps(seed, number):
    """Decodes alone, prompts alone and both, some speculating, some in a prompt's middle."""
    rng = np.random.default_rng(seed)
    for _ in range(number):
        n, k = int(rng.choice([rng.integers(0, 9), rng.integers(0, 300)])), int(rng.integers(0, 4))
        if not n + k:
            continue
        tokens, past = int(rng.integers(1, 2000)), int(rng.integers(0, 5000))
        yield StepShape(
            decodes=n,
            decode_tokens=n * int(rng.choice([1, 1, 1, 3])),
            decode_context=n * int(rng.integers(1, 9000)),
            prefills=k,
            prefill_tokens=k * tokens,
            prefill_context=k * past,
            prefill_pairs=k * (tokens * past + tokens * (tokens + 1) // 2),
            samples=n + k,
        )


@pytest.mark.parametrize("case", EXACT, ids=lambda case: f"{case[0]}-{case[3]}")
def test_equal_to_the_pricer(case):
    server = Case(*case)
    for step in steps(0, 25):
        assert server.cost.seconds(step) == pytest.approx(server.priced(step), rel=1e-9), step


@pytest.mark.parametrize("case", UNEVEN, ids=lambda case: f"{case[0]}-{case[3]}")
def test_near_the_pricer_where_a_cut_is_uneven(case):
    server = Case(*case)
    for step in steps(1, 25):
        assert server.cost.seconds(step) == pytest.approx(server.priced(step), rel=0.01), step


@pytest.mark.parametrize("case", [*EXACT, *UNEVEN], ids=lambda case: f"{case[0]}-{case[3]}")
def test_a_line_is_the_steps_that_it_stands_for(case):
    cost = Case(*case).cost
    for n, mean in ((1, 1), (7, 100), (64, 127), (64, 3000), (200, 40)):
        line = cost.decode_line(n, n * mean)
        far = min(line.until, n * (mean + 5000.0))
        assert line.until > n * mean
        for context in np.linspace(n * mean, far, 5)[:-1]:
            step = StepShape(decodes=n, decode_tokens=n, decode_context=float(context), samples=n)
            said = line.base + line.per_token * context
            assert cost.seconds(step) == pytest.approx(said, rel=1e-12)


def test_a_window_ends_a_line():
    cost = Case(*EXACT[1]).cost
    line = cost.decode_line(4, 4 * 100)
    assert line.until == 4 * 128
    beyond = cost.decode_line(4, 4 * 128)
    assert beyond.per_token < line.per_token
    assert beyond.until > 4 * 1000


def test_steps_beyond_the_table_go_on_along_their_slope():
    server = Case(*EXACT[0])
    long = StepShape(prefills=1, prefill_tokens=2 * MOST_TOKENS, prefill_pairs=1, samples=1)
    assert server.cost.seconds(long) == pytest.approx(server.priced(long), rel=0.02)


def test_the_engine_is_in_every_step():
    ideal, real = (Case(*EXACT[0], engine=name) for name in ("ideal", "vllm"))
    step = StepShape(decodes=8, decode_tokens=8, decode_context=8000, samples=8)
    assert IDEAL_ENGINE.sequence_seconds == 0
    added = real.cost.seconds(step) - ideal.cost.seconds(step)
    assert added > 8 * real.engine.sequence_seconds


def test_moving_a_cache():
    cost, chip = Case(*EXACT[0]).cost, load_chip("h100")
    assert cost.kv_bytes_per_token == 327680
    rate = 8 * chip.data_centre.chip_oneway * chip.efficiency.outer_network
    seconds = chip.data_centre.hop_seconds + 1000 * 327680 / rate
    assert cost.transfer_seconds(1000) == pytest.approx(seconds)
    assert cost.host_seconds(1000) == pytest.approx(1000 * 327680 / 8 / chip.host_link_oneway)
    alone = Case("llama-3.1-8b", "mi250x:1", {}, "heads").cost
    with pytest.raises(BadRequest, match="no data-centre network"):
        alone.transfer_seconds(1)


@pytest.mark.slow
@over_every(zoo_names())
def test_every_model_of_the_zoo_is_priced(name):
    plan = ServePlan(
        model=name,
        model_hash="",
        slice="b300:1",
        mesh={"tensor": 1},
        box=(1,),
        batch=1,
        input_length=512,
        output_length=8,
        prefill_chunk=512,
        kv_sharding="heads",
        engine="vllm",
    )
    assert evaluate_serve(plan, load_model(name), parse_slice("b300:1")).decode.estimate
