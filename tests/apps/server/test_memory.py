"""Threads of a server share one arena, unless its environment says otherwise."""

import os
import subprocess
import sys

import pytest

ARENAS = """
import ctypes, sys
from threading import Barrier, Thread
from shardwise.apps.server.memory import share_arena
share_arena()
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.fopen.restype = ctypes.c_void_p, ctypes.c_void_p
together = Barrier(4)
def take():
    together.wait()
    libc.malloc(5000)
    together.wait()
threads = [Thread(target=take) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
out = ctypes.c_void_p(libc.fopen(sys.argv[1].encode(), b"w"))
libc.malloc_info(0, out)
libc.fclose(out)
"""


@pytest.mark.parametrize(("setting", "one"), [({}, True), ({"MALLOC_ARENA_MAX": "8"}, False)])
def test_threads_share_an_arena(tmp_path, setting, one):
    around = {name: value for name, value in os.environ.items() if name != "MALLOC_ARENA_MAX"}
    told = tmp_path / "arenas.xml"
    command = [sys.executable, "-c", ARENAS, str(told)]
    subprocess.run(command, env=around | setting, check=True, timeout=60)
    assert (told.read_text().count("<heap nr=") == 1) == one
