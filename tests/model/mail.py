"""A broker that delivers at least once: the messages of each job, and what can become of them."""

from __future__ import annotations

from typing import NamedTuple

from .invariants import change

#: What becomes of a job's message: a method of Mail, and the job. Empty: nothing.
Post = tuple[str, int] | tuple[()]


class Mail(NamedTuple):
    """Copies of each job's message. Every method gives the mail after it, or None where it cannot be."""

    #: Copies that wait in the queue.
    queued: tuple[int, ...]
    #: With Redis: delivered and not acknowledged. All copies share one tag, so that there is but one to remove.
    unacked: tuple[bool, ...]
    redis: bool
    copies: int

    @property
    def empty(self) -> bool:
        return not any(self.queued) and not any(self.unacked)

    def after(self, post: Post) -> Mail | None:
        if not post:
            return self
        method, job = post
        mail: Mail | None = getattr(self, method)(job)
        return mail

    def is_waiting(self, job: int) -> Mail | None:
        return self if self.queued[job] else None

    def is_somewhere(self, job: int) -> Mail | None:
        return self if self.queued[job] or self.unacked[job] else None

    def is_nowhere(self, job: int) -> Mail | None:
        return None if self.queued[job] or self.unacked[job] else self

    def publish(self, job: int) -> Mail:
        return self.queue(job, min(self.queued[job] + 1, self.copies))

    def publish_if_none_waits(self, job: int) -> Mail | None:
        return None if self.queued[job] else self.publish(job)

    def publish_though_one_waits(self, job: int) -> Mail | None:
        return self.publish(job) if self.queued[job] else None

    def receive(self, job: int) -> Mail | None:
        taken = self.lose(job)
        return taken and taken.tag(job, unacked=self.redis)

    def lose(self, job: int) -> Mail | None:
        return self.queue(job, self.queued[job] - 1) if self.queued[job] else None

    def acknowledge(self, job: int) -> Mail:
        return self.tag(job, unacked=False)

    def deliver_again(self, job: int) -> Mail | None:
        return self.acknowledge(job).publish(job) if self.unacked[job] else None

    def give_back(self, job: int) -> Mail:
        """Queue again what a worker has returned, if it is still counted as delivered."""
        return (self.deliver_again(job) or self) if self.redis else self.publish(job)

    def park(self, job: int) -> Mail:
        """Publish for later, and acknowledge."""
        return self.acknowledge(job).publish(job)

    def queue(self, job: int, copies: int) -> Mail:
        return self._replace(queued=change(self.queued, job, copies))

    def tag(self, job: int, *, unacked: bool) -> Mail:
        return self._replace(unacked=change(self.unacked, job, unacked))
