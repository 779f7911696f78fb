"""The programs of scripts/hlo_corpus.py: small, of many kinds, each for a mesh of eight devices.

Run as a file in a child process: `compile_one(name, chip, folder)` compiles one program for one
chip, with no such chip at hand, and writes `NAME.CHIP.txt`, the scheduled module. A program is a
function of a mesh (2, 2, 2) with axes (replica, fsdp, tensor) to (function, arguments, options).
"""

import json
import os
from pathlib import Path

SLICES = {
    "v4": ("v4:2x2x2", {"chip_config_name": "megacore"}),
    "v5e": ("v5e:2x4", {}),
    "v5p": ("v5p:2x2x2", {}),
    "v6e": ("v6e:2x4", {}),
    "tpu7x": ("tpu7x:2x2x1", {}),
}
GPU = "1x1x8"

# The target of a compile for H100 with no GPU: GpuTargetConfigProto with the numbers of the vendor's
# data sheet (H100 SXM: 132 SMs, 228 KiB of shared memory each, 50 MiB of L2, 3.35 TB/s).
H100 = """
gpu_device_info {
  threads_per_block_limit: 1024 threads_per_warp: 32 shared_memory_per_block: 49152
  shared_memory_per_core: 233472 threads_per_core_limit: 2048 core_count: 132
  fpus_per_core: 128 block_dim_limit_x: 2147483647 block_dim_limit_y: 65535
  block_dim_limit_z: 65535 memory_bandwidth: 3352320000000 l2_cache_size: 52428800
  clock_rate_ghz: 1.98 device_memory_size: 84942979072
  shared_memory_per_block_optin: 232448 cuda_compute_capability { major: 9 }
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 10 patch: 0 }
device_description_str: "NVIDIA H100 80GB HBM3"
"""

PROGRAMS = {}


def program(build):
    PROGRAMS[build.__name__] = build
    return build


def compile_one(name, chip, folder):
    """Compile one program for one chip and write its scheduled module; prints a JSON line."""
    os.environ.update(TPU_SKIP_MDS_QUERY="1", TPU_WORKER_HOSTNAMES="localhost")
    os.environ.update(TPU_ACCELERATOR_TYPE="", ALLOW_MULTIPLE_LIBTPU_LOAD="1")
    import jax

    shape = (2, 2, 2)
    devices, options = _devices(chip, slices=2 if name.startswith("multi_slice") else 1)
    mesh = jax.sharding.Mesh(devices.reshape(shape), ("replica", "fsdp", "tensor"))
    function, arguments, extra = PROGRAMS[name](mesh)
    compiled = jax.jit(function, **extra).lower(*arguments).compile(compiler_options=options)
    text = compiled.as_text()
    dumped = sorted(Path(os.environ["DUMP"]).glob("*jit_*.after_codegen.txt"))
    if dumped:
        text = max(dumped, key=lambda path: path.stat().st_size).read_text()
    Path(folder, f"{name}.{chip}.txt").write_text(text)
    memory = compiled.memory_analysis()
    print(json.dumps({"peak_bytes": memory.peak_memory_in_bytes if memory else None}))


def _devices(chip, slices):
    import jax
    import numpy as np
    from jax.experimental import topologies

    if chip == "cpu":
        return np.array(jax.devices()[:8]), {}
    if chip == "h100":
        topology = topologies.get_topology_desc(
            platform="cuda", topology=GPU, target_config=H100
        )
        return np.array(topology.devices), {}
    name, options = SLICES[chip]
    if slices > 1:
        name = {"v5e": "v5e:2x2", "v6e": "v6e:2x2", "tpu7x": "tpu7x:1x2x1"}.get(
            chip, name.replace("2x2x2", "2x2x1")
        )
        options = {**options, "num_slices": slices}
    topology = topologies.get_topology_desc(platform="tpu", topology_name=name, **options)
    dump = {"xla_dump_to": os.environ["DUMP"], "xla_dump_hlo_as_text": True}
    return np.array(topology.devices), dump


def array(mesh, shape, *spec, dtype="bfloat16", **options):
    import jax

    sharding = jax.sharding.NamedSharding(mesh, jax.P(*spec), **options)
    return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)


def mapped(mesh, function, ins, out):
    import jax

    return jax.shard_map(function, mesh=mesh, in_specs=ins, out_specs=out, check_vma=False)


# ---- matmuls -----------------------------------------------------------------------------------


@program
def matmul(mesh):
    return lambda a, b: a @ b, [array(mesh, (2048, 2048)), array(mesh, (2048, 4096))], {}


@program
def matmul_large(mesh):
    return lambda a, b: a @ b, [array(mesh, (8192, 8192)), array(mesh, (8192, 8192))], {}


@program
def matmul_f32(mesh):
    shapes = [array(mesh, (1024, 1024), dtype="float32"), array(mesh, (1024, 512), dtype="float32")]
    return lambda a, b: a @ b, shapes, {}


@program
def matmul_int8(mesh):
    import jax.numpy as jnp

    def product(a, b):
        return jnp.matmul(a, b, preferred_element_type=jnp.int32)

    shapes = [array(mesh, (2048, 1024), dtype="int8"), array(mesh, (1024, 2048), dtype="int8")]
    return product, shapes, {}


@program
def matmul_fp8(mesh):
    import jax.numpy as jnp

    def product(a, b):
        return jnp.matmul(a, b, preferred_element_type=jnp.float32)

    kind = "float8_e4m3fn"
    return product, [array(mesh, (1024, 2048), dtype=kind), array(mesh, (2048, 512), dtype=kind)], {}


@program
def matmul_odd(mesh):
    return lambda a, b: a @ b, [array(mesh, (100, 5000)), array(mesh, (5000, 300))], {}


@program
def matmul_batched(mesh):
    import jax.numpy as jnp

    shapes = [array(mesh, (16, 256, 512)), array(mesh, (16, 512, 384))]
    return lambda a, b: jnp.einsum("bmk,bkn->bmn", a, b), shapes, {}


@program
def matmul_transposed(mesh):
    import jax.numpy as jnp

    shapes = [array(mesh, (8, 512, 4, 128)), array(mesh, (8, 256, 4, 128))]
    return lambda q, k: jnp.einsum("btnh,bsnh->bnts", q, k), shapes, {}


@program
def matmul_vector(mesh):
    return lambda a, v: a @ v, [array(mesh, (2048, 2048)), array(mesh, (2048,))], {}


@program
def matmul_bias_gelu(mesh):
    import jax

    shapes = [array(mesh, (1024, 1024)), array(mesh, (1024, 4096)), array(mesh, (4096,))]
    return lambda a, b, c: jax.nn.gelu(a @ b + c), shapes, {}


@program
def matmul_contracted_sharded(mesh):
    shapes = [
        array(mesh, (2048, 4096), "fsdp", "tensor"),
        array(mesh, (4096, 2048), "tensor", None),
    ]
    return lambda a, b: a @ b, shapes, {}


# ---- layers and steps --------------------------------------------------------------------------

D, F, B, T, N, H, V, L = 512, 2048, 8, 256, 4, 128, 1024, 4


def mlp(x, w_in, w_out):
    import jax

    return x + jax.nn.gelu(x @ w_in) @ w_out


def attention(x, w_qkv, w_out):
    import jax
    import jax.numpy as jnp

    q, k, v = jnp.einsum("btd,dcnh->cbtnh", x, w_qkv)
    scores = jnp.einsum("btnh,bsnh->bnts", q, k).astype(jnp.float32) * H**-0.5
    causal = jnp.tril(jnp.ones((x.shape[1], x.shape[1]), bool))
    weights = jax.nn.softmax(jnp.where(causal, scores, -1e9)).astype(x.dtype)
    mixed = jnp.einsum("bnts,bsnh->btnh", weights, v)
    return x + jnp.einsum("btnh,nhd->btd", mixed, w_out)


def norm(x):
    import jax
    import jax.numpy as jnp

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
    import jax
    import jax.numpy as jnp

    weights = {
        "embed": array(mesh, (V, D), tensor, fsdp, dtype="float32"),
        "layers": layers_of(mesh, fsdp, tensor, dtype="float32"),
    }
    tokens = array(mesh, (B, T), batch, dtype="int32")

    def layer(x, w):
        if pinned:
            there = jax.sharding.NamedSharding(mesh, jax.P(batch))
            x = jax.lax.with_sharding_constraint(x, there)
        with jax.named_scope("attention"):
            x = attention(norm(x), w["qkv"], w["out"])
        with jax.named_scope("mlp"):
            return mlp(norm(x), w["w_in"], w["w_out"]), None

    def loss(weights, tokens):
        narrow = jax.tree.map(lambda w: w.astype(jnp.bfloat16), weights)
        x = jnp.take(narrow["embed"], tokens, axis=0)
        if pinned:
            there = jax.sharding.NamedSharding(mesh, jax.P(batch))
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
        array(mesh, (2048, D), ("replica", "fsdp")),
        array(mesh, (D, F), None, "tensor"),
        array(mesh, (F, D), "tensor"),
    ]
    return mlp, shapes, {}


@program
def mlp_train_fsdp(mesh):
    import jax
    import jax.numpy as jnp

    def step(x, w_in, w_out):
        def loss(w):
            return jnp.mean(mlp(x, *w).astype(jnp.float32) ** 2)

        gradients = jax.grad(loss)((w_in, w_out))
        return [w - g.astype(w.dtype) for w, g in zip((w_in, w_out), gradients, strict=True)]

    everything = ("replica", "fsdp", "tensor")
    shapes = [
        array(mesh, (8192, 1024), everything),
        array(mesh, (1024, 4096), everything),
        array(mesh, (4096, 1024), None, everything),
    ]
    return step, shapes, {"donate_argnums": (1, 2)}


@program
def attention_forward(mesh):
    shapes = [array(mesh, (2, T, D)), array(mesh, (D, 3, N, H)), array(mesh, (N, H, D))]
    return attention, shapes, {}


@program
def attention_chunked(mesh):
    """Online softmax over chunks of keys, a loop in a loop."""
    import jax
    import jax.numpy as jnp

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
    everything = ("replica", "fsdp", "tensor")
    return transformer_step(mesh, everything, None, everything)


@program
def transformer_gathered(mesh):
    """Fully sharded weights, gathered layer by layer."""
    everything = ("replica", "fsdp", "tensor")
    return transformer_step(mesh, everything, None, everything, pinned=True)


@program
def transformer_fsdp_tensor(mesh):
    return transformer_step(mesh, ("replica", "fsdp"), "tensor", ("replica", "fsdp"))


@program
def transformer_unrolled(mesh):
    return transformer_step(mesh, "fsdp", "tensor", ("replica", "fsdp"), remat=False, scan=False)


@program
def transformer_data_parallel(mesh):
    return transformer_step(mesh, None, None, ("replica", "fsdp", "tensor"))


@program
def transformer_microbatches(mesh):
    """A loop over microbatches around the loop over layers."""
    import jax
    import jax.numpy as jnp

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
    return step, [weights, array(mesh, (5, 1024, D), None, ("replica", "fsdp"))], {}


@program
def experts(mesh):
    """Expert parallelism: top-1 routing, an all-to-all there and back."""
    import jax
    import jax.numpy as jnp

    def layer(x, router, w_in, w_out):
        e = 4
        capacity = x.shape[0] // e
        gate = jax.nn.softmax((x @ router).astype(jnp.float32))
        choice = jnp.argmax(gate, -1)
        place = jnp.cumsum(jax.nn.one_hot(choice, e), 0) * jax.nn.one_hot(choice, e)
        slot = jnp.max(place, -1).astype(jnp.int32) - 1
        table = jnp.zeros((e, capacity, x.shape[1]), x.dtype)
        table = table.at[choice, slot].set(x, mode="drop")
        table = jax.lax.all_to_all(table, ("replica", "fsdp"), 0, 1, tiled=True)
        hidden = jax.nn.gelu(jnp.einsum("ecd,edf->ecf", table, w_in))
        table = jnp.einsum("ecf,efd->ecd", hidden, w_out)
        table = jax.lax.psum(table, "tensor")
        table = jax.lax.all_to_all(table, ("replica", "fsdp"), 1, 0, tiled=True)
        return x + table.at[choice, slot].get(mode="fill", fill_value=0)

    p = jax.P
    two = ("replica", "fsdp")
    specs = (p(two), p(), p(two, None, "tensor"), p(two, "tensor"))
    shapes = [
        array(mesh, (4096, D), two),
        array(mesh, (D, 4)),
        array(mesh, (4, D, F), two, None, "tensor"),
        array(mesh, (4, F, D), two, "tensor"),
    ]
    return mapped(mesh, layer, specs, p(two)), shapes, {}


@program
def ring_attention(mesh):
    """Context parallelism: keys and values go round a ring of permutes."""
    import jax
    import jax.numpy as jnp

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
    import jax
    import jax.numpy as jnp

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
    import jax
    import jax.numpy as jnp

    def adam(w, m, v, g):
        g = g.astype(jnp.float32)
        m = 0.9 * m + 0.1 * g
        v = 0.95 * v + 0.05 * g * g
        norm = jnp.sqrt(sum(jnp.sum(x * x) for x in jax.tree.leaves(g)))
        w = w - 1e-3 * (m / (jnp.sqrt(v) + 1e-8) + 0.1 * w) * jnp.minimum(1.0, 1.0 / norm)
        return w, m, v

    wide = array(mesh, (4096, 2048), ("replica", "fsdp"), "tensor", dtype="float32")
    return (
        adam,
        [wide, wide, wide, array(mesh, (4096, 2048), ("replica", "fsdp"), "tensor")],
        {"donate_argnums": (0, 1, 2)},
    )


# ---- collectives -------------------------------------------------------------------------------


@program
def all_gather(mesh):
    import jax

    def gather(x):
        one = jax.lax.all_gather(x, "tensor", axis=1, tiled=True)
        return jax.lax.all_gather(one, ("replica", "fsdp"), tiled=True)

    p = jax.P
    shape = array(mesh, (1024, 1024), ("replica", "fsdp"), "tensor")
    return mapped(mesh, gather, p(("replica", "fsdp"), "tensor"), p()), [shape], {}


@program
def reduce_scatter(mesh):
    import jax

    p = jax.P
    function = mapped(
        mesh,
        lambda x: jax.lax.psum_scatter(x, ("fsdp", "tensor"), tiled=True),
        p("replica"),
        p(("replica", "fsdp", "tensor")),
    )
    return function, [array(mesh, (1024, 2048), "replica", dtype="float32")], {}


@program
def all_reduce(mesh):
    import jax

    p = jax.P

    def reduce(x, y):
        return jax.lax.psum((x, y), "fsdp"), jax.lax.pmax(x, ("replica", "tensor"))

    shapes = [array(mesh, (512, 1024)), array(mesh, (256,), dtype="float32")]
    return mapped(mesh, reduce, (p(), p()), ((p(), p()), p())), shapes, {}


@program
def all_to_all(mesh):
    import jax

    p = jax.P
    function = mapped(
        mesh,
        lambda x: jax.lax.all_to_all(x, ("fsdp", "tensor"), 1, 0, tiled=True),
        p(("fsdp", "tensor"), None),
        p(None, ("fsdp", "tensor")),
    )
    return function, [array(mesh, (1024, 2048), ("fsdp", "tensor"))], {}


@program
def ragged_all_to_all(mesh):
    import jax
    import jax.numpy as jnp

    p = jax.P

    def exchange(x, sizes):
        offsets = jnp.cumsum(sizes) - sizes
        return jax.lax.ragged_all_to_all(
            x, jnp.zeros_like(x), offsets, sizes, offsets, sizes, axis_name="fsdp"
        )

    shapes = [array(mesh, (512, 256), "fsdp"), array(mesh, (4,), "fsdp", dtype="int32")]
    return mapped(mesh, exchange, (p("fsdp"), p("fsdp")), p("fsdp")), shapes, {}


@program
def permute_ring(mesh):
    import jax

    p = jax.P

    def around(x):
        ring = [(i, (i + 1) % 8) for i in range(8)]
        everything = ("replica", "fsdp", "tensor")
        return jax.lax.fori_loop(
            0, 7, lambda _, y: jax.lax.ppermute(y, everything, ring) + x, x
        )

    spec = p(("replica", "fsdp", "tensor"))
    return mapped(mesh, around, spec, spec), [array(mesh, (8192, 512), *spec)], {}


@program
def collective_matmul(mesh):
    """A gather hidden behind the product it feeds, written as a ring."""
    import jax
    import jax.numpy as jnp

    p = jax.P
    ring = [(i, (i + 1) % 4) for i in range(4)]

    def product(x, w):
        out = jnp.zeros((x.shape[0] * 4, w.shape[1]), x.dtype)
        me = jax.lax.axis_index(("fsdp", "tensor"))
        for turn in range(4):
            at = (me - turn) % 4 * x.shape[0]
            out = jax.lax.dynamic_update_slice(out, x @ w, (at, 0))
            x = jax.lax.ppermute(x, ("fsdp", "tensor"), ring) if turn < 3 else x
        return out

    both = ("fsdp", "tensor")
    function = mapped(mesh, product, (p(both), p(None, both)), p(None, both))
    return function, [array(mesh, (4096, 1024), both), array(mesh, (1024, 4096), None, both)], {}


@program
def multi_slice(mesh):
    """Gradients summed over two slices of four."""
    return transformer_step(mesh, ("fsdp", "tensor"), None, ("replica", "fsdp", "tensor"))


@program
def resharding(mesh):
    import jax

    def move(x):
        return jax.lax.with_sharding_constraint(
            x * 2, jax.sharding.NamedSharding(mesh, jax.P(None, ("replica", "fsdp")))
        )

    return move, [array(mesh, (2048, 1024), ("replica", "fsdp"))], {}


# ---- other operations --------------------------------------------------------------------------


@program
def convolution(mesh):
    import jax

    def conv(x, w):
        return jax.lax.conv_general_dilated(
            x, w, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )

    return conv, [array(mesh, (8, 64, 64, 64)), array(mesh, (3, 3, 64, 128))], {}


@program
def convolution_depthwise(mesh):
    import jax

    def conv(x, w):
        return jax.lax.conv_general_dilated(
            x, w, (1,), "SAME", dimension_numbers=("NWC", "WIO", "NWC"), feature_group_count=512
        )

    return conv, [array(mesh, (8, 256, 512)), array(mesh, (4, 1, 512))], {}


@program
def sort(mesh):
    import jax.numpy as jnp

    return lambda x: (jnp.sort(x, 0), jnp.argsort(x, 1)), [array(mesh, (512, 512))], {}


@program
def top_k(mesh):
    import jax

    return lambda x: jax.lax.top_k(x, 8), [array(mesh, (256, 4096), dtype="float32")], {}


@program
def gather(mesh):
    shapes = [array(mesh, (4096, 512), "tensor"), array(mesh, (16, 256), "fsdp", dtype="int32")]
    return lambda table, ids: table[ids], shapes, {}


@program
def scatter(mesh):
    shapes = [
        array(mesh, (4096, 512), dtype="float32"),
        array(mesh, (2048,), dtype="int32"),
        array(mesh, (2048, 512), dtype="float32"),
    ]
    return lambda table, ids, rows: table.at[ids].add(rows), shapes, {"donate_argnums": 0}


@program
def random_numbers(mesh):
    import jax

    def draw(seed):
        key = jax.random.key(seed)
        return jax.random.normal(key, (512, 1024)), jax.random.bernoulli(key, 0.1, (2048,))

    return draw, [array(mesh, (), dtype="uint32")], {}


@program
def random_bits_generator(mesh):
    import jax

    def draw(key):
        return jax.lax.rng_bit_generator(key, (1024, 512))

    return draw, [array(mesh, (4,), dtype="uint32")], {}


@program
def reductions(mesh):
    import jax
    import jax.numpy as jnp

    def reduce(x):
        pooled = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (4, 4), (4, 4), "VALID")
        return jnp.cumsum(x, 0), jnp.argmax(x, 1), jax.nn.softmax(x), pooled, jnp.var(x)

    return reduce, [array(mesh, (1024, 2048), dtype="float32")], {}


@program
def shapes_of_all_kinds(mesh):
    import jax
    import jax.numpy as jnp

    def shape(x, at):
        padded = jnp.pad(x, ((3, 5), (0, 130)), constant_values=1)
        cut = jax.lax.dynamic_slice(padded, (at, 0), (100, 200))
        joined = jnp.concatenate([cut, jnp.flip(cut, 0)], 1).T
        return joined, jnp.clip(x, -1, 1).reshape(64, -1), x[::3, ::2], jnp.tile(x[:8], (1, 3))

    return shape, [array(mesh, (256, 384)), array(mesh, (), dtype="int32")], {}


@program
def while_unknown(mesh):
    """A loop whose end depends on the data: no trip count exists."""
    import jax
    import jax.numpy as jnp

    def solve(a, x):
        def body(state):
            x, _ = state
            new = jnp.tanh(a @ x)
            return new, jnp.max(jnp.abs(new - x))

        return jax.lax.while_loop(lambda state: state[1] > 1e-3, body, (x, jnp.float32(1)))

    wide = array(mesh, (512, 512), dtype="float32")
    return solve, [wide, wide], {}


@program
def loops_counted(mesh):
    """Loops that count up, down and by steps."""
    import jax

    def count(x):
        x = jax.lax.fori_loop(0, 17, lambda i, y: y @ y * 0.1 + i, x)
        y = jax.lax.scan(lambda c, z: (c @ z, c), x, xs=None if False else jax.numpy.stack([x] * 9))
        state = jax.lax.while_loop(
            lambda s: s[0] < 40, lambda s: (s[0] + 3, s[1] @ s[1] * 0.01), (1, x)
        )
        back = jax.lax.scan(lambda c, z: (c @ z, None), x, y[1], reverse=True)
        return y[0], state, back[0]

    return count, [array(mesh, (256, 256))], {}


@program
def conditional(mesh):
    import jax

    def choose(i, x):
        a = jax.lax.cond(i > 3, lambda y: y @ y, lambda y: y * 2, x)
        return jax.lax.switch(i, [lambda y: y + 1, lambda y: y @ y @ y, lambda y: -y], a)

    return choose, [array(mesh, (), dtype="int32"), array(mesh, (512, 512))], {}


@program
def linear_algebra(mesh):
    import jax
    import jax.numpy as jnp

    def solve(a, b):
        lower = jnp.linalg.cholesky(a)
        return jax.scipy.linalg.solve_triangular(lower, b, lower=True)

    wide = array(mesh, (256, 256), dtype="float32")
    return solve, [wide, wide], {}


@program
def fourier(mesh):
    import jax.numpy as jnp

    return lambda x: jnp.abs(jnp.fft.rfft(x)), [array(mesh, (64, 1024), dtype="float32")], {}


@program
def host_offload(mesh):
    import jax

    there = jax.sharding.NamedSharding(mesh, jax.P("fsdp"), memory_kind="pinned_host")

    def store(x, y):
        return jax.device_put(x @ y, there), x + 1

    return store, [array(mesh, (1024, 1024), "fsdp"), array(mesh, (1024, 1024))], {}


@program
def pallas(mesh):
    import jax
    from jax.experimental import pallas as pl

    def kernel(a, b, out):
        out[...] = a[...] @ b[...]

    def product(a, b):
        call = pl.pallas_call(
            kernel,
            grid=(4, 4),
            in_specs=[
                pl.BlockSpec((256, 512), lambda i, j: (i, 0)),
                pl.BlockSpec((512, 256), lambda i, j: (0, j)),
            ],
            out_specs=pl.BlockSpec((256, 256), lambda i, j: (i, j)),
            out_shape=jax.ShapeDtypeStruct((1024, 1024), "float32"),
            cost_estimate=pl.CostEstimate(
                flops=2 * 1024 * 1024 * 512, bytes_accessed=6 * 2**20, transcendentals=0
            ),
            name="blocked_matmul",
        )
        return call(a, b) + 1

    wide = [array(mesh, s, dtype="float32") for s in ((1024, 512), (512, 1024))]
    return mapped(mesh, product, (jax.P(), jax.P()), jax.P()), wide, {}
