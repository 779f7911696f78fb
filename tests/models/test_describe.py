"""What is said about a model in words."""

from dataclasses import replace

from shardwise.models import load_model
from shardwise.models.describe import context_warning


def test_a_context_beyond_the_models_own_is_said_and_not_refused():
    cfg = load_model("llama-3-8b")
    assert cfg.max_context == 8192
    assert context_warning(cfg, 8192) == []
    (said,) = context_warning(cfg, 8193)
    assert "sequences of 8,193 tokens are longer than the 8,192 of llama-3-8b (max_position" in said


def test_a_model_that_states_no_context_is_not_warned_about():
    assert context_warning(replace(load_model("llama-3-8b"), max_context=None), 10**9) == []
