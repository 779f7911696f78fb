"""What a call costs, in measures that do not depend on the machine's other work."""

import gc
import sys
import time
from collections.abc import Callable
from types import FrameType


def calls(function: Callable[[], object]) -> int:
    """Functions of Python that `function` enters: the same number on every machine and run.
    (A profile function would be told of calls of C, too.)"""
    entered = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal entered
        entered += event == "call"

    before = sys.gettrace()
    sys.settrace(count)
    try:
        function()
    finally:
        sys.settrace(before)
    return entered


def seconds(function: Callable[[], object]) -> float:
    """CPU time, without collections of garbage: those walk over what other tests have kept."""
    enabled = gc.isenabled()
    gc.disable()
    begun = time.process_time()
    try:
        function()
    finally:
        spent = time.process_time() - begun
        if enabled:
            gc.enable()
    return spent
