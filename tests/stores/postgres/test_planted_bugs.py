"""Bugs planted in the SQL functions: the suite must catch each."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from dataclasses import dataclass

import psycopg
import pytest

from oncelery.errors import StoreUnavailableError
from oncelery.stores import open_store
from oncelery.stores.postgres import schema
from oncelery.testing import FakeClock
from oncelery.testing.conformance import Opener, StoreConformance
from stores.planting import first_false_sentence
from stores.postgres.stores import empty, url_of

#: What is wrong then: the file, what stands there, what is planted instead, and words of a sentence that may tell.
BUGS = {
    "a settlement compares no fence": (
        "settle.sql",
        "(job.fence, job.holder) IS DISTINCT FROM (p_fence, p_holder)",
        "job.holder IS DISTINCT FROM p_holder",
        "another_fence",
    ),
    "a settlement compares no holder": (
        "settle.sql",
        "(job.fence, job.holder) IS DISTINCT FROM (p_fence, p_holder)",
        "job.fence IS DISTINCT FROM p_fence",
        "another_holder",
    ),
    "a completion sent again completes again": (
        "settle.sql",
        "ELSIF job.state <> 'running' THEN",
        "ELSIF job.state NOT IN ('running', 'completed') THEN",
        "completion_sent_again",
    ),
    "a settlement sent again is refused": (
        "settle.sql",
        "THEN 'Settled' ELSE 'Fenced' END",
        "THEN 'Fenced' ELSE 'Fenced' END",
        "sent_again",
    ),
    "a renewal compares no holder": (
        "renew.sql",
        " AND holder = lease.holder;",
        ";",
        "another_holder",
    ),
    "a renewal never shortens a lease": (
        "renew.sql",
        "lease_until = now + lease.duration,",
        "lease_until = greatest(lease_until, now + lease.duration),",
        "a_renewal",
    ),
    "a lease of a clock that was ahead stays": (
        "entry.sql",
        "job.lease_until := least(job.lease_until, p_now + job.lease_for);",
        "",
        "in_that_moment_lapses",
    ),
    "due takes back nothing that a clock ahead has written": (
        "due.sql",
        "PERFORM set_right(job, now);",
        "",
        "in_that_moment",
    ),
    "a delay of a clock that was ahead stays": (
        "entry.sql",
        "job.not_before := job.not_before - v_ahead;",
        "",
        "a_delay_that_began",
    ),
    "due goes by a watermark later than now": (
        "entry.sql",
        "AND sent_at > p_job.sent_at AND sent_at <= p_now",
        "AND sent_at > p_job.sent_at",
        "a_watermark_later",
    ),
    "a watermark later than now is never moved": (
        "entry.sql",
        "p_sent_at > v_sent_at + p_stride OR v_sent_at > p_now",
        "p_sent_at > v_sent_at + p_stride",
        "a_watermark_later",
    ),
    "a key without retention is kept by a clock that was ahead": (
        "entry.sql",
        "job.retained_until > greatest(p_now, job.settled_at)",
        "job.retained_until > p_now",
        "without_retention",
    ),
    "a renewal of a grant that was undone is taken for superseded": (
        "renew.sql",
        " AND fence >= lease.fence",
        "",
        "grant_was_undone",
    ),
    "a record of a run whose grant was undone is taken for superseded": (
        "record.sql",
        " AND job.fence >= p_fence",
        "",
        "grant_was_undone",
    ),
    "a settlement of a grant that was undone is taken for superseded": (
        "settle.sql",
        " OR job.fence < p_fence",
        "",
        "grant_was_undone",
    ),
    "a record compares no fence": (
        "record.sql",
        " AND job.fence = p_fence",
        "",
        "another_fence",
    ),
    "a record does not ask for the state": (
        "record.sql",
        "AND job.state = 'running' ",
        "",
        "nobody_to_record",
    ),
    "what stands beside a result is lost": (
        "settle.sql",
        ", p_replaced_by => p_replaced_by, p_omitted => p_omitted",
        "",
        "stands_beside",
    ),
    "a step's last value stays": (
        "record.sql",
        "ON CONFLICT DO NOTHING",
        "ON CONFLICT (job_id, name) DO UPDATE SET value = excluded.value",
        "a_step_keeps",
    ),
    "a fence is only the clock": (
        "begin.sql",
        "greatest(fence + 1, (extract(epoch FROM now) * 1000000)::bigint)",
        "(extract(epoch FROM now) * 1000000)::bigint",
        "a_fence",
    ),
    "a lease lapses an instant late": (
        "begin.sql",
        "AND job.lease_until > now)",
        "AND job.lease_until >= now)",
        "to_the_instant",
    ),
    "crashes are not counted": (
        "entry.sql",
        "crashes = crashes + ",
        "crashes = crashes + 0 * ",
        "crash",
    ),
    "counts of all scopes are told": (
        "duplicate_counts.sql",
        "(p_scope = '' OR d.scope = p_scope)",
        "true",
        "counted_by_task_and_scope",
    ),
    "retention is ignored": (
        "entry.sql",
        "OR job.retained_until > greatest(p_now, job.settled_at)",
        "",
        "retention",
    ),
    "dead letters expire": (
        "entry.sql",
        "expires_at = CASE WHEN p_state <> 'buried' THEN p_now + history END",
        "expires_at = p_now + history",
        "outlives_its_history",
    ),
    "an alias is forgotten": (
        "entry.sql",
        "    PERFORM bind(p_alias, p_digest, p_id);",
        "    NULL;",
        "sent_again_gets_its_live_job",
    ),
    "the payload of an alias is not compared": (
        "entry.sql",
        "differs := differ(p_digest, bound.digest);",
        "differs := false;",
        "under_a_known_alias",
    ),
    "another payload under another alias is refused": (
        "entry.sql",
        "CASE WHEN p_alias = '' THEN p_digest ELSE '' END",
        "p_digest",
        "meets_the_job_of_its_key",
    ),
    "an alias is bound to a new job only": (
        "reserve.sql",
        "PERFORM bind(p_alias, p_digest, job.id);",
        "NULL;",
        "answered_with",
    ),
    "a rejected request is bound to the job in its way": (
        "reserve.sql",
        " AND NOT (p_on_duplicate = 'reject' AND job.state <> 'completed')",
        "",
        "rejected_is_bound",
    ),
    "an alias is answered no longer than the key": (
        "entry.sql",
        "greatest(candidate.retention, alias_retention())",
        "candidate.retention",
        "for_a_day",
    ),
    "an alias is answered with a failure": (
        "entry.sql",
        "candidate.state IN ('queued', 'running')",
        "candidate.state IN ('queued', 'running', 'buried')",
        "job_that_failed",
    ),
    "an alias is answered past the history": (
        "entry.sql",
        "candidate.state = 'completed' AND candidate.expires_at > p_now",
        "candidate.state = 'completed'",
        "past_its_history",
    ),
    "a job has any number of aliases": (
        "entry.sql",
        "< aliases_kept()",
        "< 1000",
        "so_many_aliases",
    ),
    "a worker does not ask for the alias": (
        "begin.sql",
        "      job := asked.job;",
        "",
        "a_worker_meets",
    ),
    "other work ignores the job of its key": (
        "revive.sql",
        "keeper(coalesce(p_key, job.key), now)",
        "keeper(job.key, now)",
        "of_that_key",
    ),
    "a dead letter stays beside what takes its place": (
        "revive.sql",
        "    PERFORM cancel_buried(p_id, 'revived as ' || p_new_id, now);",
        "",
        "in_one_step",
    ),
    "a freed job is published by a sign only": (
        "entry.sql",
        "next_check = greatest(p_now, not_before) + publish_grace()",
        "next_check = greatest(p_now, not_before) + slow_check()",
        "waited_is_due",
    ),
    "a superseded run keeps its claim": (
        "entry.sql",
        "holder = CASE WHEN p_superseded THEN '' ELSE holder END",
        "holder = holder",
        "no_claim",
    ),
    "due sets no next check": (
        "due.sql",
        "ELSE least(",
        "ELSE 0 * least(",
        "longer_each_time",
    ),
    "due takes what the sweeper cannot read": (
        "entry.sql",
        "RETURN p_formats IS NULL OR CASE",
        "RETURN true OR CASE",
        "sweeper_cannot_read",
    ),
    "what is merely old is lost": (
        "due.sql",
        "job.sent_at <= now - slow_check()",
        "false",
        "merely_old",
    ),
    "what is old is merely old": (
        "due.sql",
        "AND NOT is_told_missing(job, p_empty_queues, now);",
        ";",
        "an_old_job",
    ),
    "a lapsed run is merely old": (
        "due.sql",
        "job.state = 'queued' AND job.resent = 0 AND",
        "job.resent = 0 AND",
        "of_an_old_job",
    ),
    "a revival ignores a newer job": (
        "revive.sql",
        "IF other.id IS NOT NULL THEN",
        "IF false THEN",
        "gives_way",
    ),
    "another payload gets the result": (
        "entry.sql",
        "p_one <> '' AND p_other <> '' AND p_one <> p_other",
        "false",
        "another_payload",
    ),
    "pruning takes what is readable": (
        "prune.sql",
        "WHERE expires_at <= now",
        "WHERE expires_at IS NOT NULL",
        "pruning",
    ),
}

#: Locks that are not taken: the file, the lock and what stands there instead, a pause between the look and the write
#: that makes those meet who would wait for one another, and the race that tells.
UNLOCKED = {
    "a key is not locked": (
        "entry.sql",
        {"PERFORM pg_advisory_xact_lock(lock_of(p_key));": ""},
        {"  RETURN NULL;\nEND $$;": "  PERFORM pg_sleep(0.2);\n  RETURN NULL;\nEND $$;"},
        "test_of_many_begins_of_an_unknown_key_one_is_granted",
    ),
    "a due job is not locked": (
        "due.sql",
        {"FOR UPDATE": "--"},
        {"    UPDATE jobs SET": "    PERFORM pg_sleep(0.01);\n    UPDATE jobs SET"},
        "test_no_sweeper_takes_what_another_has_taken",
    ),
}


@dataclass(frozen=True)
class Planted:
    """A file of the schema with something else in it."""

    name: str
    text: bytes

    def read_bytes(self) -> bytes:
        return self.text


FUNCTIONS = schema.functions()


@pytest.mark.parametrize("bug", BUGS)
def test_the_suite_catches(bug: str, database: psycopg.Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    file, old, new, first = BUGS[bug]

    with monkeypatch.context() as bugged:
        bugged.setattr(schema, "functions", functools.partial(planted, file, {old: new}))
        bugged_ledger = functools.partial(opener, database, f"bug_{list(BUGS).index(bug)}")
        caught = first_false_sentence(bugged_ledger, first=first)

    assert caught
    ledger = functools.partial(opener, database, "no_bug")
    assert first_false_sentence(ledger, only=caught) is None, "the sentence is true without the bug"


@pytest.mark.parametrize("bug", UNLOCKED)
def test_the_races_catch_that(bug: str, database: psycopg.Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    file, unlocked, pause, race = UNLOCKED[bug]
    number = list(UNLOCKED).index(bug)

    monkeypatch.setattr(schema, "functions", functools.partial(planted, file, unlocked | pause))
    assert _goes_wrong(race, opener(database, f"unlocked_{number}"))
    monkeypatch.setattr(schema, "functions", functools.partial(planted, file, pause))
    assert not _goes_wrong(race, opener(database, f"locked_{number}"))


def _goes_wrong(race: str, open_ledger: Opener) -> bool:
    clock = FakeClock()
    store = open_ledger(clock=clock)
    say = getattr(StoreConformance(), race)
    given = {"store": store, "clock": clock}
    try:
        say(**{name: given[name] for name in inspect.signature(say).parameters})
    except (AssertionError, StoreUnavailableError):
        return True
    finally:
        store.close()
    return False


def planted(file: str, changes: Mapping[str, str]) -> list[Planted]:
    """Give the files of the schema, with something else in one of them."""
    texts = {source.name: source.read_bytes().decode() for source in FUNCTIONS}
    for old, new in changes.items():
        if old not in texts[file]:
            raise LookupError(f"{old!r} no longer stands in {file}: plant the bug anew")
        texts[file] = texts[file].replace(old, new)
    return [Planted(name, text.encode()) for name, text in texts.items()]


def opener(database: psycopg.Connection, namespace: str) -> Opener:
    """Give what opens a ledger that is empty."""
    empty(database, namespace)
    return functools.partial(open_store, url_of(database), namespace=namespace)
