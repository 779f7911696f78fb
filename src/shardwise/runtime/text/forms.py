"""Forms that clients ask for: tried in a fork with limits first, then read here.

A constraint must be where the engine is, so a form is read a second time in this process: by now it
is known to take little, and to end. What takes longer than most is read by a thread of the least
priority, and at most `MOST_LARGE` of those are held at a time, as their automata are large.
"""

import asyncio
import json
import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from shardwise.boundary.forks import BusyError
from shardwise.errors import BadRequest
from shardwise.runtime.text.grammar import MOST_CHARACTERS, Constraint, Form, Grammars
from shardwise.runtime.text.text_jobs import QUICK, TextJobs

KEPT = 32
"""Small forms that are kept: clients ask for the same one again and again."""
MOST_LARGE = 8


class Forms:
    """Constraints of forms, by `grammars` of the same tokenizer as those of `jobs`."""

    def __init__(self, jobs: TextJobs, grammars: Callable[[], Grammars]) -> None:
        self._jobs, self._grammars = jobs, grammars
        self._kept: OrderedDict[str, Constraint] = OrderedDict()
        self._large: weakref.WeakSet[Constraint] = weakref.WeakSet()
        self._slow = ThreadPoolExecutor(1, initializer=_least_priority)

    async def constraint(self, form: Form, what: Any = None) -> Constraint:
        """The start of an answer of a form. Raises BadRequest for one that cannot be read or takes
        too much, BusyError where too many others do."""
        key = json.dumps([form, what], ensure_ascii=False)
        if len(key) > 4 * MOST_CHARACTERS:  # quotes of a text are escaped here
            raise BadRequest(f"{form} has over {MOST_CHARACTERS:,} characters; cut it")
        if key in self._kept:
            self._kept.move_to_end(key)
            return self._kept[key]
        seconds = await self._jobs.form_seconds(form, what)
        if seconds > QUICK and len(self._large) >= MOST_LARGE:
            raise BusyError(f"{MOST_LARGE} large forms are in use; try again later")
        pool = self._slow if seconds > QUICK else None
        read = self._grammars().constraint
        found = await asyncio.get_running_loop().run_in_executor(pool, read, form, what)
        if seconds > QUICK:
            self._large.add(found)
        else:
            self._kept[key] = found
            if len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        return found


def _least_priority() -> None:
    """Linux has a priority for each thread."""
    try:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)
    except OSError:
        return
