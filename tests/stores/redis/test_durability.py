from __future__ import annotations

from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from oncelery.answers import Granted, Recorded, Renewed, Reserved, Settled
from oncelery.errors import ConfigurationError, StoreUnavailableError
from oncelery.job import Lease, Progress, Query
from oncelery.settlement import Complete
from oncelery.stores.base import Store
from oncelery.testing.conformance.acts import begin, completed, reserve, running, work
from oncelery.testing.servers import RedisServer, ValkeyServer
from stores.redis.stores import NO_LEASE, SAFE, AnyServer, client_of, follow, opened

#: Long enough to wait for a reply on a busy machine, and short enough to wait for one in vain.
IMPATIENT = "socket_timeout=2"


def test_safe_waits_for_the_disk(private_valkey: ValkeyServer) -> None:
    with opened(private_valkey) as store:
        completed(store, work(durability=SAFE))

    with client_of(private_valkey) as client:
        persistence = client.info("persistence")

    assert persistence["aof_enabled"]
    assert persistence["aof_pending_bio_fsync"] == 0


def test_safe_is_refused_while_the_disk_does_not_confirm(private_valkey: ValkeyServer) -> None:
    private_valkey.options["appendfsync"] = "no"
    private_valkey.restart()
    with opened(private_valkey, IMPATIENT) as store, client_of(private_valkey) as client:
        with pytest.raises(StoreUnavailableError, match="not safe yet: 0 of 1 disks"):
            reserve(store, durability=SAFE)
        client.config_set("appendfsync", "always")

        assert isinstance(reserve(store, durability=SAFE), Reserved)


@pytest.mark.parametrize("verb", ["reserve", "begin", "record", "settle"])
def test_safe_on_a_server_that_cannot_tell_is_an_error_that_says_what_to_write(
    verb: str, private_server: AnyServer
) -> None:
    private_server.options["appendonly"] = "no"
    private_server.restart()
    with opened(private_server) as store:
        lease = running(store, work("running", "running"))
        before = store.find(Query())

        with pytest.raises(ConfigurationError, match=r"appendonly yes.*\?replicas=1"):
            say_safely(store, verb, lease)

        assert store.find(Query()) == before, "nothing was written"


def test_an_old_server_that_always_syncs_is_safe(private_redis7: RedisServer) -> None:
    with opened(private_redis7) as store, client_of(private_redis7) as client:
        with pytest.raises(ConfigurationError):
            reserve(store, durability=SAFE)
        client.config_set("appendfsync", "always")

        assert isinstance(reserve(store, durability=SAFE), Reserved)


@pytest.fixture
def replica(private_server: AnyServer) -> Iterator[AnyServer]:
    """Give a replica of the private server, which keeps nothing on disk itself: only the replica makes it safe."""
    private_server.options |= {"appendonly": "no", "repl-diskless-sync-delay": "0"}
    private_server.restart()
    with type(private_server)(options={"appendonly": "no"}) as replica:
        follow(replica, private_server)
        yield replica


def say_safely(store: Store, verb: str, lease: Lease) -> object:
    """Say a verb that waits, in a way that can be said again."""
    match verb:
        case "reserve":
            return reserve(store, "reserved", "reserved", durability=SAFE)
        case "begin":
            return begin(store, work("begun", "begun", durability=SAFE))
        case _:
            return store.settle(replace(lease, durability=SAFE), Complete(result=b"done"))


@pytest.mark.parametrize("verb", ["reserve", "begin", "record", "settle"])
def test_safe_waits_for_the_replica_and_then_gives_the_same_answer(
    verb: str, private_server: AnyServer, replica: AnyServer
) -> None:
    with opened(private_server, f"replicas=1&{IMPATIENT}") as store:
        lease = running(store, work("running", "running"))
        say_safely(store, "reserve", lease)
        replica.pause()
        with pytest.raises(StoreUnavailableError, match=r"not safe yet.*0 of 1 replicas"):
            say_safely(store, verb, lease)
        replica.resume()

        answer = say_safely(store, verb, lease)

        assert isinstance(answer, (Reserved, Granted, Recorded, Settled))
        assert answer == say_safely(store, verb, lease)


def test_a_safe_answer_waits_also_where_another_connection_wrote(private_server: AnyServer, replica: AnyServer) -> None:
    options = f"replicas=1&{IMPATIENT}"
    with (
        opened(private_server, options, namespace="one") as store,
        opened(private_server, options, namespace="one") as other,
    ):
        say_safely(other, "reserve", NO_LEASE)
        replica.pause()
        running(store, work("begun", "begun"))

        with pytest.raises(StoreUnavailableError, match="not safe yet"):
            say_safely(other, "begin", NO_LEASE)
        replica.resume()


def test_renewals_and_progress_wait_for_nobody(private_server: AnyServer, replica: AnyServer) -> None:
    with opened(private_server, f"replicas=1&{IMPATIENT}") as store:
        lease = running(store, work(durability=SAFE))
        replica.pause()

        (renewed,) = store.renew([lease])
        recorded = store.record(lease, progress=Progress(done=1))
        replica.resume()

    assert isinstance(renewed, Renewed)
    assert isinstance(recorded, Recorded)


def test_a_replica_is_no_store(replica: AnyServer) -> None:
    with opened(replica) as store, pytest.raises(StoreUnavailableError, match="read only"):
        reserve(store)
