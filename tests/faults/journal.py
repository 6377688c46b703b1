"""What has really happened: a file to which workers append each effect, and by which a test judges them.

It is neither the ledger nor Celery's result backend, for neither can vouch for itself.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

#: Tells a worker where the journal is.
VARIABLE = "EFFECT_JOURNAL"

#: An append of no more than this is whole or not there, whoever else appends and whenever the writer is killed.
LONGEST_ENTRY_BYTES = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One thing that happened."""

    key: str
    what: str
    job_id: str
    payload: Any
    fence: int
    attempt: int
    pid: int
    #: In nanoseconds, by the clock that all processes of the machine share.
    at: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """How the effects differ from what was accepted; each counter says by how many."""

    lost: Counter[str]
    duplicated: Counter[str]
    unexpected: Counter[str]

    @property
    def is_clean(self) -> bool:
        """Whether each effect that was accepted has happened once, and nothing else."""
        return not (self.lost or self.duplicated or self.unexpected)


class Journal:
    """Appends and reads entries; any number of processes may, at any time."""

    def __init__(self, path: Path | str | None = None) -> None:
        self.path = Path(path or os.environ[VARIABLE])

    @property
    def environment(self) -> dict[str, str]:
        """What to add to a worker's environment, in which it then writes `Journal().record(...)`."""
        return {VARIABLE: str(self.path)}

    def record(
        self,
        key: str,
        *,
        what: str = "effect",
        job_id: str = "",
        payload: Any = None,  # noqa: ANN401 - whatever the test would like to see
        fence: int = 0,
        attempt: int = 0,
    ) -> None:
        """Append an entry. It stays when this process is killed the instant after."""
        entry = Entry(
            key=key,
            what=what,
            job_id=job_id,
            payload=payload,
            fence=fence,
            attempt=attempt,
            pid=os.getpid(),
            at=time.monotonic_ns(),
        )
        # The first line break parts it from an entry that a full disk cut short.
        line = b"\n" + msgspec.json.encode(entry) + b"\n"
        if len(line) > LONGEST_ENTRY_BYTES:
            raise ValueError(f"an entry of {len(line)} bytes is not surely written as a whole: record less of {key}")
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(descriptor, line)
        finally:
            os.close(descriptor)

    def entries(self, *, what: str = "effect") -> list[Entry]:
        """Give all entries of a kind, in the order in which they happened."""
        lines = self.path.read_bytes().splitlines() if self.path.exists() else []
        entries = [msgspec.json.decode(line, type=Entry) for line in lines if line.endswith(b"}")]
        return [entry for entry in entries if entry.what == what]

    def count(self, *, what: str = "effect") -> int:
        """Count the entries of a kind; cheap enough to wait for one of thousands."""
        return self.path.read_bytes().count(f'"what":"{what}"'.encode()) if self.path.exists() else 0

    def verdict(self, accepted: Iterable[str]) -> Verdict:
        """Compare the effects with the keys that were accepted; a key given twice is to take effect twice."""
        due, seen = Counter(accepted), Counter(entry.key for entry in self.entries())
        more = seen - due
        return Verdict(
            lost=due - seen,
            duplicated=Counter({key: count for key, count in more.items() if key in due}),
            unexpected=Counter({key: count for key, count in more.items() if key not in due}),
        )
