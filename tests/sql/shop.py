"""A shop whose task pays into its books, with a ledger in the same database or elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
from guarded.books import AMOUNT, ORDER, Books, pay
from guarded.hand import Delivered, Hand
from redis import Redis

from oncelery import current_run
from oncelery.job import State
from oncelery.ledger import Ledger

TARGETS = ["psycopg", "connection", "session", "engine"]


class Shop:
    """A task that pays into the books through a target of its kind, and what its worker makes of it."""

    def __init__(self, hand: Hand, books: Books, ledger: Ledger, url: str = "") -> None:
        self.hand, self.books, self.ledger, self.url = hand, books, ledger, url
        hand.once.__dict__["ledger"] = ledger

    def task(self, function: Callable[..., Any], **options: Any) -> Any:  # noqa: ANN401 - Celery's own
        name = f"charge-{len(self.hand.app.tasks)}"
        return self.hand.once.task(function, name=name, shared=False, key="order", **options)

    def paying(self, kind: str, **options: Any) -> Any:  # noqa: ANN401 - Celery's own
        def charge(order: str) -> None:
            with self.books.target(kind) as target, current_run().transaction(target) as tx:
                pay(tx.connection, order)
                tx.result = {"paid": order}

        return self.task(charge, **options)

    def lose_the_ledger(self) -> None:
        """Delete all that the ledger knows, as a fail-over does with what it knew last."""
        self.hand.clock.advance(seconds=1)
        if self.url.startswith("redis:"):
            with Redis.from_url(self.url) as client:
                client.flushdb()
        else:
            with psycopg.connect(self.url) as connection:
                connection.execute("TRUNCATE oncelery.jobs CASCADE")

    @property
    def is_paid_once(self) -> bool:
        return (self.books.entries, self.books.balance) == ([ORDER], AMOUNT)

    @property
    def is_unpaid(self) -> bool:
        return (self.books.entries, self.books.balance) == ([], 0)


def state(shop: Shop, job_id: str) -> State:
    job = shop.ledger.get(job_id)
    assert job
    return job.state


def deliver_all(shop: Shop) -> list[Delivered]:
    """Run tasks until no message is left, at whatever time they are due."""
    delivered = [shop.hand.deliver()]
    while shop.hand.waiting():
        shop.hand.clock.now += shop.hand.once.policy().backoff.most
        delivered.append(shop.hand.deliver())
    return delivered
