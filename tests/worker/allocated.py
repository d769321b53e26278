"""What torch's profiler sees the allocator do."""

import gc
from collections.abc import Callable

from torch.profiler import ProfilerActivity, profile, record_function

BEGINS = "what is measured begins"


def most_bytes(act: Callable[[Callable[[], None]], None]) -> int:
    """The most bytes that were allocated at once while `act` ran, after it called what it is given; those count that it allocated
    before and still held."""

    def begin() -> None:
        gc.collect()  # modules have cycles; when Python breaks them is chance
        with record_function(BEGINS):
            pass

    gc.collect()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as told:
        act(begin)
    events = told.profiler.kineto_results.events()  # type: ignore[union-attr]
    (start,) = [event.start_ns() for event in events if event.name() == BEGINS]
    now = most = 0
    for event in sorted((each for each in events if each.name() == "[memory]"), key=lambda each: each.start_ns()):
        now += event.nbytes()
        most = max(most, now) if event.start_ns() >= start else most
    return most
