"""What is given comes back: byte for byte, and whatever the text is made of."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from oncelery.answers import Existing, Finished, Settled
from oncelery.job import Cause, Failure, OnDuplicate, Progress, Query, Reason, State
from oncelery.settlement import Bury, Complete
from oncelery.stores.base import PUBLISH_GRACE, Store
from oncelery.testing.clock import FakeClock
from oncelery.testing.conformance.acts import (
    JOB,
    KEY,
    OTHER,
    accepted,
    begin,
    buried,
    complete,
    completed,
    granted,
    release,
    reserve,
    running,
    seen,
    work,
)
from oncelery.testing.conformance.fixtures import Fixtures

ODD_BYTES = {
    "empty": b"",
    "one NUL": b"\x00",
    "NUL within": b"a\x00b",
    "not UTF-8": b"\xff\xfe\xc3(",
    "every byte": bytes(range(256)),
    "quotes and line ends": b"'\"\\\r\n\t%s$1{}",
    "looks like null": b"null",
    "a megabyte": bytes(range(256)) * 4096,
}

ODD_TEXTS = {
    "braces": "{tag}{other}",
    "colons and slashes": "a:b::c/d|e,f;g",
    "line ends": "first\nsecond\r\n\tthird",
    "quotes": 'it\'s "quoted" `so` \\ $1 %s',
    "not Latin": "注文-Größe-заказ-🛒",
    "combining": "e\u0301 is not é",
    "glob": "*?[a-z]_%",
    "looks like a number": "007",
    "looks like null": "null",
    "spaces": "  spaces  ",
    "NUL": "before\x00after",
    "long": "x" * 500,
}


odd_bytes = pytest.mark.parametrize("value", ODD_BYTES.values(), ids=ODD_BYTES.keys())
odd_texts = pytest.mark.parametrize("text", ODD_TEXTS.values(), ids=ODD_TEXTS.keys())


class Payloads(Fixtures):
    """Bytes are kept as they are, and text is never taken for syntax."""

    @odd_bytes
    def test_a_result_comes_back_byte_for_byte(self, store: Store, value: bytes) -> None:
        completed(store, result=value)

        answer = reserve(store, OTHER)

        assert isinstance(answer, Existing)
        assert answer.job.result == value == seen(store).result
        assert (answer.job.replaced_by, answer.job.result_omitted) == (None, "")

    @odd_bytes
    def test_what_replaced_a_task_is_kept_beside_its_result(self, store: Store, value: bytes) -> None:
        replaced_by = value or b"another task"

        store.settle(running(store), Complete(result=value, replaced_by=replaced_by))

        reserved, begun = reserve(store, OTHER), begin(store, work("third"))
        assert isinstance(reserved, Existing)
        assert isinstance(begun, Finished)
        for job in (reserved.job, begun.job, seen(store), store.last(KEY)):
            assert job
            assert (job.result, job.replaced_by, job.result_omitted) == (value, replaced_by, "")

    @odd_texts
    def test_why_a_result_is_not_kept_stands_beside_it(self, store: Store, text: str) -> None:
        store.settle(running(store), Complete(result=b"", omitted=text))

        reserved, begun = reserve(store, OTHER), begin(store, work("third"))
        assert isinstance(reserved, Existing)
        assert isinstance(begun, Finished)
        for job in (reserved.job, begun.job, seen(store), store.last(KEY)):
            assert job
            assert (job.result, job.replaced_by, job.result_omitted) == (b"", None, text)
        assert [job.result_omitted for job in store.find(Query()).items] == [text]

    def test_what_stands_beside_a_result_is_kept_of_a_job_to_which_much_has_happened(self, store: Store) -> None:
        lease = running(store, work(scope="acme", digest="1"))
        store.record(lease, step=("paid", b"yes"), progress=Progress(done=1))
        release(store, lease, Cause.RETRY)

        store.settle(running(store, holder="second"), Complete(result=b"", replaced_by=b"another", omitted="too large"))

        job = seen(store)
        assert (job.result, job.replaced_by, job.result_omitted) == (b"", b"another", "too large")
        assert (job.scope, dict(job.steps), job.attempt) == ("acme", {"paid": b"yes"}, 2)

    @odd_bytes
    def test_a_body_comes_back_byte_for_byte(self, store: Store, clock: FakeClock, value: bytes) -> None:
        accepted(store, "whole", "key 1", body=value)
        accepted(store, "taken over", "key 2", body=b"old")
        reserve(store, OTHER, "key 2", on_duplicate=OnDuplicate.TRAIL, body=value)
        clock.now += PUBLISH_GRACE

        assert granted(store, work("taken over", "key 2")).body == value == seen(store, "taken over").body
        # Of an empty one there is nothing to publish: it ends.
        assert [job.body for job in store.due(limit=10, empty_queues={"celery"})] == [value or None]

    def test_no_body_is_not_an_empty_one(self, store: Store) -> None:
        accepted(store, "none", "key 1", body=None)
        accepted(store, "empty", "key 2", body=b"")

        assert (seen(store, "none").body, seen(store, "empty").body) == (None, b"")

    @odd_bytes
    def test_a_step_comes_back_byte_for_byte(self, store: Store, value: bytes) -> None:
        lease = running(store)
        store.record(lease, step=("paid", value))
        release(store, lease, Cause.RETRY)

        assert dict(granted(store, holder="second").steps) == {"paid": value}

    @odd_texts
    def test_every_text_comes_back_as_it_was_given(self, store: Store, text: str) -> None:
        job = accepted(store, text, text, task=text, scope=text, queue=text, caller=text, digest=text, follows=text)
        lease = running(store, work(text, text), holder=text, worker=text)
        store.record(lease, step=(text, b"value"), progress=Progress(done=1, stage=text, message=text))

        kept = seen(store, text)

        assert [job.id, job.key, job.task, job.scope, job.queue, job.caller, job.digest, job.follows] == [text] * 8
        assert (kept.holder, kept.worker, dict(kept.steps)) == (text, text, {text: b"value"})
        assert kept.progress == Progress(done=1, stage=text, message=text)
        assert (lease.job_id, lease.key, lease.task, lease.scope, lease.holder) == (text,) * 5
        assert store.last(text) == kept
        assert store.find(Query(task=text, scope=text)).items == (kept.summary(),)

    @odd_texts
    def test_every_text_tells_queues_tasks_and_callers_apart(self, store: Store, clock: FakeClock, text: str) -> None:
        accepted(store, "a", "key 1", task=text, queue=text, scope=text)
        accepted(store, "b", "key 2", task="plain", queue="plain")
        reserve(store, OTHER, "key 1", caller=text)
        store.count({(text, text): 2, (text, "plain"): 1})
        clock.now += PUBLISH_GRACE

        assert [job.id for job in store.due(limit=10, empty_queues={text})] == ["a"]
        assert [job.id for job in store.find(Query(task=text)).items] == ["a"]
        assert [duplicate.caller for duplicate in store.duplicates(task=text, scope=text).items] == [text]
        assert [(count.task, count.scope) for count in store.duplicate_counts(since=clock.now)] == [(text, text)]
        assert dict(store.tally().decisions) == {(text, text): 2, (text, "plain"): 1}

    @odd_texts
    def test_every_text_of_an_error_or_a_reason_is_kept(self, store: Store, text: str) -> None:
        failure = Failure(type=text, message=text, traceback=text)
        release(store, running(store), Cause.RETRY, error=failure)
        store.settle(running(store, holder="second"), Bury(reason=Reason.FAILED, error=failure))
        accepted(store, OTHER, "another key")
        store.cancel(OTHER, reason=text)

        assert (seen(store).error, seen(store).past[0].error) == (failure, failure)
        assert seen(store, OTHER).reason == text

    def test_an_error_that_tells_of_a_badly_encoded_file_name_still_ends_its_job(self, store: Store) -> None:
        # What os.listdir gives for a name that is not UTF-8.
        text = b"caf\xe9.csv".decode("utf-8", "surrogateescape")
        failure = Failure(type="FileNotFoundError", message=text, traceback=text)

        answer = store.settle(running(store), Bury(reason=Reason.FAILED, error=failure))

        assert answer == Settled(State.BURIED)
        error = seen(store).error
        assert error is not None
        assert error.message.startswith("caf")

    def test_keys_that_look_alike_are_not_the_same(self, store: Store) -> None:
        keys = [
            "k",
            "K",
            "k ",
            " k",
            "k:",
            "k\n",
            "{k}",
            "k:job",
            "\N{FULLWIDTH LATIN SMALL LETTER K}",
            "k\u0301",
            "*",
            "k*",
        ]

        for key in keys:
            accepted(store, f"job of {key}", key)

        assert [store.last(key) for key in keys] == [seen(store, f"job of {key}") for key in keys]

    def test_an_id_may_look_like_a_key_and_a_key_like_an_id(self, store: Store) -> None:
        accepted(store, "a", "b")
        accepted(store, "b", "a")

        assert (seen(store, "a").key, seen(store, "b").key) == ("b", "a")
        assert store.last("a") == seen(store, "b")

    def test_two_scopes_never_meet_when_they_are_part_of_the_key(self, store: Store) -> None:
        accepted(store, "a", "acme:charge", scope="acme")
        accepted(store, "b", "acme:charge:", scope="acme:")

        assert running(store, work("a", "acme:charge")).scope == "acme"
        assert running(store, work("b", "acme:charge:")).scope == "acme:"

    def test_steps_with_odd_names_do_not_meet(self, store: Store) -> None:
        lease = running(store)
        names = ["", "0", "1", "a.b", "a", "result", "state", "fence", "{}", "ä", "a\nb", "a\0b"]
        # As os.listdir names a file whose name is not UTF-8; and two names that are its escape, or look like it.
        names += ["caf\udce9", "caf\\udce9", "caf\\\\udce9", "caf\ufffd", "caf\ud83d", "caf"]
        steps = {name: repr(name).encode() for name in names}
        for name, value in steps.items():
            store.record(lease, step=(name, value))

        assert dict(seen(store).steps) == dict(granted(store).steps) == steps
        assert seen(store).fence == lease.fence
        complete(store, lease)
        assert dict(seen(store).steps) == steps

    @pytest.mark.parametrize("done", [0, 0.1, 1 / 3, 1e-9, 2**53, 12345.678])
    def test_numbers_of_progress_are_exact(self, store: Store, done: float) -> None:
        lease = running(store)

        store.record(lease, progress=Progress(done=done, total=done * 2))

        assert seen(store).progress == Progress(done=done, total=done * 2)

    def test_a_body_given_at_a_revival_comes_back_byte_for_byte(self, store: Store) -> None:
        buried(store)
        store.revive(JOB, body=ODD_BYTES["every byte"])

        assert granted(store, holder="second").body == ODD_BYTES["every byte"]

    def test_hundreds_of_steps_are_kept(self, store: Store) -> None:
        lease = running(store)
        for number in range(300):
            store.record(lease, step=(f"step {number}", str(number).encode()))

        assert len(granted(store).steps) == 300

    def test_a_lease_that_was_written_out_and_read_back_still_holds(self, store: Store) -> None:
        lease = running(store)

        assert complete(store, replace(lease)).state == "completed"
        assert store.last(KEY) == seen(store)
