"""A store's clock that was ahead for a moment: nothing that it has written then lasts for as long as it was ahead."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

import pytest

from oncelery.answers import Busy, Counted, Existing, Granted, Later, Reserved
from oncelery.job import Cause, OnDuplicate
from oncelery.stores.base import PUBLISH_GRACE, SLOW_CHECK, Store
from oncelery.testing.clock import FakeClock
from oncelery.testing.conformance.acts import (
    INSTANT,
    JOB,
    LEASE,
    OTHER,
    accepted,
    begin,
    complete,
    completed,
    release,
    reserve,
    running,
    seen,
    work,
)
from oncelery.testing.conformance.fixtures import Fixtures
from oncelery.testing.conformance.sweeping import EMPTY, swept

#: By how much the clock was wrong.
DAY = timedelta(days=1)

DELAY = timedelta(seconds=60)


@contextmanager
def ahead(clock: FakeClock) -> Iterator[None]:
    """Let the store's clock be a day ahead, for a moment."""
    clock.now += DAY
    yield
    clock.now -= DAY


#: How a store comes to see a running job again.
LOOKS = {"due": lambda store: store.due(limit=10), "begin": lambda store: begin(store, holder="second")}
looks = pytest.mark.parametrize("look", LOOKS.values(), ids=LOOKS)


class WrongClocks(Fixtures):
    """What a clock that was ahead has written is taken back when the clock is right again."""

    # Watermarks

    def test_a_watermark_later_than_now_makes_no_backlog_due(self, store: Store, clock: FakeClock) -> None:
        with ahead(clock):
            completed(store, work("early", "early"))
        for number in range(5):
            accepted(store, f"job {number}", f"key {number}")
        clock.now += PUBLISH_GRACE

        assert swept(store) == []
        clock.now += SLOW_CHECK
        assert len(swept(store)) == 5, "merely old"
        clock.now += SLOW_CHECK - INSTANT
        assert swept(store) == []

    def test_a_watermark_later_than_now_gives_way_to_the_next(self, store: Store, clock: FakeClock) -> None:
        with ahead(clock):
            completed(store, work("early", "early"))
        accepted(store, "lost", "key 1")
        clock.now += INSTANT
        running(store, work("overtook", "key 2"), lease=SLOW_CHECK)
        clock.now += PUBLISH_GRACE

        assert swept(store) == ["lost"]

    def test_a_job_that_was_sent_later_than_now_moves_no_watermark(self, store: Store, clock: FakeClock) -> None:
        with ahead(clock):
            accepted(store, "early", "early")
        accepted(store, "lost", "key 1")
        clock.now += INSTANT
        running(store, work("overtook", "key 2"), lease=SLOW_CHECK)
        clock.now += INSTANT
        accepted(store, "healthy", "key 3")
        running(store, work("early", "early"), lease=SLOW_CHECK)
        clock.now += PUBLISH_GRACE

        assert swept(store) == ["lost"]

    # Leases

    def test_a_renewal_takes_back_what_an_earlier_one_wrote(self, store: Store, clock: FakeClock) -> None:
        lease = running(store)
        with ahead(clock):
            store.renew([lease])
        store.renew([lease])

        assert seen(store).lease_until == clock.now + LEASE
        clock.now += LEASE
        assert swept(store) == [JOB]
        assert isinstance(begin(store, holder="second"), Granted)

    @looks
    def test_a_lease_of_a_worker_that_died_in_that_moment_lapses(
        self, store: Store, clock: FakeClock, look: Callable[[Store], object]
    ) -> None:
        lease = running(store)
        with ahead(clock):
            store.renew([lease])

        look(store)

        assert isinstance(begin(store, holder="second"), Busy)
        clock.now += LEASE
        assert swept(store) == [JOB]
        assert isinstance(begin(store, holder="second"), Granted)

    @looks
    def test_a_lease_that_was_granted_in_that_moment_lapses(
        self, store: Store, clock: FakeClock, look: Callable[[Store], object]
    ) -> None:
        with ahead(clock):
            running(store)

        look(store)

        clock.now += LEASE - INSTANT
        assert isinstance(begin(store, holder="second"), Busy)
        clock.now += INSTANT
        assert swept(store) == [JOB]
        assert isinstance(begin(store, holder="second"), Granted)

    def test_a_look_shortens_no_lease_that_is_as_long_as_it_may_be(self, store: Store, clock: FakeClock) -> None:
        long = running(store, work("long", "key 1"), lease=SLOW_CHECK * 3)
        short = running(store, work("short", "key 2"))

        store.due(limit=10)
        begin(store, work("long", "key 1"), holder="second")

        assert (seen(store, "long").lease_until, seen(store, "short").lease_until) == (long.until, short.until)
        clock.now += LEASE
        assert swept(store) == ["short"]

    def test_a_run_that_was_swept_in_that_moment_is_swept_again(self, store: Store, clock: FakeClock) -> None:
        running(store)
        with ahead(clock):
            assert swept(store) == [JOB]

        store.due(limit=10)

        clock.now += SLOW_CHECK
        assert swept(store) == [JOB]

    def test_a_message_that_was_opened_in_that_moment_shuts_nobody_out(self, store: Store, clock: FakeClock) -> None:
        accepted(store)
        with ahead(clock):
            store.received(JOB, limit=0, lease=LEASE)

        assert store.received(JOB, limit=0, lease=LEASE) == Counted(0)
        assert isinstance(store.received(JOB, limit=0, lease=LEASE), Busy)

    # Messages

    def test_a_message_that_was_lost_in_that_moment_is_sent_again(self, store: Store, clock: FakeClock) -> None:
        with ahead(clock):
            accepted(store)
        store.due(limit=10)

        assert seen(store).changed_at == clock.now
        clock.now += PUBLISH_GRACE
        assert swept(store, empty=EMPTY) == [JOB]

    def test_a_message_that_was_sent_again_in_that_moment_and_lost_is_sent_again(
        self, store: Store, clock: FakeClock
    ) -> None:
        accepted(store)
        with ahead(clock):
            assert swept(store, empty=EMPTY) == [JOB]
        store.due(limit=10)

        clock.now += SLOW_CHECK
        assert swept(store) == [JOB]

    @pytest.mark.parametrize("retried", [False, True], ids=["reserved", "released"])
    def test_a_delay_that_began_in_that_moment_is_no_longer_than_it_was(
        self, store: Store, clock: FakeClock, *, retried: bool
    ) -> None:
        lease = running(store) if retried else None
        with ahead(clock):
            if lease:
                release(store, lease, Cause.RETRY, delay=DELAY)
            else:
                accepted(store, delay=DELAY)
        store.due(limit=10)

        assert seen(store).not_before == clock.now + DELAY
        clock.now += DELAY - INSTANT
        assert isinstance(begin(store, holder="second"), Later)
        clock.now += PUBLISH_GRACE + INSTANT
        assert swept(store, empty=EMPTY) == [JOB]
        assert isinstance(begin(store, holder="second"), Granted)

    def test_a_job_whose_wait_ended_in_that_moment_is_sent_again(self, store: Store, clock: FakeClock) -> None:
        lease = running(store)
        accepted(store, OTHER, on_duplicate=OnDuplicate.TRAIL)
        with ahead(clock):
            complete(store, lease)
        store.due(limit=10)

        clock.now += PUBLISH_GRACE
        assert swept(store, empty=EMPTY) == [OTHER]

    # Keys

    def test_a_key_without_retention_is_free_when_its_job_has_ended(self, store: Store, clock: FakeClock) -> None:
        with ahead(clock):
            completed(store, work(retention=timedelta(0)))

        assert isinstance(reserve(store, OTHER), Reserved)

    def test_a_key_with_a_retention_is_kept_for_longer_and_never_for_less(self, store: Store, clock: FakeClock) -> None:
        with ahead(clock):
            completed(store, work(retention=DELAY))

        clock.now += DELAY - INSTANT
        assert isinstance(reserve(store, OTHER), Existing)
        clock.now += DAY
        assert isinstance(reserve(store, OTHER), Existing)
        clock.now += INSTANT
        assert isinstance(reserve(store, OTHER), Reserved)

    def test_pruning_takes_what_ended_in_that_moment_when_its_time_has_come(
        self, store: Store, clock: FakeClock
    ) -> None:
        with ahead(clock):
            completed(store, work("early", "key 1", retention=DELAY, history=DELAY))
        completed(store, work("later", "key 2", retention=DELAY, history=DELAY))

        clock.now += DELAY
        first = store.prune(limit=10)
        assert store.get("later") is None
        clock.now += DAY
        assert first + store.prune(limit=10) == 2
