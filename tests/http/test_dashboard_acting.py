from __future__ import annotations

import html
import logging
import re
from typing import Any

import pytest
from guarded.hand import Hand
from guarded.plain_browser import Dashboard, bury, letters_of, seen_of, text_of, value_of
from kombu.exceptions import OperationalError

from oncelery.operations.redaction import HIDDEN


def test_a_queued_job_is_cancelled_after_a_page_that_tells_what_will_happen(
    board: Dashboard, hand: Hand, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "oncelery.audit")
    job_id = hand.tasks.joining.delay(hand.name()).id

    assert "never begins" in text_of(board.get("/cancel", params={"id": job_id}))
    assert hand.job(job_id).state == "queued"
    answer = board.confirm("cancel", job_id)

    assert "The job is cancelled." in text_of(answer)
    assert hand.job(job_id).state == "cancelled"
    assert f"(this machine): cancel job {job_id} of joining: cancelled" in caplog.text


def test_a_process_that_could_not_be_told_to_end_is_told_of_and_how_to_tell_it_again(
    board: Dashboard, hand: Hand, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object, **__: object) -> None:
        raise OperationalError

    monkeypatch.setattr(hand.app.control, "revoke", away)
    job_id = hand.tasks.joining.delay(hand.name()).id

    answer = board.confirm("cancel", job_id, terminate="on")

    assert answer.status_code == 503
    assert "The broker does not answer" in text_of(answer)
    assert f"oncelery -A yourapp cancel {job_id} --terminate" in text_of(answer)
    assert hand.job(job_id).state == "cancelled"


def test_a_dead_letter_is_revived(board: Dashboard, hand: Hand, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "oncelery.audit")
    job_id = bury(hand)

    answer = board.confirm("revive", job_id)

    assert "queued again" in text_of(answer)
    assert (hand.job(job_id).state, hand.waiting()) == ("queued", 1)
    assert f"revive job {job_id} of raises: revived" in caplog.text


def test_a_dead_letter_is_revived_with_other_arguments_and_its_secrets(board: Dashboard, hand: Hand) -> None:
    calls: list[Any] = []

    @hand.once.task(name="fussy", key="name", shared=False)
    def fussy(name: str, amount: int, token: str) -> None:
        calls.append((name, amount, token))
        if amount < 0:
            raise ValueError(amount)

    job_id = fussy.delay("o-1", amount=-5, token="s3cret").id  # noqa: S106
    hand.deliver_all()
    shown = board.get("/revive", params={"id": job_id}).text
    assert "s3cret" not in shown

    board.confirm(
        "revive", job_id, edit="on", arguments=f'{{"args": ["o-1"], "kwargs": {{"amount": 5, "token": "{HIDDEN}"}}}}'
    )
    hand.deliver_all()

    assert calls == [("o-1", -5, "s3cret"), ("o-1", 5, "s3cret")]
    assert hand.job(job_id).state == "completed"


def test_other_arguments_that_make_another_key_lead_to_the_new_job(board: Dashboard, hand: Hand) -> None:
    job_id, name = bury(hand), hand.name()

    arguments = f'{{"args": ["{name}", "key"], "kwargs": {{}}}}'
    answer = board.confirm("revive", job_id, edit="on", arguments=arguments)

    (queued,) = [job for job in hand.jobs() if job.state == "queued"]
    assert f"jobs/{queued.id}" in str(answer.url)
    assert "this new job does the work" in text_of(answer)
    assert (hand.job(job_id).state, hand.job(job_id).reason) == ("cancelled", f"revived as {queued.id}")


def test_long_arguments_are_edited_whole_and_what_no_form_can_carry_is_not(board: Dashboard, hand: Hand) -> None:
    @hand.once.task(name="writes", shared=False)
    def writes(text: str) -> None:
        raise ValueError(len(text))

    long, longest = (writes.delay("ä" * length).id for length in (30_000, 100_000))
    hand.deliver_all()
    shown = board.get("/revive", params={"id": long}).text

    edited = re.search("<textarea[^>]*>(.*)</textarea>", shown, re.DOTALL)
    assert edited
    board.confirm("revive", long, edit="on", arguments=html.unescape(edited[1]))
    assert "<textarea" not in board.get("/revive", params={"id": longest}).text
    board.confirm("revive", longest)

    assert (hand.job(long).state, hand.job(longest).state) == ("queued", "queued")


@pytest.mark.parametrize(
    "arguments",
    [
        *("nonsense", "[]", '{"args": 1, "kwargs": {}}', '{"args": [1, 2, 3, 4], "kwargs": {}}'),
        '{"args": ["n", {"__type__": "bytes", "__value__": "key"}], "kwargs": {}}',
    ],
)
def test_arguments_that_the_task_cannot_be_called_with_are_refused(
    board: Dashboard, hand: Hand, arguments: str
) -> None:
    job_id = bury(hand)

    answer = board.confirm("revive", job_id, edit="on", arguments=arguments)

    assert answer.status_code == 400
    assert hand.job(job_id).state == "buried"


def test_a_dead_letter_that_cannot_be_read_stays_one_and_why_is_told(board: Dashboard, hand: Hand) -> None:
    hand.app.conf.accept_content = ["json", "pickle"]
    job_id = hand.tasks.raises.apply_async((hand.name(), "refused"), serializer="pickle").id
    hand.deliver_all()
    hand.app.conf.accept_content = ["json"]

    answer = board.confirm("revive", job_id)

    assert (answer.status_code, "ContentDisallowed" in text_of(answer)) == (400, True)
    assert hand.job(job_id).state == "buried"


def test_how_many_wait_is_told_on_every_page(board: Dashboard, hand: Hand) -> None:
    bury(hand)

    assert "Dead letters 1 waiting" in text_of(board.get("/jobs"))


def test_a_dead_letter_is_discarded(board: Dashboard, hand: Hand) -> None:
    job_id = bury(hand)

    assert "cannot be undone" in text_of(board.get("/discard", params={"id": job_id}))
    board.confirm("discard", job_id)

    assert (hand.job(job_id).state, hand.job(job_id).reason) == ("cancelled", "discarded")


def test_dead_letters_are_grouped_by_task_and_error_and_a_group_is_revived_at_once(
    board: Dashboard, hand: Hand
) -> None:
    refused, other = [bury(hand) for _ in range(3)], bury(hand, kind="key")

    page = board.get("/dead-letters?task=raises&error=KeyError")
    assert other in page.text
    assert not any(job_id in page.text for job_id in refused)
    asked = board.post("/revive-many", all="1", task="raises", error="guarded.app.RefusedError", scope="")
    assert "Revive 3 dead letters?" in text_of(asked)
    assert all(hand.job(job_id).state == "buried" for job_id in refused)
    done = board.post("/revive-many", letter=letters_of(hand, *refused), confirmed="1")

    assert "3 revived" in text_of(done)
    assert {hand.job(job_id).state for job_id in refused} == {"queued"}
    assert hand.job(other).state == "buried"


def test_of_many_those_that_cannot_be_revived_are_named_and_the_others_are(board: Dashboard, hand: Hand) -> None:
    name = hand.name()
    superseded, free = bury(hand, name), bury(hand)
    newer = hand.tasks.raises.delay(name, "refused").id

    done = text_of(board.post("/revive-many", letter=letters_of(hand, superseded, free), confirmed="1"))

    assert "1 superseded, 1 revived" in done or "1 revived, 1 superseded" in done
    assert f"by job {newer}, which is queued" in done


def test_many_are_discarded(board: Dashboard, hand: Hand) -> None:
    ids = [bury(hand) for _ in range(2)]

    assert "2 discarded" in text_of(board.post("/discard-many", letter=letters_of(hand, *ids), confirmed="1"))
    assert {hand.job(job_id).state for job_id in ids} == {"cancelled"}


def test_of_many_those_that_have_moved_since_they_were_shown_are_left_alone_and_named(
    board: Dashboard, hand: Hand, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "oncelery.audit")
    still, revived, again = (bury(hand) for _ in range(3))
    shown = [*letters_of(hand, still, revived, again), "buried 1 nobody"]
    for job_id in (again, revived):
        hand.once.dead_letters.revive(job_id)
    hand.deliver()
    assert (hand.job(again).state, hand.job(revived).state) == ("buried", "queued")

    asked = text_of(board.post("/discard-many", letter=shown))
    done = board.post("/discard-many", letter=shown, confirmed="1")

    assert "Discard 1 dead letter?" in asked
    assert "3 more that you chose have moved" in asked
    assert "1 discarded, 3 failed" in text_of(done)
    assert f"{again} failed it has moved since it was shown: now it is buried" in text_of(done)
    assert f"{revived} failed it has moved since it was shown: now it is queued" in text_of(done)
    assert "nobody failed there is no such job" in text_of(done)
    assert [hand.job(job_id).state for job_id in (still, revived, again)] == ["cancelled", "queued", "buried"]
    assert f"discard job {again} of raises: refused, it has moved" in caplog.text


def test_what_was_chosen_on_a_page_is_what_is_asked_and_done(board: Dashboard, hand: Hand) -> None:
    job_id = bury(hand)

    listed = board.get("/dead-letters")
    asked = board.post("/revive-many", letter=value_of(listed, "letter"))
    done = board.post("/revive-many", letter=value_of(asked, "letter"), confirmed=value_of(asked, "confirmed"))

    assert "1 revived" in text_of(done)
    assert hand.job(job_id).state == "queued"


def test_nothing_is_asked_of_those_that_have_all_moved(board: Dashboard, hand: Hand) -> None:
    job_id = bury(hand)
    shown = letters_of(hand, job_id)
    hand.once.dead_letters.revive(job_id)

    assert "1 failed" in text_of(board.post("/discard-many", letter=shown))
    assert board.post("/discard-many").status_code == 400


def test_an_act_on_a_job_that_has_moved_is_refused_and_says_how_it_stands(board: Dashboard, hand: Hand) -> None:
    job_id = hand.tasks.joining.delay(hand.name()).id
    asked = board.get("/cancel", params={"id": job_id})
    hand.deliver_all()

    answer = board.post("/cancel", id=job_id, seen=value_of(asked, "seen"))

    assert answer.status_code == 409
    assert "now it is completed" in text_of(answer)
    assert hand.job(job_id).state == "completed"


def test_reviving_what_another_job_does_is_refused_and_names_it(board: Dashboard, hand: Hand) -> None:
    name = hand.name()
    job_id = bury(hand, name)
    newer = hand.tasks.raises.delay(name, "refused").id

    answer = board.confirm("revive", job_id)

    assert answer.status_code == 409
    assert newer in answer.text


def test_nothing_can_be_done_to_a_job_in_the_wrong_state(board: Dashboard, hand: Hand) -> None:
    job_id = hand.tasks.joining.delay(hand.name()).id

    assert board.get("/revive", params={"id": job_id}).status_code == 409


def test_many_are_revived_or_discarded_and_nothing_else(board: Dashboard, hand: Hand) -> None:
    dead = bury(hand)

    assert board.post("/cancel-many", letter=letters_of(hand, dead), confirmed="1").status_code == 404
    assert hand.job(dead).state == "buried"


def test_a_form_of_countless_fields_is_not_read(board: Dashboard) -> None:
    assert board.client.post("/dashboard/sign-in", content="a&" * 3000).status_code == 400


@pytest.mark.parametrize("token", ["", "another", None])
def test_a_form_that_is_not_ours_changes_nothing(board: Dashboard, hand: Hand, token: str | None) -> None:
    job = hand.job(hand.tasks.joining.delay(hand.name()))
    fields = {"id": job.id, "seen": seen_of(job)} | ({} if token is None else {"csrf": token})

    answer = board.client.post("/dashboard/cancel", data=fields)

    assert answer.status_code == 403
    assert hand.job(job.id).state == "queued"


def test_a_form_from_another_origin_changes_nothing(board: Dashboard, hand: Hand) -> None:
    job = hand.job(hand.tasks.joining.delay(hand.name()))
    fields = {"id": job.id, "seen": seen_of(job), "csrf": board.client.cookies["oncelery_csrf"]}

    # One of this machine, which those are let in from where there are no keys.
    answer = board.client.post("/dashboard/cancel", data=fields, headers={"origin": "http://localhost:9"})

    assert answer.status_code == 403
    assert hand.job(job.id).state == "queued"
