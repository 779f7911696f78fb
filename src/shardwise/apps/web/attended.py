"""Work that is done while its client is there."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.types import Receive

Done = TypeVar("Done")


class ClientGoneError(Exception):
    """Nobody waits for this answer any more."""


async def attended(receive: Receive, work: Coroutine[Any, Any, Done]) -> Done:
    """Do something while the client is there. Raises ClientGoneError once it is not."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_gone(receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGoneError
        return task.result()
    finally:
        for one in (task, gone):
            one.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
