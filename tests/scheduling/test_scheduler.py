"""The scheduler on random requests: pages, tokens, fairness; and what each choice does."""

from random import Random

import pytest
from hypothesis import strategies as st
from tests.drawn import on_drawn
from tests.scheduling.drive import config, conserved, drive, request

from shardwise.errors import BadRequest
from shardwise.scheduling import Scheduler, SchedulerConfig, Sequence

SETTINGS = st.fixed_dictionaries(
    {
        "policy": st.sampled_from(["static", "interleaved", "chunked", "prefill"]),
        "pages": st.integers(4, 24),
        "batch": st.integers(1, 6),
        "budget": st.integers(16, 30),
        "admission": st.sampled_from(["optimistic", "reserve", "forecast"]),
        "margin": st.sampled_from([0.0, 0.2]),
        "order": st.sampled_from(["fcfs", "priority", "deadline", "aged"]),
        "age": st.just(7),
        "host_pages": st.sampled_from([0, 0, 6]),
        "prefix_cache": st.booleans(),
        "lookahead": st.sampled_from([0, 0, 1]),
        "swap": st.sampled_from([0, 0, 3, 100]),
        "max_waiting": st.sampled_from([0, 0, 3]),
        "refuse_late": st.booleans(),
    }
)


@st.composite
def workloads(draw):
    """Up to twelve requests that share beginnings, some of them too long for the cache."""
    requests = []
    for number in range(draw(st.integers(1, 12))):
        prompt = draw(st.integers(1, 40))
        arrival = draw(st.integers(0, 30))
        keys = tuple(draw(st.lists(st.integers(0, 1), max_size=10)))[: prompt // 4]
        output = draw(st.integers(1, 25))
        requests.append(
            request(
                number,
                prompt,
                output,
                arrival,
                limit=output + draw(st.sampled_from([0, 0, 8])),
                keys=keys,
                priority=draw(st.integers(0, 2)),
                deadline=arrival + draw(st.sampled_from([5, 40, float("inf")])),
            )
        )
    return requests


def made(values):
    values = dict(values)
    swap = values.pop("swap")
    if swap:
        values |= {"preemption": "swap", "swap_pages": swap}
    return config(**values)


@on_drawn(500, SETTINGS, workloads(), st.integers(0, 99))
def test_every_request_finishes_or_is_refused_and_every_token_is_accounted_for(
    values, requests, seed
):
    setting = made(values)
    draw = Random(seed)
    driven = drive(setting, requests, lambda job: draw.randint(0, setting.lookahead))
    scheduler = driven.scheduler
    for job in driven.jobs:
        assert job.finished is not None
        if job.refusal:
            assert any(
                text in job.refusal for text in ("the cache has", "waiting already", "deadline")
            )
            assert not job.emitted
        elif setting.policy == "prefill":
            assert job.emitted == 1
            assert job.prefilled + job.hit == job.request.prompt + job.lost
        else:
            assert conserved(job)
    assert scheduler.outstanding == scheduler.backlog == scheduler.cache.swapped == 0
    assert scheduler.pool.free + scheduler.tree.device == setting.pages
    assert scheduler.tree.unlocked == scheduler.tree.device


@on_drawn(200, SETTINGS, workloads())
def test_reserved_and_forecast_admission_never_preempts(values, requests):
    values = values | {"order": "fcfs", "lookahead": 0}
    if values["admission"] == "optimistic":
        values["admission"] = "forecast"
    driven = drive(made(values), requests)
    assert not any(job.preemptions for job in driven.jobs)


@on_drawn(200, SETTINGS, workloads())
def test_a_plan_that_may_be_repeated_is_what_the_next_steps_say(values, requests):
    """While `repeat` lasts and nothing arrives, the scheduler plans the same batch again."""
    setting = made(values | {"lookahead": 0, "refuse_late": False})
    driven = drive(setting, [r.__class__(**_at_zero(r)) for r in requests])
    left, shape = 0, None
    for plan in driven.plans:
        if left > 0:
            assert plan.repeat == left
            assert not plan.chunks
            assert not plan.preempted
            assert plan.shape.decodes == shape.decodes
            assert plan.shape.decode_context == shape.decode_context + shape.decodes
        left, shape = plan.repeat - 1, plan.shape


def _at_zero(r):
    return {name: getattr(r, name) for name in r.__slots__} | {"arrival": 0}


@on_drawn(
    200,
    st.sampled_from(["static", "interleaved", "chunked"]),
    st.sampled_from(["optimistic", "reserve", "forecast"]),
    workloads(),
)
def test_none_is_overtaken_for_ever(policy, admission, requests):
    """First come, first started: the order of first steps is the order of arrival."""
    setting = config(policy=policy, admission=admission, budget=16)
    jobs = [j for j in drive(setting, requests).jobs if not j.refusal]
    by_arrival = sorted(jobs, key=lambda j: j.order)
    starts = [j.started for j in by_arrival]
    assert starts == sorted(starts)
    # Nor is the first ever preempted: so the one after it becomes the first, and so on.
    assert not any(j.preemptions for j in by_arrival[:1])


def test_preemption_takes_the_last_and_nobody_starts_in_its_step():
    requests = [request(i, 8, 40, i) for i in range(4)]
    driven = drive(config(pages=24, prefix_cache=False), requests)
    preemptions = [j.preemptions for j in driven.jobs]
    assert preemptions == sorted(preemptions)
    assert preemptions[0] == 0 < preemptions[-1]
    assert not any(plan.preempted and plan.chunks for plan in driven.plans)


@pytest.mark.parametrize("arrival", [0, 9])
def test_a_cache_from_elsewhere_and_a_prompt_take_turns_by_order(arrival):
    """There is room for one of them: the older goes first, whichever queue it is in."""
    scheduler = Scheduler(config(pages=5))
    moved = Sequence(request(1, 12, 4, arrival=5), (5, 1))
    moved.cached, moved.emitted = 12, 1
    moved = scheduler.receive(moved)
    asked = scheduler.add(request(0, 12, 4, arrival=arrival), 9)
    scheduler.schedule(9)
    assert (asked.started is not None) == (arrival < 5)
    assert (moved in scheduler.decoding) == (arrival > 5)


def test_a_low_class_ages_but_starves_where_classes_are_strict():
    # A stream of class 0 at twice the rate of service, and one request of class 3: aged, it goes
    # before what came more than 3 x 20 ticks later.
    requests = [request(i, 8, 2, i) for i in range(120)] + [request(500, 8, 2, 1, priority=3)]
    aged = drive(
        config(batch=1, budget=8, order="aged", age=20, policy="interleaved"), requests, check=False
    )
    strict = drive(
        config(batch=1, budget=8, order="priority", policy="interleaved"), requests, check=False
    )

    def overtaken(driven):
        low = next(j for j in driven.jobs if j.request.id == 500)
        return sum(j.started < low.started for j in driven.jobs)

    assert overtaken(strict) == 120
    assert overtaken(aged) == 62


def test_an_urgent_request_displaces_the_last_of_a_lower_class():
    requests = [request(i, 4, 20, 0, priority=2) for i in range(4)]
    requests.append(request(9, 4, 2, 3, priority=0))
    jobs = {j.request.id: j for j in drive(config(order="priority", pages=40), requests).jobs}
    assert jobs[9].started == 3
    assert [jobs[i].preemptions for i in range(4)] == [0, 0, 0, 1]
    fcfs = {j.request.id: j for j in drive(config(pages=40), requests).jobs}
    assert fcfs[9].started == 20


def test_none_is_displaced_where_caches_to_be_fetched_leave_too_little():
    """Five of ten pages wait to be fetched: six do not fit, whoever goes."""
    setting = config(policy="prefill", order="priority", pages=10, batch=1, budget=16)
    requests = [
        request(0, 17, 2, 0, priority=0),
        request(1, 17, 2, 0, priority=1),
        request(2, 20, 1, 3, priority=0),
    ]
    jobs = {job.request.id: job for job in drive(setting, requests).jobs}
    assert jobs[1].preemptions == 0
    assert all(job.finished is not None and not job.refusal for job in jobs.values())


def test_the_earliest_deadline_is_served_first_and_the_late_are_refused():
    requests = [
        request(0, 8, 1, 0, deadline=50),
        request(1, 8, 1, 0, deadline=10),
        request(2, 8, 1, 0, deadline=1.5),
        request(3, 8, 1, 0, deadline=1),
    ]
    setting = config(order="deadline", batch=1, budget=4, policy="interleaved", refuse_late=True)
    jobs = drive(setting, requests).jobs
    started = [j.started for j in sorted(jobs, key=lambda j: j.request.id)]
    assert started == [4, 2, None, 0]
    refused = next(j for j in jobs if j.request.id == 2)
    assert refused.refusal == "its deadline passed while it waited"


def test_swapping_computes_nothing_twice():
    requests = [request(i, 8, 30, 0) for i in range(3)]
    setting = {"pages": 14, "batch": 3, "prefix_cache": False}
    again = drive(config(**setting), requests).jobs
    swapped = drive(config(**setting, preemption="swap", swap_pages=100), requests)
    assert sum(j.lost for j in again) > 0
    assert sum(j.lost for j in swapped.jobs) == 0
    assert sum(j.preemptions for j in swapped.jobs) > 0
    moved = sum(p.host_tokens for p in swapped.plans)
    assert moved > 0
    assert moved % 2 == 0  # there and back


def test_a_prefix_computed_once_is_hit_by_the_next():
    keys = (1, 2, 3, 4)
    requests = [request(0, 17, 3, 0, keys=keys), request(1, 17, 3, 9, keys=keys)]
    jobs = drive(config(), requests).jobs
    assert [j.hit for j in jobs] == [0, 16]
    # A prompt that is cached whole computes its last page, as its last token yields the next.
    requests = [request(0, 16, 3, 0, keys=keys), request(1, 16, 3, 9, keys=keys)]
    assert [j.hit for j in drive(config(), requests).jobs] == [0, 12]


def test_the_host_tier_hits_what_the_device_had_to_evict():
    first = request(0, 16, 2, 0, keys=(1, 2, 3, 4))
    other = request(1, 40, 2, 10, keys=tuple(range(10, 20)))
    again = request(2, 17, 2, 40, keys=(1, 2, 3, 4))
    pages = {"pages": 12, "budget": 16}
    without = drive(config(**pages), [first, other, again]).jobs[2]
    hosted = drive(config(**pages, host_pages=20), [first, other, again]).jobs[2]
    assert without.hit < hosted.hit == 16
    assert hosted.host_hit == 16 - without.hit


def test_a_sequence_may_stop_before_its_length_or_be_dropped():
    scheduler = Scheduler(config())
    jobs = [scheduler.add(request(i, 6, 50), 0) for i in range(3)]
    for now in range(4):
        scheduler.postprocess(scheduler.schedule(now), now + 1)
    result = scheduler.postprocess(scheduler.schedule(4), 5, stopped=[jobs[0]])
    assert result.finished == (jobs[0],)
    assert jobs[0].emitted < 50
    scheduler.cancel(jobs[1], 5, "the client left")
    late = scheduler.add(request(7, 6, 5), 5)
    scheduler.cancel(late, 5, "the client left")
    scheduler.check()
    assert (jobs[1].refusal, late.refusal) == ("the client left",) * 2
    assert scheduler.outstanding == 1
    assert scheduler.backlog == 0


def test_what_never_fits_is_refused_with_the_reason():
    scheduler = Scheduler(config())
    job = scheduler.add(request(0, 70, 30), 3)
    assert job.refusal == "its 100 tokens need 25 pages of 4 and the cache has 20"
    assert job.finished == 3
    assert scheduler.schedule(3) is None


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"pages": 0}, "pages is 0; it must be at least 1"),
        ({"policy": "chunkd"}, "unknown policy 'chunkd'; did you mean 'chunked'"),
        ({"order": "lifo"}, "unknown order 'lifo'"),
        ({"margin": 1.0}, "margin is 1.0; it is a share"),
        ({"budget": 4}, "the token budget of 4 leaves nothing for prompts beside 4 decoding"),
        ({"preemption": "swap"}, "preemption by swap needs room on the host; set swap_pages"),
        ({"lookahead": 4, "budget": 99}, "4 speculated tokens do not fit a page of 4"),
    ],
)
def test_bad_choices_are_refused(changes, text):
    with pytest.raises(BadRequest) as error:
        config(**changes)
    assert text in str(error.value)


def test_static_batches_take_no_choices_that_would_not_act():
    values = {"pages": 9, "page_size": 4, "batch": 2, "budget": 8, "policy": "static"}
    with pytest.raises(BadRequest, match="static batches use no prefix cache"):
        SchedulerConfig(**values)
    with pytest.raises(BadRequest, match="static batches preempt nobody; set admission to reserve"):
        SchedulerConfig(**values, prefix_cache=False)


def test_bad_requests_are_refused():
    with pytest.raises(BadRequest, match="request 3 has prompt 0; it needs at least 1 token"):
        request(3, 0, 1)
    with pytest.raises(BadRequest, match="request 3 emits 9 tokens, over its limit of 5"):
        request(3, 1, 9, limit=5)
