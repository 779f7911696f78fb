"""Weights that follow from a tensor's name and shape, so that goldens need not store them.

Used by `scripts/make_golden.py` under torch and by the tests under JAX. RandomState is NumPy's
frozen generator: its streams never change.
"""

import zlib

import numpy as np


def tensor(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """float32 numbers: matrices of unit gain, vectors near 0, norm scales near 1."""
    random = np.random.RandomState(zlib.crc32(name.encode()))
    draw = random.standard_normal(tuple(shape)).astype(np.float32)
    if len(shape) < 2:
        scale = any(part in name for part in ("norm", "ln_", "layernorm")) and "bias" not in name
        return (0.2 * draw + float(scale)).astype(np.float32)
    return (draw / np.sqrt(np.float32(shape[-1]))).astype(np.float32)
