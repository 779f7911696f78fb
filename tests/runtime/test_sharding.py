"""A model laid out by `plans.layouts` on 8 devices gives the loss and gradients of one device."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P
from tests.equivalence import cases
from tests.runtime import goldens
from tests.tiers import spread

from shardwise.errors import BadRequest
from shardwise.models import Moe, from_hf, load_model, params_text
from shardwise.plans.layouts import stored_share
from shardwise.runtime import (
    Options,
    batch_sharding,
    initialise,
    load,
    loss,
    mesh_of,
    parameter_shardings,
    save,
    shapes,
)
from shardwise.runtime.init import stored_rows
from shardwise.runtime.parallel.setup import Setup
from shardwise.runtime.parallel.tensor import Stream
from shardwise.runtime.sharding import parameter_spec, parameter_specs

MESHES = [
    {"data": 2, "fsdp": 4},
    {"fsdp": 4, "tensor": 2},
    {"replica": 2, "fsdp": 2, "tensor": 2},
    {"fsdp": 2, "expert": 2, "tensor": 2},
]
NAMES = ["gpt-oss", "deepseek-v3"]


def batch_of(vocabulary=64):
    tokens = np.random.RandomState(1).randint(0, vocabulary, (8, 9)).astype(np.int32)
    return {"tokens": jnp.asarray(tokens[:, :-1]), "targets": jnp.asarray(tokens[:, 1:])}


def gradients(cfg, params, batch, options):
    return jax.jit(jax.value_and_grad(partial(loss, cfg=cfg, options=options)))(params, batch)


def worst(wanted, got):
    """Largest relative error in norm over the tensors."""

    def error(a, b):
        a, b = np.asarray(a), np.asarray(b)
        return float(np.linalg.norm(a - b) / (np.linalg.norm(a) + 1e-12))

    return max(jax.tree.leaves(jax.tree.map(error, wanted, got)))


def planned_bytes(cfg, axes):
    return sum(
        float(stored_share(row, axes)) * row.size * row.layers * 4 for row in stored_rows(cfg)
    )


def bytes_per_device(params):
    shards = ((w.sharding.shard_shape(w.shape), w.dtype) for w in jax.tree.leaves(params))
    return sum(int(np.prod(shape)) * dtype.itemsize for shape, dtype in shards)


@pytest.fixture(scope="module", params=spread(NAMES, slow=1))
def alone(request):
    cfg = goldens.config(request.param)
    params = initialise(cfg, jax.random.key(0))
    return cfg, params, gradients(cfg, params, batch_of(), Options())


def over(meshes):
    """Parametrise a test by its mesh; the last one has all axes."""
    return pytest.mark.parametrize(
        "axes",
        spread(meshes[::-1], slow=1),
        ids=lambda axes: "x".join(f"{a}{n}" for a, n in axes.items()),
    )


@over(MESHES)
def test_initialised_shards_are_those_of_one_device(alone, axes):
    cfg, params, _ = alone
    shardings = parameter_shardings(cfg, mesh_of(axes))
    sharded = initialise(cfg, jax.random.key(0), shardings=shardings)
    assert worst(params, sharded) == 0
    if cfg.name == "deepseek-v3":  # nothing of it is padded
        assert bytes_per_device(sharded) == planned_bytes(cfg, axes)


@over(MESHES)
def test_loss_and_gradients_of_one_device(alone, axes):
    cfg, params, (wanted_loss, wanted) = alone
    mesh = mesh_of(axes)
    sharded = jax.device_put(params, parameter_shardings(cfg, mesh))
    batch = jax.device_put(batch_of(), batch_sharding(mesh))
    setup = Setup(plan=cases.plan_of("mixtral", axes), cfg=cfg, mesh=mesh)
    options = Options(remat="block", at=Stream(setup))
    got_loss, got = gradients(cfg, sharded, batch, options)
    assert float(got_loss) == pytest.approx(float(wanted_loss), rel=1e-6)
    assert worst(wanted, got) < 1e-5


def test_the_correction_is_not_trained(alone):
    cfg, _, (_, grads) = alone
    for group, layer in zip(grads["layers"], cfg.groups, strict=True):
        if "router.correction" in group:
            assert not np.asarray(group["router.correction"]).any()
        if isinstance(layer.mlp, Moe):
            assert np.asarray(group["router"]).any()
    trees = [name for group in grads["layers"] for name in group]
    assert ("router.correction" in trees) is (cfg.name == "deepseek-v3")


@pytest.mark.parametrize("name", ["llama-3-70b", "deepseek-v3", "gpt-oss-20b", "gemma-2-27b"])
def test_every_matmul_of_a_real_model_is_cut_by_the_storage_axes(name):
    cfg, axes = load_model(name), {"fsdp": 16, "expert": 2, "tensor": 4}
    for row in stored_rows(cfg):
        used = {
            axis
            for entry in parameter_spec(row, axes)
            for axis in (entry if isinstance(entry, tuple) else (entry,))
        }
        assert row.role != "matmul" or {"fsdp", "expert"} <= used, row.name


def test_specs_of_llama():
    cfg, axes = load_model("llama-3-70b"), {"fsdp": 4, "tensor": 2}
    layers = parameter_specs(cfg, axes)["layers"][0]
    assert layers["attention.q"] == P(None, "fsdp", "tensor", None)
    assert layers["mlp.down"] == P(None, "tensor", "fsdp")
    assert parameter_specs(cfg, axes)["lm_head"] == P("fsdp", "tensor")


def test_kv_heads_that_tensor_does_not_divide_are_replicated():
    cfg = load_model("llama-3-70b")
    row = next(r for r in stored_rows(cfg) if r.name == "attention.k")
    assert parameter_spec(row, {"tensor": 16}) == P(None, None, None, None)


def test_uneven_heads_are_refused():
    with pytest.raises(BadRequest, match=r"'attention.q': mesh axis 'tensor' of 8"):
        parameter_specs(load_model("gpt2"), {"tensor": 8})


def cut_to(whole, padded):
    """The padded arrays without their padding."""
    return jax.tree.map(lambda a, b: np.asarray(b)[tuple(map(slice, a.shape))], whole, padded)


@pytest.mark.slow
@pytest.mark.parametrize("name", spread(["llama", "phi"]))
def test_uneven_widths_and_vocabularies_are_padded(name, tmp_path):
    """V = 63 and F = 47 over tensor = 2: same loss and gradients, and a save leaves no trace."""
    raw = {**goldens.document(name)["config"], "vocab_size": 63, "intermediate_size": 47}
    cfg = from_hf(raw, name="odd")
    goldens.write_checkpoint(cfg, tmp_path)
    params, mesh = load(tmp_path, cfg), mesh_of({"fsdp": 4, "tensor": 2})
    shardings = parameter_shardings(cfg, mesh)
    sharded = load(tmp_path, cfg, shardings=shardings)
    assert sharded["embedding"].shape == (64, 32)
    wanted_loss, wanted = gradients(cfg, params, batch_of(63), Options())
    got_loss, got = gradients(cfg, sharded, batch_of(63), Options())
    assert float(got_loss) == pytest.approx(float(wanted_loss), rel=1e-6)
    whole = cut_to(wanted, got)
    assert worst(wanted, whole) < 1e-5
    assert all(
        np.abs(b).sum() == pytest.approx(np.abs(a).sum(), rel=1e-4)
        for a, b in zip(jax.tree.leaves(whole), jax.tree.leaves(got), strict=True)
    )
    save(tmp_path / "again", sharded, cfg)
    jax.tree.map(np.testing.assert_array_equal, load(tmp_path / "again", cfg), params)
    drawn = initialise(cfg, jax.random.key(0))
    assert worst(drawn, cut_to(drawn, initialise(cfg, jax.random.key(0), shardings=shardings))) == 0


def test_too_few_devices_are_refused():
    with pytest.raises(BadRequest, match="needs 16 devices and there are 8"):
        mesh_of({"fsdp": 16})


def test_initialised_elements_are_the_counted_ones():
    cfg = load_model("llama-3.2-1b")
    assert goldens.parameter_count(shapes(cfg)) == params_text(cfg)
