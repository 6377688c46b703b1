"""Messages that nobody will acknowledge, as the Redis transport keeps them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import pytest
from guarded.world import World

from oncelery.celery import orphans
from oncelery.celery.message import KEY, PARKED
from oncelery.celery.orphans import Orphans


@pytest.fixture(scope="module", params=["", "mine:"], ids=["plain names", "a prefix"])
def settings_here(request: pytest.FixtureRequest) -> dict[str, object]:
    return {"broker_transport_options": {"global_keyprefix": request.param}}


@contextmanager
def taken_from_the_queue(world: World) -> Iterator[None]:
    """Be a worker that has been given every message, and acknowledges none."""
    queue = world.app.conf.task_default_queue
    with world.app.connection_for_read() as connection:
        channel: Any = connection.default_channel
        while channel.basic_get(queue, no_ack=False):
            pass
        yield
        for tag in list(channel.qos._delivered):  # noqa: SLF001 - there is no other way to tell
            channel.basic_ack(tag)
        channel.queue_purge(queue)


def restored(orphans: Orphans) -> int:
    """Look twice: what is found the first time may be acknowledged just then."""
    return orphans.restore() + orphans.restore()


def end_untold(world: World, job_id: str) -> None:
    """End a job of which its worker has told nobody."""
    world.once.jobs.cancel(job_id)
    world.app.AsyncResult(job_id).forget()


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(orphans, "LOOK_EVERY", 0.0)


@pytest.mark.parametrize(
    ("told", "serializer"),
    [([KEY], "json"), ([], "json"), ([], "pickle")],
    ids=["by code that knows the ledger", "by other code", "by other code as a pickle"],
)
def test_a_duplicate_that_was_put_aside_is_put_back_when_its_work_is_done_and_not_before(
    world: World, told: list[str], serializer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(world.app.conf, "accept_content", ["json", "pickle"])
    name = world.name()
    job = world.tasks.joining.delay(name).job
    headers = {PARKED: 1} | dict.fromkeys(told, job.key)
    duplicate = f"{name}'s duplicate"
    world.once.send_unguarded("joining", (name,), {}, task_id=duplicate, headers=headers, serializer=serializer)
    orphans = Orphans(world.once)

    with taken_from_the_queue(world):
        assert restored(orphans) == 0

        end_untold(world, job.id)

        # Its own message, and the duplicate's.
        assert restored(orphans) == 2


def test_no_orphan_is_kept_back_by_a_message_whose_eta_has_no_time_zone(world: World) -> None:
    end_untold(world, world.tasks.joining.delay(world.name()).id)
    world.tasks.joining.apply_async((world.name(),), eta=datetime(2096, 1, 1))  # noqa: DTZ001 - as some write it

    with taken_from_the_queue(world):
        assert restored(Orphans(world.once)) == 1


def test_no_orphan_is_kept_back_by_what_cannot_be_read(world: World) -> None:
    end_untold(world, world.tasks.joining.delay(world.name()).id)

    with taken_from_the_queue(world), world.app.connection_for_read() as connection:
        channel: Any = connection.default_channel
        with channel.conn_or_acquire() as client:
            client.hset(channel.unacked_key, "broken", "{")
            client.zadd(channel.unacked_index_key, {"broken": 1})
        assert restored(Orphans(world.once)) == 1
        with channel.conn_or_acquire() as client:
            client.hdel(channel.unacked_key, "broken")
            client.zrem(channel.unacked_index_key, "broken")


def test_a_message_whose_jobs_end_is_told_is_no_orphan(world: World) -> None:
    world.once.jobs.cancel(world.tasks.joining.delay(world.name()).id)

    with taken_from_the_queue(world):
        assert restored(Orphans(world.once)) == 0


def test_an_orphan_is_found_among_however_many_messages(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(orphans, "PAGE", 3)
    jobs = [world.tasks.joining.delay(world.name()).id for _ in range(20)]
    end_untold(world, jobs[7])
    looking = Orphans(world.once)

    with taken_from_the_queue(world):
        # A round takes seven looks, and one more is to be sure.
        assert sum(looking.restore() for _ in range(8)) == 1
