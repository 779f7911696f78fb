"""Routing rules by hand, and equal sums and gradients of both dispatches."""

import jax.numpy as jnp
import numpy as np
import pytest
from tests.runtime.test_model import close, step, tiny

from shardwise.models.numerics import Routing
from shardwise.runtime import Options
from shardwise.runtime.moe import route

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
