"""What the engine executes is what the simulator's scheduler plans, step by step."""

from random import Random

from hypothesis import strategies as st
from tests.drawn import on_drawn
from tests.runtime.engine.mock import MockExecutor
from tests.runtime.engine.test_mock import KEPT, kept_groups

from shardwise.runtime.engine import Engine, Sampling
from shardwise.scheduling import Request, Scheduler, SchedulerConfig

SETTINGS = st.fixed_dictionaries(
    {
        "policy": st.sampled_from(["interleaved", "chunked"]),
        "pages": st.integers(10, 24),
        "batch": st.integers(1, 6),
        "admission": st.sampled_from(["optimistic", "reserve", "forecast"]),
        "order": st.sampled_from(["fcfs", "priority"]),
        "host_pages": st.sampled_from([0, 6]),
        "swap": st.sampled_from([0, 3, 30]),
        "ahead": st.booleans(),
    }
)


class Recorder(MockExecutor):
    """A mock executor that writes down what it is given."""

    def __init__(self, **values):
        super().__init__(**values)
        self.steps_run = []

    def run(self, batches):
        (batch,) = batches
        decodes = [
            (g.id, int(slot), int(cached))
            for g, slot, cached in zip(
                batch.generations, batch.slots_D, batch.cached_D, strict=True
            )
        ]
        chunks = [(c.generation.id, c.slot, c.start, len(c.tokens)) for c in batch.chunks]
        self.steps_run.append((decodes, chunks, [(copy.group, copy.kind) for copy in batch.copies]))
        return super().run(batches)


def planned(scheduler, plan):
    """A plan in the recorder's words."""
    decodes = []
    if plan.shape.decodes:
        decodes = [(j.request.id, j.slot, scheduler.decoding.cached(j)) for j in scheduler.decoding]
    chunks = [(c.sequence.request.id, c.sequence.slot, c.start, c.tokens) for c in plan.chunks]
    copies = [(copy.group, copy.kind) for copy in plan.changes.copies] if plan.changes else []
    return sorted(decodes, key=lambda row: row[1]), chunks, copies


def drawn_events(draw):
    """What happens before each tick: requests, cancels."""
    events = []
    for number in range(draw.randint(2, 10)):
        prompt = [draw.randrange(50) for _ in range(draw.randint(1, 30))]
        events.append((draw.randint(0, 25), "add", number, prompt, draw.choice([1, 1, 3])))
        if draw.random() < 0.3:
            events.append((draw.randint(5, 40), "cancel", number, None, 0))
    return sorted(events, key=lambda e: (e[0], e[2], e[1]))


@on_drawn(200, SETTINGS, KEPT, st.integers(0, 10**6))
def test_the_engine_executes_what_the_scheduler_plans_by_itself(values, kept, seed):
    swap, ahead = values.pop("swap"), values.pop("ahead")
    if swap:
        values |= {"preemption": "swap", "swap_pages": swap}
    values |= {"page_size": 4, "budget": 12, "margin": 0.0}
    config = SchedulerConfig(**values, kept=kept_groups(kept, values["batch"], values["budget"]))
    draw = Random(seed)
    events, outputs = drawn_events(draw), Random(seed + 1)
    lengths = {event[2]: outputs.randint(1, 15) for event in events}
    urgency = {event[2]: outputs.randrange(3) for event in events}
    host = config.host_pages + config.swap_pages
    executor = Recorder(
        pages=config.pages,
        page_size=4,
        batch=config.batch,
        vocabulary=50,
        host_pages=host,
        kept=config.kept,
    )
    now = [0.0]
    engine = Engine(config, executor, ahead=ahead, clock=lambda: now[0])
    asked = {}
    plans = []
    for tick in range(600):
        now[0] = tick
        for when, kind, number, prompt, answers in events:
            if when == tick and kind == "add":
                sampling = Sampling(temperature=0, max_tokens=lengths[number])
                asked[number] = engine.add(
                    prompt, sampling, answers=answers, priority=urgency[number]
                )
            elif when == tick and number in asked:
                engine.cancel(asked[number][0])
        engine.step()
        if engine.idle and tick > 45:
            break
    assert engine.idle
    # The same arrivals through the scheduler alone, as the simulator drives it.
    scheduler, jobs, count = Scheduler(config), {}, 0
    for tick in range(600):
        for when, kind, number, prompt, answers in events:
            if when == tick and kind == "add":
                requests = []
                for _ in range(answers):
                    count += 1
                    keys = asked[number][0].job.request.keys
                    requests.append(
                        Request(
                            id=count,
                            arrival=tick,
                            prompt=len(prompt),
                            output=asked[number][0].job.request.output,
                            keys=keys,
                            priority=urgency[number],
                        )
                    )
                first = scheduler.add(requests[0], tick)
                jobs[number] = [first, *scheduler.fork(first, requests[1:], tick)]
                for job, generation in zip(jobs[number], asked[number], strict=True):
                    job.keys = generation.job.keys  # a trace that knows its answers' contents
            elif when == tick and number in jobs and not jobs[number][0].refusal:
                scheduler.cancel(jobs[number][0], tick, "cancelled")
        plan = scheduler.schedule(tick)
        if plan is not None and (plan.chunks or plan.shape.decodes):
            plans.append(planned(scheduler, plan))
            scheduler.postprocess(plan, tick)
    assert executor.steps_run == plans
