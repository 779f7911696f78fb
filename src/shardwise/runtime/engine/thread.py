"""The engine on a thread of its own, asked from an event loop.

    with EngineThread(engine) as thread:
        asked = thread.ask(prompt, sampling, answers=2)
        try:
            await asked.accepted()
            async for delta in asked.answers[0]:
                ...
        finally:
            asked.close()                      # drops what has not ended; its pages are free

One thread steps; what others want of the engine is put into its inbox and done between two steps,
in order. After each step the loop is told once of all tokens. A reader that is slow gets them
together later, and holds up nobody.
"""

import asyncio
import logging
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, NamedTuple

from shardwise.errors import BadRequest, ShardwiseError
from shardwise.runtime.engine.core import Engine
from shardwise.runtime.engine.generation import Finish, Generation, Sampling, TokenLogprobs

SWITCH = 0.0001
"""Seconds that a thread may keep Python while another waits for it (Python's own: 0.005), so that
tokens go out while the next step is prepared."""
STOPPED = 2.0
"""Seconds that a thread which was stopped has for the step under way: a program may compile for
longer."""
PAUSE = 0.0005
"""Seconds to wait after a step in which nothing could run."""
LET_GO = 0.00005
"""Seconds without Python after tokens, in which the event loop takes it: the device has its next
step already."""


class StoppedError(ShardwiseError):
    """The engine was asked to end before its answers."""


class Delta(NamedTuple):
    """What came of an answer since the last one; `finish` says that it was the last."""

    tokens: list[int]
    logprobs: list[TokenLogprobs]
    finish: Finish | None = None


class AnswerStream:
    """One answer on its way from the engine to its reader, who sees every token once."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.generation: Generation | None = None
        self.failure: ShardwiseError | None = None
        """Why there is no answer, or no more of it."""
        self.told = 0
        """Tokens that the thread has passed on."""
        self.loop = loop
        self._came = asyncio.Event()
        self._tokens: list[int] = []
        self._logprobs: list[TokenLogprobs] = []
        self._finish: Finish | None = None

    def put(self, delta: Delta) -> None:
        """Tokens for the reader."""
        self._tokens += delta.tokens
        self._logprobs += delta.logprobs
        self._finish = delta.finish
        self._came.set()

    def fail(self, error: ShardwiseError) -> None:
        """There is no more to come."""
        self.failure = error
        self._came.set()

    async def __aiter__(self) -> AsyncIterator[Delta]:
        """What comes until the answer ends. Raises what ended it early."""
        finish: Finish | None = None
        while finish is None:
            await self._came.wait()
            self._came.clear()
            if self.failure is not None:
                raise self.failure
            finish = self._finish
            delta = Delta(self._tokens, self._logprobs, finish)
            self._tokens, self._logprobs = [], []
            yield delta


class Asked:
    """A prompt that was given to the engine, with a stream for each of its answers."""

    def __init__(
        self,
        thread: "EngineThread",
        prompt: Sequence[int],
        sampling: Sampling,
        answers: int,
        how: Mapping[str, int],
    ) -> None:
        self.prompt, self.sampling, self.how = prompt, sampling, how
        self.loop = asyncio.get_running_loop()
        self.answers = [AnswerStream(self.loop) for _ in range(answers)]
        self.taken: asyncio.Future[None] = self.loop.create_future()
        self._thread = thread
        self._open = True

    async def accepted(self) -> None:
        """Wait until the engine has it. Raises BadRequest where it refuses it."""
        await asyncio.shield(self.taken)

    def stop(self, answer: int) -> None:
        """End an answer whose reader has seen a stop string."""
        stream = self.answers[answer]
        self._thread.call(lambda engine: stream.generation and engine.stop(stream.generation))

    def close(self) -> None:
        """Drop what has not ended. May be called twice."""
        if self._open:
            self._open = False
            self._thread.call(self._cancel)

    def _cancel(self, engine: Engine) -> None:
        for stream in self.answers:
            if stream.generation is not None:
                engine.cancel(stream.generation)
        self._thread.forget(self)


class EngineThread:
    """Steps an engine while there is something to do. Use it as a context."""

    def __init__(self, engine: Engine) -> None:
        self.most_tokens = engine.most_tokens
        self.failure: BaseException | None = None
        """What ended the thread, if it did not end by itself."""
        self.open: set[Asked] = set()
        """What was asked and is not closed; of the event loop."""
        self._engine = engine
        self._stepped = 0.0  # when the step under way began; 0 where there is none
        self._inbox: SimpleQueue[Callable[[Engine], Any] | None] = SimpleQueue()
        self._streams: dict[int, AnswerStream] = {}
        self._taken: list[Asked] = []  # whose readers are told once the device has their step
        self._questions: set[asyncio.Future[Any]] = set()
        self._thread = Thread(target=self._run, name="engine", daemon=True)

    def __enter__(self) -> "EngineThread":
        self._before = sys.getswitchinterval()
        sys.setswitchinterval(SWITCH)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End after the step under way; who still waits is told."""
        self._inbox.put(None)
        self._thread.join(STOPPED if isinstance(self.failure, StoppedError) else None)
        sys.setswitchinterval(self._before)

    @property
    def step_seconds(self) -> float:
        """Seconds that the step under way has taken; 0 where there is none."""
        begun = self._stepped
        return time.monotonic() - begun if begun else 0.0

    def ask(
        self, prompt: Sequence[int], sampling: Sampling, *, answers: int = 1, **how: int
    ) -> Asked:
        """Give a prompt to the engine, from the event loop; `how` are its priority and variant."""
        asked = Asked(self, prompt, sampling, answers, how)
        self.open.add(asked)
        self.call(lambda engine: self._add(engine, asked))
        return asked

    def call(self, what: Callable[[Engine], Any]) -> None:
        """Do something with the engine between two steps."""
        self._inbox.put(what)
        if self.failure is not None:  # nobody empties the inbox
            self._fail_all()

    def stop(self, why: str) -> None:
        """End without the answers that are under way, from the event loop: who waits is told."""
        self.failure = StoppedError(why)
        self._inbox.put(None)
        self._fail_all()

    async def told(self, what: Callable[[Engine], Any]) -> Any:
        """What a function says of the engine between two steps. Raises ShardwiseError where it
        makes none any more."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        self._questions.add(future)
        future.add_done_callback(self._questions.discard)

        def answer(engine: Engine) -> None:
            try:
                _tell(loop, _settle, future, what(engine))
            except Exception as error:
                _tell(loop, _refuse, future, error)

        self.call(answer)
        return await future

    def forget(self, asked: Asked) -> None:
        """Called on the thread for what is closed."""
        for stream in asked.answers:
            if stream.generation is not None:
                self._streams.pop(stream.generation.id, None)
        _tell(asked.loop, self.open.discard, asked)

    # On the thread.

    def _run(self) -> None:
        try:
            while self._take_in():
                idle = self._engine.idle
                self._stepped = time.monotonic()
                news = [] if idle else self._engine.step()
                self._stepped = 0.0
                self._tell_taken()
                if not idle:
                    self._pass_on(news)
        except BaseException as error:  # a library's panic is no Exception
            logging.getLogger(__name__).critical("the engine has failed", exc_info=error)
            self.failure = error
            self._fail_all()
            return
        self.failure = self.failure or StoppedError("the engine was stopped")
        self._fail_all()

    def _take_in(self) -> bool:
        """Do what is in the inbox; wait for it where there is nothing else to do."""
        wait = self._engine.idle
        while True:
            try:
                what = self._inbox.get(block=wait)
            except Empty:
                return True
            if what is None:
                return False
            what(self._engine)
            wait = False

    def _add(self, engine: Engine, asked: Asked) -> None:
        try:
            made = engine.add(asked.prompt, asked.sampling, answers=len(asked.answers), **asked.how)
        except BadRequest as error:
            _tell(asked.loop, _refuse, asked.taken, error)
            return
        refusals = [generation.refusal for generation in made if generation.refusal]
        if refusals:
            for generation in made:
                engine.cancel(generation)
            _tell(asked.loop, _refuse, asked.taken, BadRequest(refusals[0]))
            return
        for generation, stream in zip(made, asked.answers, strict=True):
            stream.generation = generation
            self._streams[generation.id] = stream
        self._taken.append(asked)

    def _tell_taken(self) -> None:
        for asked in self._taken:
            _tell(asked.loop, _settle, asked.taken, None)
        self._taken.clear()

    def _pass_on(self, news: list[Generation]) -> None:
        """Tell each event loop of its tokens, once."""
        by_loop: dict[asyncio.AbstractEventLoop, list[tuple[AnswerStream, Delta]]] = {}
        for generation in news:
            stream = self._streams.get(generation.id)
            if stream is None:
                continue
            if generation.refusal:
                _tell(stream.loop, stream.fail, generation.failure(generation.refusal))
            else:
                by_loop.setdefault(stream.loop, []).append((stream, _delta(stream, generation)))
        for loop, deltas in by_loop.items():
            _tell(loop, _deliver, deltas)
        time.sleep(LET_GO if news else PAUSE)

    def _fail_all(self) -> None:
        error = self.failure
        if not isinstance(error, StoppedError):
            error = ShardwiseError(f"the engine has failed: {error}")
        streams, self._streams = self._streams, {}
        for stream in streams.values():
            _tell(stream.loop, stream.fail, error)
        for asked in list(self.open):
            _tell(asked.loop, _refuse, asked.taken, error)
        for future in list(self._questions):
            _tell(future.get_loop(), _refuse, future, error)


def _delta(stream: AnswerStream, generation: Generation) -> Delta:
    start, stream.told = stream.told, len(generation.tokens)
    return Delta(generation.tokens[start:], generation.logprobs[start:], generation.finish)


def _deliver(deltas: list[tuple[AnswerStream, Delta]]) -> None:
    for stream, delta in deltas:
        stream.put(delta)


def _settle(future: "asyncio.Future[Any]", value: Any) -> None:
    if not future.done():
        future.set_result(value)


def _refuse(future: "asyncio.Future[Any]", error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
        future.exception()  # it may be that nobody waits any more


def _tell(loop: asyncio.AbstractEventLoop, what: Callable[..., Any], *given: Any) -> None:
    """Do something on an event loop, if it still runs."""
    try:
        loop.call_soon_threadsafe(what, *given)
    except RuntimeError:  # closed: its readers are gone
        return
