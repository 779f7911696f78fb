"""A train step of 7B parameters in plain JAX: 32 scanned layers with remat, Adam, FSDP x tensor."""

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

L, D, N, H, F, V = 32, 4096, 32, 128, 11008, 32000
B, T = 64, 2048
IN, OUT = P(None, "fsdp", "tensor"), P(None, "tensor", "fsdp")
LAYERS = {
    **dict.fromkeys(("wq", "wk", "wv"), ((L, D, N * H), IN)),
    **dict.fromkeys(("w1", "w3"), ((L, D, F), IN)),
    "wo": ((L, N * H, D), OUT),
    "w2": ((L, F, D), OUT),
    "n1": ((L, D), P()),
    "n2": ((L, D), P()),
}
AROUND = {
    "embed": ((V, D), P("tensor", "fsdp")),
    "head": ((D, V), P("fsdp", "tensor")),
    "norm": ((D,), P()),
}


def norm(x, g):
    f = x.astype(jnp.float32)
    return (f * jax.lax.rsqrt(jnp.mean(f * f, -1, keepdims=True) + 1e-5)).astype(x.dtype) * g


def attention(q, k, v):
    s = jnp.einsum("btnh,bsnh->bnts", q, k).astype(jnp.float32) / H**0.5
    s = jnp.where(jnp.tril(jnp.ones((T, T), bool)), s, -1e9)
    return jnp.einsum("bnts,bsnh->btnh", jax.nn.softmax(s, -1).astype(q.dtype), v)


def layer(x, w):
    h = norm(x, w["n1"])
    q, k, v = ((h @ w[n]).reshape(*h.shape[:2], N, H) for n in ("wq", "wk", "wv"))
    x = x + attention(q, k, v).reshape(x.shape) @ w["wo"]
    h = norm(x, w["n2"])
    x = x + (jax.nn.silu(h @ w["w1"]) * (h @ w["w3"])) @ w["w2"]
    return jax.lax.with_sharding_constraint(x, P("fsdp", None, None)), None


def loss(params, tokens):
    p = jax.tree.map(lambda a: a.astype(jnp.bfloat16), params)
    x = jax.lax.with_sharding_constraint(p["embed"][tokens], P("fsdp", None, None))
    x, _ = jax.lax.scan(jax.checkpoint(layer), x, p["layers"])
    logits = (norm(x, p["norm"]) @ p["head"]).astype(jnp.float32)
    logs = jax.nn.log_softmax(logits[:, :-1])
    return -jnp.mean(jnp.take_along_axis(logs, tokens[:, 1:, None], -1))


def train(state, tokens):
    value, g = jax.value_and_grad(loss)(state["params"], tokens)
    m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state["m"], g)
    v = jax.tree.map(lambda v, g: 0.95 * v + 0.05 * g * g, state["v"], g)
    new = jax.tree.map(lambda p, m, v: p - 3e-4 * m / (v**0.5 + 1e-8), state["params"], m, v)
    return {"params": new, "m": m, "v": v}, value


def args(mesh):
    def array(row):
        return jax.ShapeDtypeStruct(row[0], jnp.float32, sharding=NamedSharding(mesh, row[1]))

    def tree():
        around = {name: array(row) for name, row in AROUND.items()}
        return {"layers": {name: array(row) for name, row in LAYERS.items()}, **around}

    tokens = jax.ShapeDtypeStruct((B, T), jnp.int32, sharding=NamedSharding(mesh, P("fsdp")))
    return {"params": tree(), "m": tree(), "v": tree()}, tokens
