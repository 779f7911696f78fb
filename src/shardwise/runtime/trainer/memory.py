"""Memory of the host's own C library, which XLA on CPUs computes in."""

import ctypes
import platform

import jax

M_TRIM_THRESHOLD, M_MMAP_MAX, M_ARENA_MAX = -1, -4, -8
"""Parameters of glibc's `mallopt` (malloc.h)."""


def keep_freed_memory() -> bool:
    """Let a process that trains on a CPU keep the memory that it frees; whether it now does.

    XLA on CPUs takes the temporary memory of a step from malloc and frees it after. glibc maps
    blocks of that size and unmaps them, so that every step faults all its pages in again (4 KiB
    each; docs/log.md). Kept, they are faulted in once. It holds for the whole process, which must
    be glibc's; it does nothing on accelerators. Best before the first array is made.
    """
    if platform.libc_ver()[0] != "glibc" or jax.default_backend() != "cpu":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    # Arenas other than the first map what they have no room for, whatever M_MMAP_MAX is.
    choices = ((M_ARENA_MAX, 1), (M_MMAP_MAX, 0), (M_TRIM_THRESHOLD, 2**31 - 1))
    return sum(mallopt(name, value) for name, value in choices) == len(choices)
