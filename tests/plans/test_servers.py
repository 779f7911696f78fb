"""Software that serves: what prices it on a chip."""

from shardwise.hardware import load_chip
from shardwise.plans.servers import JAX, VLLM, serving_software

CONSTANTS = "kernel_seconds = {value = 0.0, source = 'a test'}\n"


def test_our_server_has_prices_of_its_own_on_tpus():
    assert JAX.engine_on(load_chip("v5e")) == "jax"
    assert JAX.engine_on(load_chip("h100")) == "ideal"
    assert VLLM.engine_on(load_chip("v5e")) == VLLM.engine == "vllm"
    assert JAX.is_priced_by("jax")
    assert JAX.is_priced_by("ideal")
    assert not VLLM.is_priced_by("jax")


def test_what_was_calibrated_prices_it_on_every_chip(tmp_path):
    """A file's table is named after the constants of the plan that was served."""
    for table in ("ideal", "jax"):
        path = tmp_path / f"{table}.toml"
        path.write_text(f"[{table}]\n{CONSTANTS}")
        (row,) = serving_software(str(path))
        assert row.title == f"JAX ({path.name})"
        assert row.engine_on(load_chip("v5e")) == row.engine_on(load_chip("h100")) == str(path)
