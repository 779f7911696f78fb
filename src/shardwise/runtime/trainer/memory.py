"""Memory of the host's own C library, which XLA on CPUs computes in."""

import ctypes
import os
import platform

import jax

M_TRIM_THRESHOLD, M_MMAP_MAX, M_ARENA_MAX = -1, -4, -8
"""Parameters of glibc's `mallopt` (malloc.h)."""

MADV_HUGEPAGE, HUGE_PAGE = 14, 2**21
"""Of Linux (asm-generic/mman-common.h); 2 MiB pages on x86-64 and on arm64 with 4 KiB pages."""


def keep_freed_memory() -> bool:
    """Let a process that trains on a CPU keep the memory that it frees, in huge pages where the
    kernel has them; whether it now does.

    XLA on CPUs takes the temporary memory of a step from malloc and frees it after. glibc maps
    blocks of that size and unmaps them, so that every step faults all its pages in again (4 KiB
    each; docs/lab/log.md). Kept, they are faulted in once; pages of 2 MiB spare the matmuls most
    misses of the TLB. It holds for the whole process, which must
    be glibc's; it does nothing on accelerators. Best before the first array is made.
    """
    if platform.libc_ver()[0] != "glibc" or not _on_cpus():
        return False
    libc = ctypes.CDLL(None)
    # Arenas other than the first map what they have no room for, whatever M_MMAP_MAX is.
    choices = ((M_ARENA_MAX, 1), (M_MMAP_MAX, 0), (M_TRIM_THRESHOLD, -1))
    if sum(libc.mallopt(name, value) for name, value in choices) < len(choices):
        return False
    _ask_for_huge_pages(libc, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2)
    return True


def _on_cpus() -> bool:
    """Whether JAX computes on CPUs; asked of its settings first, since threads that a backend has
    started keep the arenas that they allocate from."""
    asked = jax.config.jax_platforms  # type: ignore[attr-defined]
    return (asked or jax.default_backend()) == "cpu"


def _ask_for_huge_pages(libc: ctypes.CDLL, size: int) -> None:
    """Grow the heap by `size` addresses, which hold no memory before they are written, and advise
    the kernel to back them with huge pages (madvise(2); what GLIBC_TUNABLES=glibc.malloc.hugetlb=1
    does, which must be set before a process starts)."""
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, (ctypes.c_size_t,)
    libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    libc.free.argtypes = (ctypes.c_void_p,)
    block = libc.malloc(size)
    if block is None:  # a limit on the addresses of the process: small pages do too
        return
    first = -(-block // HUGE_PAGE) * HUGE_PAGE
    libc.madvise(first, (block + size - first) // HUGE_PAGE * HUGE_PAGE, MADV_HUGEPAGE)
    libc.free(block)
