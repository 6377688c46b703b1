from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from dataclasses import replace
from queue import Empty
from typing import TYPE_CHECKING

import psutil
import pytest
from faults.brokers import broker_on
from faults.journal import Verdict
from faults.workers import ALONE, Workers, is_gone

from oncelery.embedded import ServerStartError
from oncelery.embedded.process import eventually
from oncelery.errors import OnceleryError
from oncelery.testing.failpoints import Failpoint, environment
from oncelery.testing.proxy import FaultProxy

if TYPE_CHECKING:
    from pathlib import Path

    from faults.brokers import Broker
    from faults.journal import Journal

    from oncelery.testing.servers import RabbitMQServer, ValkeyServer

#: Longer than anything here takes on a busy machine; reached only by a test that fails.
SOON = 40.0

PLAIN = "faults.plain_app"


@pytest.fixture
def on_redis(valkey: ValkeyServer) -> Broker:
    """Give a broker for what does not depend on which it is."""
    return broker_on(valkey)


def send(broker: Broker, *keys: str) -> None:
    with broker.publisher() as app:
        for key in keys:
            app.send_task("write", [key])


# Workers


def test_a_task_whose_child_was_killed_runs_again_in_another(
    broker: Broker, workers: Workers, journal: Journal, tmp_path: Path
) -> None:
    halfway = Failpoint("before-effect", "wait", tmp_path)
    worker = workers.start(PLAIN, broker=broker, env=journal.environment | environment(halfway))
    send(broker, "order-1")
    assert eventually(lambda: halfway.fired == 1, SOON)

    killed = worker.kill_child(halfway.pids[0])

    assert eventually(lambda: journal.verdict(["order-1"]).is_clean, SOON)
    first, second = (entry.pid for entry in journal.entries(what="start"))
    assert first == killed != second
    assert eventually(lambda: "WorkerLostError" in worker.log, SOON)


def test_a_child_that_kills_itself_at_a_failpoint_does_so_once(
    on_redis: Broker, workers: Workers, journal: Journal, tmp_path: Path
) -> None:
    killed = Failpoint("before-effect", "kill", tmp_path)
    workers.start(PLAIN, broker=on_redis, env=journal.environment | environment(killed))

    send(on_redis, "order-1", "order-2")

    assert eventually(lambda: journal.verdict(["order-1", "order-2"]).is_clean, SOON)
    assert killed.fired == 1


def test_a_message_of_a_killed_worker_goes_to_the_next_on_rabbitmq(
    rabbitmq: RabbitMQServer, workers: Workers, journal: Journal, tmp_path: Path
) -> None:
    broker = broker_on(rabbitmq)
    halfway = Failpoint("before-effect", "wait", tmp_path)
    first = workers.start(PLAIN, broker=broker, env=journal.environment | environment(halfway))
    family = first.children()
    send(broker, "order-1")
    assert eventually(lambda: halfway.fired == 1, SOON)

    first.kill()

    assert first.status == -signal.SIGKILL
    assert all(is_gone(child) for child in family)
    second = workers.start(PLAIN, broker=broker, env=journal.environment)
    assert eventually(lambda: journal.verdict(["order-1"]).is_clean, SOON)
    assert journal.entries()[0].pid in {child.pid for child in second.children()}


def test_a_message_of_a_killed_worker_comes_back_on_redis_after_its_visibility_timeout(
    on_redis: Broker, workers: Workers, journal: Journal, tmp_path: Path
) -> None:
    impatient = {"visibility_timeout": 1, "unacked_restore_interval": 0.1, "unacked_restore_throttle": 1}
    broker = replace(on_redis, transport_options=impatient)
    halfway = Failpoint("before-effect", "wait", tmp_path)
    first = workers.start(PLAIN, broker=broker, env=journal.environment | environment(halfway))
    send(broker, "order-1")
    assert eventually(lambda: halfway.fired == 1, SOON)

    first.kill()
    workers.start(PLAIN, broker=broker, env=journal.environment)

    assert eventually(lambda: journal.verdict(["order-1"]).is_clean, SOON)


def test_a_killed_worker_restarts_and_takes_tasks(on_redis: Broker, workers: Workers, journal: Journal) -> None:
    worker = workers.start(PLAIN, broker=on_redis, env=journal.environment)
    worker.kill()

    worker.restart()
    send(on_redis, "order-1")

    assert eventually(lambda: journal.verdict(["order-1"]).is_clean, SOON)


def test_a_paused_worker_and_its_children_do_nothing_until_they_are_resumed(
    on_redis: Broker, workers: Workers, journal: Journal
) -> None:
    worker = workers.start(PLAIN, broker=on_redis, env=journal.environment)
    family = [psutil.Process(worker.pid), *worker.children()]

    worker.pause()

    assert eventually(lambda: {process.status() for process in family} == {psutil.STATUS_STOPPED}, SOON)
    send(on_redis, "order-1")
    assert journal.entries(what="start") == []
    worker.resume()
    assert eventually(lambda: journal.verdict(["order-1"]).is_clean, SOON)


def test_a_stopped_worker_ends_the_task_that_it_runs(
    on_redis: Broker, workers: Workers, journal: Journal, tmp_path: Path
) -> None:
    halfway = Failpoint("before-effect", "wait", tmp_path)
    env = journal.environment | environment(halfway)
    worker = workers.start(PLAIN, broker=on_redis, env=env, options=[*ALONE, "--loglevel", "DEBUG"])
    send(on_redis, "order-1")
    assert eventually(lambda: halfway.fired == 1, SOON)

    asked = threading.Thread(target=worker.stop)
    asked.start()
    # A task that ended a little earlier, while the pool closes, would hold the worker up for 30 s.
    assert eventually(lambda: "Stopping Pool" in worker.log, SOON)
    halfway.release()
    asked.join(SOON)

    assert worker.status == 0
    assert journal.verdict(["order-1"]).is_clean


def test_a_worker_in_threads_has_no_child_to_kill(on_redis: Broker, workers: Workers, journal: Journal) -> None:
    worker = workers.start(PLAIN, broker=on_redis, pool="threads", env=journal.environment)
    send(on_redis, "order-1")
    assert eventually(lambda: journal.verdict(["order-1"]).is_clean, SOON)

    with pytest.raises(OnceleryError, match="no child"):
        worker.kill_child()


def test_a_worker_takes_from_the_queues_it_is_given(on_redis: Broker, workers: Workers, journal: Journal) -> None:
    workers.start(PLAIN, broker=on_redis, queues=["orders", "refunds"], env=journal.environment)

    with on_redis.publisher() as app:
        app.send_task("write", ["order-1"], queue="orders")
        app.send_task("write", ["refund-1"], queue="refunds")

    assert eventually(lambda: journal.verdict(["order-1", "refund-1"]).is_clean, SOON)


def test_settings_go_over_those_of_the_app(on_redis: Broker, workers: Workers) -> None:
    worker = workers.start(PLAIN, broker=on_redis, settings={"task_default_queue": "chosen"})

    assert ".> chosen" in worker.log


def test_a_worker_that_cannot_start_says_why(on_redis: Broker, workers: Workers) -> None:
    with pytest.raises(ServerStartError, match="no_such_module"):
        workers.start("no_such_module", broker=on_redis)


def test_nothing_is_left_of_the_workers_after_their_block(on_redis: Broker, tmp_path: Path) -> None:
    with Workers(tmp_path) as workers:
        running, paused = (workers.start(PLAIN, broker=on_redis) for _ in range(2))
        family = [process for worker in (running, paused) for process in worker.children()]
        paused.pause()

    assert not running.is_running
    assert not paused.is_running
    assert all(is_gone(process) for process in family)


# Brokers


def test_a_broker_has_none_of_the_messages_of_the_last_one(broker: Broker) -> None:
    send(broker, "order-1")

    other = broker_on(broker.server)

    with other.publisher() as app, app.connection_for_read() as connection:
        queue = connection.SimpleQueue("celery")
        with pytest.raises(Empty):
            queue.get(block=False)
        queue.close()


def test_a_reply_that_the_broker_lost_makes_celery_publish_twice(
    valkey: ValkeyServer, workers: Workers, journal: Journal
) -> None:
    broker = broker_on(valkey)
    workers.start(PLAIN, broker=broker, env=journal.environment)

    with FaultProxy(valkey.port) as proxy:
        lost = proxy.lose_reply(b"LPUSH")
        send(replace(broker, url=proxy.url(broker.url)), "order-1")

    assert lost.happened.is_set()
    assert eventually(lambda: journal.verdict(["order-1"]).duplicated == {"order-1": 1}, SOON)


def test_a_broker_of_ones_own_can_be_killed_and_restarted(
    private_broker: Broker, workers: Workers, journal: Journal
) -> None:
    workers.start(PLAIN, broker=private_broker, env=journal.environment)

    private_broker.server.kill()
    private_broker.server.restart()
    send(private_broker, "order-1")

    assert eventually(lambda: journal.verdict(["order-1"]).is_clean, SOON)


# The journal


def test_a_verdict_tells_lost_duplicated_and_unexpected_effects_apart(journal: Journal) -> None:
    for key in ("once", "twice", "twice", "thrice", "thrice", "thrice", "uninvited"):
        journal.record(key)

    verdict = journal.verdict(["once", "twice", "twice", "thrice", "never"])

    assert verdict == Verdict(
        lost=Counter(["never"]), duplicated=Counter({"thrice": 2}), unexpected=Counter(["uninvited"])
    )
    assert not verdict.is_clean


def test_an_entry_says_who_did_what_and_in_which_attempt(journal: Journal) -> None:
    journal.record("order-1", job_id="j-1", payload={"amount": 5}, fence=7, attempt=2)
    journal.record("order-1", what="start")

    (entry,) = journal.entries()
    assert (entry.key, entry.job_id, entry.payload, entry.fence, entry.attempt) == (
        "order-1",
        "j-1",
        {"amount": 5},
        7,
        2,
    )
    assert entry.pid == os.getpid()
    assert entry.at <= journal.entries(what="start")[0].at


def test_entries_of_many_processes_are_all_whole(journal: Journal) -> None:
    program = "from faults.journal import Journal; [Journal().record(f'k-{n}', payload='x' * 3000) for n in range(200)]"
    paths = os.pathsep.join(sys.path)
    env = os.environ | journal.environment | {"PYTHONPATH": paths}

    writers = [subprocess.Popen([sys.executable, "-c", program], env=env) for _ in range(4)]

    assert [writer.wait(SOON) for writer in writers] == [0, 0, 0, 0]
    assert journal.verdict([f"k-{n}" for n in range(200)] * 4).is_clean


def test_an_entry_that_was_cut_short_spoils_no_other(journal: Journal) -> None:
    journal.record("first")
    with journal.path.open("ab") as file:
        file.write(b'\n{"key":"cut')

    journal.record("second")

    assert journal.verdict(["first", "second"]).is_clean


def test_an_entry_too_long_to_be_surely_whole_is_refused(journal: Journal) -> None:
    with pytest.raises(ValueError, match="record less of order-1"):
        journal.record("order-1", payload="x" * 5000)
