"""Routing rules by hand, and equal sums and gradients of both dispatches."""

from functools import partial

import jax.numpy as jnp
import numpy as np
import pytest
from tests.runtime.test_model import close, step, tiny
from tests.tiers import spread

from shardwise.models import Moe
from shardwise.models.numerics import Routing
from shardwise.runtime import Options
from shardwise.runtime.model import call_of
from shardwise.runtime.moe import dense_experts, ragged_experts, route

LOGITS = np.array([2.0, 1.0, 0.5, 0.0, 1.5, -1.0], np.float32)


def chosen(routing, per_token=2, **more):
    """Weights by expert for one token whose logits are LOGITS."""
    params = {"router": jnp.asarray(np.diag(LOGITS)), **more}
    x_BTD = jnp.ones((1, 1, 6))
    weights, experts = route(params, x_BTD, per_token, routing)
    return dict(zip(experts[0, 0].tolist(), weights[0, 0].tolist(), strict=True))


def test_softmax_of_all():
    probabilities = np.exp(LOGITS) / np.exp(LOGITS).sum()
    assert chosen(Routing()) == pytest.approx({0: probabilities[0], 4: probabilities[4]})
    share = probabilities[0] / (probabilities[0] + probabilities[4])
    normalised = chosen(Routing(normalise=True, scale=2.5))
    assert normalised == pytest.approx({0: 2.5 * share, 4: 2.5 * (1 - share)})


def test_softmax_of_the_chosen():
    share = 1 / (1 + np.exp(-0.5))
    assert chosen(Routing(scoring="softmax_chosen")) == pytest.approx({0: share, 4: 1 - share})


def test_groups_limit_the_choice():
    # Groups (0, 1), (2, 3), (4, 5): the best by top score is the first, by sum of two too.
    assert set(chosen(Routing(groups=3, top_groups=1))) == {0, 1}
    assert set(chosen(Routing(groups=3, top_groups=2))) == {0, 4}


def test_correction_chooses_but_does_not_weigh():
    bias = jnp.asarray([0.0, 0.0, 0.0, 9.0, 0.0, 0.0])
    routing = Routing(scoring="sigmoid", correction=True)
    got = chosen(routing, **{"router.correction": bias})
    assert got == pytest.approx({3: 0.5, 0: 1 / (1 + np.exp(-2))}, rel=1e-5)


LARGER = [pytest.param(name, marks=pytest.mark.slow) for name in ("gpt-oss", "deepseek-v3")]


@pytest.mark.parametrize("name", ["qwen2-moe", *LARGER])
def test_dispatches_have_equal_gradients(name):
    cfg, params = tiny(name)
    dense, ragged = Options(), Options(experts="ragged", remat="block")
    close(step(cfg, params, dense), step(cfg, params, ragged), 1e-5)


@pytest.mark.parametrize("name", spread(["qwen2-moe", "gpt-oss"], slow=1))
def test_experts_of_several_devices_add_up(name):
    """Each device runs its own experts on all tokens; their sums are those of all experts."""
    cfg, params = tiny(name)
    x_BTD = jnp.asarray(np.random.default_rng(0).normal(size=(2, 3, cfg.d_model)), jnp.float32)
    weights_BTk = jnp.asarray([0.7, 0.3] * 6, jnp.float32).reshape(2, 3, 2)
    chosen_BTk = jnp.asarray([0, 3, 1, 2, 3, 1] * 2, jnp.int32).reshape(2, 3, 2)
    group = next(i for i, layer in enumerate(cfg.groups) if isinstance(layer.mlp, Moe))
    p = {n: w[0] for n, w in params["layers"][group].items() if n.startswith("experts.")}
    call = call_of(jnp.zeros((2, 3), jnp.int32), cfg, Options())

    def sums(run):
        E = p["experts.up"].shape[0]
        parts = [{n: w[at : at + E // 2] for n, w in p.items()} for at in (0, E // 2)]
        firsts = (jnp.int32(0), jnp.int32(E // 2))
        return sum(
            run(part, x_BTD, weights_BTk, chosen_BTk, call, first=first)
            for part, first in zip(parts, firsts, strict=True)
        )

    whole = ragged_experts(p, x_BTD, weights_BTk, chosen_BTk, call)
    for dense in (dense_experts, partial(dense_experts, copied=True)):
        np.testing.assert_allclose(sums(dense), whole, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(sums(ragged_experts), whole, rtol=1e-5, atol=1e-5)
