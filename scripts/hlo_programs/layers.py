"""Layers and steps: MLPs, attention, training steps under several shardings, decode."""

import jax
import jax.numpy as jnp

from hlo_programs.base import DATA, EVERYTHING, array, mapped, program

D, F, B, T, N, H, V, L = 512, 2048, 8, 256, 4, 128, 1024, 4


def mlp(x, w_in, w_out):
    return x + jax.nn.gelu(x @ w_in) @ w_out


def attention(x, w_qkv, w_out):
    q, k, v = jnp.einsum("btd,dcnh->cbtnh", x, w_qkv)
    scores = jnp.einsum("btnh,bsnh->bnts", q, k).astype(jnp.float32) * H**-0.5
    causal = jnp.tril(jnp.ones((x.shape[1], x.shape[1]), bool))
    weights = jax.nn.softmax(jnp.where(causal, scores, -1e9)).astype(x.dtype)
    mixed = jnp.einsum("bnts,bsnh->btnh", weights, v)
    return x + jnp.einsum("btnh,nhd->btd", mixed, w_out)


def norm(x):
    wide = x.astype(jnp.float32)
    scale = jax.lax.rsqrt(jnp.mean(wide * wide, -1, keepdims=True) + 1e-6)
    return (wide * scale).astype(x.dtype)


def layers_of(mesh, fsdp, tensor, layers=L, dtype="bfloat16"):
    return {
        "qkv": array(mesh, (layers, D, 3, N, H), None, fsdp, None, tensor, None, dtype=dtype),
        "out": array(mesh, (layers, N, H, D), None, tensor, None, fsdp, dtype=dtype),
        "w_in": array(mesh, (layers, D, F), None, fsdp, tensor, dtype=dtype),
        "w_out": array(mesh, (layers, F, D), None, tensor, fsdp, dtype=dtype),
    }


def transformer_step(mesh, fsdp, tensor, batch, remat=True, scan=True, pinned=False):
    """A training step with moments in float32; `pinned` keeps activations cut by batch alone."""
    weights = {
        "embed": array(mesh, (V, D), tensor, fsdp, dtype="float32"),
        "layers": layers_of(mesh, fsdp, tensor, dtype="float32"),
    }
    tokens = array(mesh, (B, T), batch, dtype="int32")

    def layer(x, w):
        if pinned:
            there = jax.NamedSharding(mesh, jax.P(batch))
            x = jax.lax.with_sharding_constraint(x, there)
        with jax.named_scope("attention"):
            x = attention(norm(x), w["qkv"], w["out"])
        with jax.named_scope("mlp"):
            return mlp(norm(x), w["w_in"], w["w_out"]), None

    def loss(weights, tokens):
        narrow = jax.tree.map(lambda w: w.astype(jnp.bfloat16), weights)
        x = jnp.take(narrow["embed"], tokens, axis=0)
        if pinned:
            there = jax.NamedSharding(mesh, jax.P(batch))
            x = jax.lax.with_sharding_constraint(x, there)
        body = jax.checkpoint(layer) if remat else layer
        if scan:
            x, _ = jax.lax.scan(body, x, narrow["layers"])
        else:
            for i in range(L):
                x, _ = body(x, jax.tree.map(lambda w, i=i: w[i], narrow["layers"]))
        with jax.named_scope("head"):
            logits = jnp.einsum("btd,vd->btv", norm(x), narrow["embed"]).astype(jnp.float32)
        chosen = jnp.take_along_axis(logits, tokens[..., None], -1)[..., 0]
        return jnp.mean(jax.nn.logsumexp(logits, -1) - chosen)

    def step(weights, moments, tokens):
        value, gradients = jax.value_and_grad(loss)(weights, tokens)
        with jax.named_scope("optimizer"):
            moments = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, moments, gradients)
            weights = jax.tree.map(lambda w, m: w - 1e-3 * m, weights, moments)
        return weights, moments, value

    return step, [weights, weights, tokens], {"donate_argnums": (0, 1)}


@program
def mlp_forward(mesh):
    shapes = [array(mesh, (2048, D)), array(mesh, (D, F)), array(mesh, (F, D))]
    return mlp, shapes, {}


@program
def mlp_tensor_parallel(mesh):
    shapes = [
        array(mesh, (2048, D), DATA),
        array(mesh, (D, F), None, "tensor"),
        array(mesh, (F, D), "tensor"),
    ]
    return mlp, shapes, {}


@program
def mlp_train_fsdp(mesh):
    def step(x, w_in, w_out):
        def loss(w):
            return jnp.mean(mlp(x, *w).astype(jnp.float32) ** 2)

        gradients = jax.grad(loss)((w_in, w_out))
        return [w - g.astype(w.dtype) for w, g in zip((w_in, w_out), gradients, strict=True)]

    shapes = [
        array(mesh, (8192, 1024), EVERYTHING),
        array(mesh, (1024, 4096), EVERYTHING),
        array(mesh, (4096, 1024), None, EVERYTHING),
    ]
    return step, shapes, {"donate_argnums": (1, 2)}


@program
def attention_forward(mesh):
    shapes = [array(mesh, (2, T, D)), array(mesh, (D, 3, N, H)), array(mesh, (N, H, D))]
    return attention, shapes, {}


@program
def attention_chunked(mesh):
    """Online softmax over chunks of keys, a loop in a loop."""

    def flash(q, k, v):
        def of_query(_, q_chunk):
            def of_key(carry, kv):
                m, total, out = carry
                scores = jnp.einsum("tnh,snh->nts", q_chunk, kv[0]).astype(jnp.float32)
                top = jnp.maximum(m, scores.max(-1))
                p = jnp.exp(scores - top[..., None])
                fix = jnp.exp(m - top)
                mixed = jnp.einsum("nts,snh->nth", p.astype(q.dtype), kv[1])
                return (top, total * fix + p.sum(-1), out * fix[..., None] + mixed), None

            start = (jnp.full((N, 128), -1e9), jnp.zeros((N, 128)), jnp.zeros((N, 128, H)))
            (_, total, out), _ = jax.lax.scan(of_key, start, (k, v))
            return None, (out / total[..., None]).astype(q.dtype)

        return jax.lax.scan(of_query, None, q)[1]

    shapes = [array(mesh, (4, 128, N, H)) for _ in range(3)]
    return flash, shapes, {}


@program
def transformer_fsdp(mesh):
    return transformer_step(mesh, EVERYTHING, None, EVERYTHING)


@program
def transformer_gathered(mesh):
    """Fully sharded weights, gathered layer by layer."""
    return transformer_step(mesh, EVERYTHING, None, EVERYTHING, pinned=True)


@program
def transformer_fsdp_tensor(mesh):
    return transformer_step(mesh, DATA, "tensor", DATA)


@program
def transformer_unrolled(mesh):
    return transformer_step(mesh, "fsdp", "tensor", DATA, remat=False, scan=False)


@program
def transformer_data_parallel(mesh):
    return transformer_step(mesh, None, None, EVERYTHING)


@program
def transformer_microbatches(mesh):
    """A loop over microbatches around the loop over layers."""

    def step(weights, batches):
        def one(total, x):
            def loss(w):
                def layer(y, pair):
                    return mlp(norm(y), *pair), None

                return jnp.mean(jax.lax.scan(layer, x, w)[0].astype(jnp.float32))

            return jax.tree.map(jnp.add, total, jax.grad(loss)(weights)), None

        return jax.lax.scan(one, jax.tree.map(jnp.zeros_like, weights), batches)[0]

    weights = (
        array(mesh, (3, D, F), None, "fsdp", "tensor"),
        array(mesh, (3, F, D), None, "tensor", "fsdp"),
    )
    return step, [weights, array(mesh, (5, 1024, D), None, DATA)], {}


@program
def experts(mesh):
    """Expert parallelism: top-1 routing, an all-to-all there and back."""

    def layer(x, router, w_in, w_out):
        e = 4
        capacity = x.shape[0] // e
        gate = jax.nn.softmax((x @ router).astype(jnp.float32))
        choice = jnp.argmax(gate, -1)
        place = jnp.cumsum(jax.nn.one_hot(choice, e), 0) * jax.nn.one_hot(choice, e)
        slot = jnp.max(place, -1).astype(jnp.int32) - 1
        table = jnp.zeros((e, capacity, x.shape[1]), x.dtype)
        table = table.at[choice, slot].set(x, mode="drop")
        table = jax.lax.all_to_all(table, DATA, 0, 1, tiled=True)
        hidden = jax.nn.gelu(jnp.einsum("ecd,edf->ecf", table, w_in))
        table = jnp.einsum("ecf,efd->ecd", hidden, w_out)
        table = jax.lax.psum(table, "tensor")
        table = jax.lax.all_to_all(table, DATA, 1, 0, tiled=True)
        return x + table.at[choice, slot].get(mode="fill", fill_value=0)

    specs = (jax.P(DATA), jax.P(), jax.P(DATA, None, "tensor"), jax.P(DATA, "tensor"))
    shapes = [
        array(mesh, (4096, D), DATA),
        array(mesh, (D, 4)),
        array(mesh, (4, D, F), DATA, None, "tensor"),
        array(mesh, (4, F, D), DATA, "tensor"),
    ]
    return mapped(mesh, layer, specs, jax.P(DATA)), shapes, {}


@program
def ring_attention(mesh):
    """Context parallelism: keys and values go round a ring of permutes."""
    ring = [(i, (i + 1) % 4) for i in range(4)]

    def local(q, k, v):
        def turn(_, carry):
            k, v, total, out = carry
            scores = jnp.exp(jnp.einsum("btnh,bsnh->bnts", q, k).astype(jnp.float32) * H**-0.5)
            out = out + jnp.einsum("bnts,bsnh->btnh", scores.astype(q.dtype), v)
            k, v = (jax.lax.ppermute(a, ("fsdp", "tensor"), ring) for a in (k, v))
            return k, v, total + scores.sum(-1), out

        start = (k, v, jnp.zeros((q.shape[0], N, q.shape[1])), jnp.zeros_like(q))
        _, _, total, out = jax.lax.fori_loop(0, 4, turn, start)
        return out / jnp.moveaxis(total, 1, 2)[..., None].astype(q.dtype)

    spec = jax.P("replica", ("fsdp", "tensor"))
    shapes = [array(mesh, (4, 2048, N, H), *spec) for _ in range(3)]
    return mapped(mesh, local, (spec,) * 3, spec), shapes, {}


@program
def decode(mesh):
    """One token of every sequence with a cache that is written in place."""
    return decode_step(mesh, "bfloat16")


@program
def decode_int8(mesh):
    return decode_step(mesh, "int8")


def decode_step(mesh, dtype):
    cache = array(mesh, (L, 2, 16, 1024, N, H), None, None, "fsdp", None, "tensor")
    weights = layers_of(mesh, None, "tensor", dtype=dtype)

    def step(weights, cache, x, at):
        def layer(x, inputs):
            w, kv = inputs
            w = jax.tree.map(lambda a: a.astype(jnp.bfloat16), w)
            q, k, v = jnp.einsum("bd,dcnh->cbnh", x, w["qkv"])
            kv = jax.lax.dynamic_update_slice(kv, jnp.stack([k, v])[:, :, None], (0, 0, at, 0, 0))
            scores = jnp.einsum("bnh,bsnh->bns", q, kv[0]).astype(jnp.float32)
            scores = jnp.where(jnp.arange(1024) <= at, scores, -1e9)
            mixed = jnp.einsum("bns,bsnh->bnh", jax.nn.softmax(scores).astype(x.dtype), kv[1])
            x = x + jnp.einsum("bnh,nhd->bd", mixed, w["out"])
            return mlp(x, w["w_in"], w["w_out"]), kv

        return jax.lax.scan(layer, x, (weights, cache))

    shapes = [weights, cache, array(mesh, (16, D), "fsdp"), array(mesh, (), dtype="int32")]
    return step, shapes, {"donate_argnums": 1}


@program
def optimizer(mesh):
    def adam(w, m, v, g):
        g = g.astype(jnp.float32)
        m = 0.9 * m + 0.1 * g
        v = 0.95 * v + 0.05 * g * g
        norm = jnp.sqrt(sum(jnp.sum(x * x) for x in jax.tree.leaves(g)))
        w = w - 1e-3 * (m / (jnp.sqrt(v) + 1e-8) + 0.1 * w) * jnp.minimum(1.0, 1.0 / norm)
        return w, m, v

    wide = array(mesh, (4096, 2048), DATA, "tensor", dtype="float32")
    gradient = array(mesh, (4096, 2048), DATA, "tensor")
    return adam, [wide, wide, wide, gradient], {"donate_argnums": (0, 1, 2)}
