"""Bugs planted in the Lua scripts: the suite must catch each."""

from __future__ import annotations

import functools
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from oncelery.stores import open_store
from oncelery.stores.redis import scripts
from oncelery.testing.conformance import Opener
from oncelery.testing.servers import ValkeyServer
from stores.planting import first_false_sentence

#: What is wrong then: the file, what stands there, what is planted instead, and words of a sentence that may tell.
BUGS = {
    "a settlement compares no fence": (
        "settle.lua",
        "job.fence == fence and job.holder == holder",
        "job.holder == holder",
        "another_fence",
    ),
    "a settlement compares no holder": (
        "settle.lua",
        "job.fence == fence and job.holder == holder",
        "job.fence == fence",
        "another_holder",
    ),
    "a settlement sent again is not compared with the first": (
        "settle.lua",
        "last_run_was_ours and LEADS_TO[settlement][job.state]",
        "last_run_was_ours",
        "settled_otherwise",
    ),
    "a settlement of anybody is known again": (
        "settle.lua",
        "last_run_was_ours and LEADS_TO[settlement][job.state]",
        "LEADS_TO[settlement][job.state]",
        "another_has_completed",
    ),
    "a renewal compares no fence": (
        "renew.lua",
        "run[2] == fence and run[3] == holder",
        "run[3] == holder",
        "another_fence",
    ),
    "a renewal compares no holder": (
        "renew.lua",
        "run[2] == fence and run[3] == holder",
        "run[2] == fence",
        "another_holder",
    ),
    "a grant that was undone is taken for superseded": (
        "parts/reading.lua",
        "tonumber(job.fence or 0) < tonumber(fence)",
        "false",
        "grant_was_undone",
    ),
    "a renewal does not move the check": (
        "renew.lua",
        "call('ZADD', ns .. 'live:' .. run[5], digits(RUNS + lease_until), id)",
        "",
        "renewed_run",
    ),
    "a renewal never shortens a lease": (
        "renew.lua",
        "digits(now + duration)",
        "digits(math.max(tonumber(call('HGET', name, 'lease_until')), now + duration))",
        "a_renewal",
    ),
    "a lease of a clock that was ahead stays": (
        "parts/changes.lua",
        "changes.lease_until = now + job.lease_for",
        "",
        "in_that_moment_lapses",
    ),
    "a delay of a clock that was ahead stays": (
        "parts/changes.lua",
        "job.not_before and job.not_before - ahead",
        "job.not_before",
        "a_delay_that_began",
    ),
    "due does not look at jobs that changed later than now": (
        "due.lua",
        "set_right_all(ns .. 'held:' .. kinds[i], now, '+inf')",
        "",
        "in_that_moment",
    ),
    "due does not look at messages that were sent later than now": (
        "due.lua",
        "set_right_all(live, now, '(' .. digits(RUNS))",
        "",
        "in_that_moment",
    ),
    "due does not look at checks that are too late": (
        "due.lua",
        "set_right_all(ns .. 'again', now + SLOW_CHECK, '+inf')",
        "",
        "in_that_moment",
    ),
    "due goes by a watermark later than now": (
        "due.lua",
        "tonumber(kinds[i + 1]) <= now and kinds[i + 1] - 1 or 0",
        "kinds[i + 1] - 1",
        "a_watermark_later",
    ),
    "a watermark later than now is never moved": (
        "begin.lua",
        "tonumber(call('ZSCORE', ns .. 'kinds', kind)) > now",
        "false",
        "a_watermark_later",
    ),
    "a job sent later than now moves the watermark": (
        "begin.lua",
        "tonumber(sent_at) <= now and ",
        "",
        "moves_no_watermark",
    ),
    "a key without retention is kept by a clock that was ahead": (
        "parts/reading.lua",
        "tonumber(job.retention) > 0\n    and ",
        "",
        "without_retention",
    ),
    "a record compares no holder": (
        "record.lua",
        "run[2] == fence and run[3] == holder",
        "run[2] == fence",
        "another_holder",
    ),
    "a record does not ask for the state": (
        "record.lua",
        "run[1] == RUNNING and ",
        "",
        "nobody_to_record",
    ),
    "what stands beside a result takes the common way, and is lost": (
        "settle.lua",
        "ARGV[6] ~= '' and not ARGV[7]",
        "ARGV[6] ~= ''",
        "kept_beside_its_result",
    ),
    "what stands beside a result does not reach the stream": (
        "parts/changes.lua",
        "replaced_by = job.replaced_by, result_omitted = job.result_omitted,",
        "",
        "stands_beside",
    ),
    "a step's last value stays": (
        "record.lua",
        "call('HSETNX', name, 'step:' .. step, value)",
        "call('HSET', name, 'step:' .. step, value)",
        "a_step_keeps",
    ),
    "a running job is in no index": (
        "begin.lua",
        "call('ZADD', ns .. 'live:' .. fields[5], digits(RUNS + lease_until), id)",
        "call('ZREM', ns .. 'live:' .. fields[5], id)",
        "a_run_is_due",
    ),
    "a fence is only the clock": (
        "begin.lua",
        "math.max(job.fence + 1, now)",
        "now",
        "a_fence",
    ),
    "a fence is only a counter": (
        "begin.lua",
        "math.max(job.fence + 1, now)",
        "job.fence + 1",
        "a_fence",
    ),
    "a first run has the clock for its fence, whatever went before": (
        "begin.lua",
        "tonumber(fields[3]) < now",
        "true",
        "a_fence",
    ),
    "hold is ignored": (
        "begin.lua",
        "or (job.interrupted and hold)",
        "",
        "on_hold",
    ),
    "a lease lapses an instant late": (
        "parts/reading.lua",
        "tonumber(job.lease_until) <= now",
        "tonumber(job.lease_until) < now",
        "to_the_instant",
    ),
    "retention ends an instant late": (
        "parts/reading.lua",
        "job.settled_at + job.retention > now",
        "job.settled_at + job.retention >= now",
        "retention",
    ),
    "dead letters expire": (
        "parts/reading.lua",
        "live(job) or job.state == BURIED or",
        "live(job) or",
        "outlives_its_history",
    ),
    "an alias is forgotten": (
        "parts/accept.lua",
        "    bind(id)",
        "",
        "sent_again_gets_its_live_job",
    ),
    "the payload of an alias is not compared": (
        "parts/alias.lua",
        "and payload ~= bound_payload",
        "and false",
        "under_a_known_alias",
    ),
    "another payload under another alias is refused": (
        "parts/accept.lua",
        "local key_digest = alias == '' and digest or ''",
        "local key_digest = digest",
        "meets_the_job_of_its_key",
    ),
    "an alias is bound to a new job only": (
        "reserve.lua",
        "    bind(found.id)",
        "",
        "answered_with",
    ),
    "a rejected request is bound to the job in its way": (
        "reserve.lua",
        " and answer ~= 'rejected'",
        "",
        "rejected_is_bound",
    ),
    "an alias is answered no longer than the key": (
        "parts/alias.lua",
        "math.max(job.retention, ALIAS_RETENTION)",
        "job.retention",
        "for_a_day",
    ),
    "an alias is answered with a failure": (
        "parts/alias.lua",
        "job and (live(job)",
        "job and (live(job) or job.state == BURIED",
        "job_that_failed",
    ),
    "a job has any number of aliases": (
        "parts/alias.lua",
        "#names >= ALIASES_KEPT",
        "false",
        "so_many_aliases",
    ),
    "aliases outlive their job": (
        "parts/changes.lua",
        "call('HDEL', bucket('aliases', name), name)",
        "",
        "aliases_go",
    ),
    "a worker does not ask for the alias": (
        "begin.lua",
        "local asked, differs = named()",
        "local asked, differs",
        "a_worker_meets",
    ),
    "other work ignores the job of its key": (
        "revive.lua",
        "last_of(resubmits and key or job.key)",
        "last_of(job.key)",
        "of_that_key",
    ),
    "a dead letter stays beside what takes its place": (
        "revive.lua",
        "  cancel_buried(job, 'revived as ' .. offer[7])",
        "",
        "in_one_step",
    ),
    "a burial forgets the one that trails": (
        "parts/changes.lua",
        "cancel_requested = false,\n  })\n  let_follow(job)",
        "cancel_requested = false,\n  })",
        "the_waiting_job_may_begin",
    ),
    "a freed job is in no index": (
        "parts/changes.lua",
        "list(trail, sent_at + PUBLISH_GRACE)",
        "",
        "waited_is_due",
    ),
    "due sets no next check": (
        "due.lua",
        "now + math.min(PUBLISH_GRACE * 2 ^ resent, SLOW_CHECK)",
        "now",
        "longer_each_time",
    ),
    "what is merely old is lost": (
        "due.lua",
        "elseif merely_old(job) then",
        "elseif false then",
        "merely_old",
    ),
    "what is old is merely old": (
        "due.lua",
        "sent_at > sent_before[job.queue] and ",
        "",
        "an_old_job",
    ),
    "a lapsed run is merely old": (
        "due.lua",
        "job.state == QUEUED and not job.resent and",
        "not job.resent and",
        "of_an_old_job",
    ),
    "due takes what the sweeper cannot read": (
        "due.lua",
        "if formats == '' then",
        "if true then",
        "sweeper_cannot_read",
    ),
    "what the sweeper cannot read hides the rest": (
        "due.lua",
        "call('ZADD', index, digits(now), id)",
        "",
        "do_not_keep_it_from_others",
    ),
    "due goes by a watermark that is not passed": (
        "due.lua",
        "kinds[i + 1] - 1 or 0",
        "kinds[i + 1] + 1 or 0",
        "watermark",
    ),
    "a forced cancel leaves the run its claim": (
        "cancel.lua",
        "job.holder, job.reason = nil, reason",
        "job.reason = reason",
        "no_claim",
    ),
    "a revival ignores a newer job": (
        "revive.lua",
        "if last and keeps_key(last) then",
        "if false then",
        "gives_way",
    ),
    "another payload gets the result": (
        "parts/accept.lua",
        "return key_digest ~= '' and job.digest and key_digest ~= job.digest",
        "return false",
        "another_payload",
    ),
    "an ended job forgets what it follows": (
        "parts/changes.lua",
        "follows = job.follows, ",
        "",
        "what_it_follows",
    ),
    "duplicates of a scope are not counted for it": (
        "parts/duplicate.lua",
        "call('HINCRBY', ns .. 'hour:' .. hour .. ':' .. job.scope, counted, 1)",
        "",
        "counted_by_task_and_scope",
    ),
    "counts of all tasks are told": (
        "duplicate_counts.lua",
        "if task == '' or all[i]:sub(1, #start) == start then",
        "if true then",
        "counted_by_task_and_scope",
    ),
    "a list is filtered by neither state nor task": (
        "find.lua",
        "state and wants(state, task_of(kind)) and",
        "state and",
        "dead_letters_of_a_scope",
    ),
    "what is kept apart is forgotten": (
        "parts/reading.lua",
        "pairs(apart and cmsgpack.unpack(apart) or {})",
        "pairs({})",
        "what_is_small",
    ),
    "pruning takes what is readable": (
        "prune.lua",
        "if readable(job) then",
        "if false then",
        "pruning",
    ),
}


@pytest.mark.parametrize("bug", BUGS)
def test_the_suite_catches(bug: str, valkey: ValkeyServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, old, new, first = BUGS[bug]
    folder = Path(scripts.__file__).parent
    for source in folder.rglob("*.lua"):
        copy = tmp_path / source.relative_to(folder)
        copy.parent.mkdir(exist_ok=True)
        copy.write_text(source.read_text())
    text = (tmp_path / file).read_text()
    assert old in text, f"{old!r} no longer stands in {file}: plant the bug anew"
    (tmp_path / file).write_text(text.replace(old, new))

    def fresh() -> Opener:
        return functools.partial(open_store, valkey.url, namespace=uuid.uuid4().hex)

    with monkeypatch.context() as bugged, scripts_read_anew():
        bugged.setattr(scripts, "files", lambda _package: tmp_path)
        caught = first_false_sentence(fresh, first=first)

    assert caught
    assert first_false_sentence(fresh, only=caught) is None, "the sentence is true without the bug"


@contextmanager
def scripts_read_anew() -> Iterator[None]:
    """Let all scripts be read inside, and again afterwards: a store reads each once in its life."""
    libraries = (scripts.FLAGGED, scripts.UNFLAGGED)
    for library in libraries:
        library.clear()
    try:
        yield
    finally:
        for library in libraries:
            library.clear()
