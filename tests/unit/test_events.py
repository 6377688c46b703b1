from __future__ import annotations

import pytest

from oncelery.events import Event, Events, JobCompleted

COMPLETED = JobCompleted(task="t", job_id="j", key="k", scope="", seconds=0.0)


def test_every_subscriber_hears_every_event_in_order() -> None:
    events = Events()
    heard: list[tuple[str, Event]] = []
    events.subscribe(lambda event: heard.append(("first", event)))
    events.subscribe(lambda event: heard.append(("second", event)))

    events.emit(COMPLETED)

    assert heard == [("first", COMPLETED), ("second", COMPLETED)]


def test_a_subscriber_that_raises_is_logged_and_disturbs_nobody(caplog: pytest.LogCaptureFixture) -> None:
    events = Events()
    heard: list[Event] = []

    @events.subscribe
    def broken(_event: Event) -> None:
        raise RuntimeError("no disk")

    events.subscribe(heard.append)

    events.emit(COMPLETED)

    assert heard == [COMPLETED]
    assert "no disk" in caplog.text


def test_no_two_events_share_their_word() -> None:
    words = {event.__name__: event.decision for event in Event.__subclasses__()}

    assert len(words) == len(set(words.values()))
