"""Which bounds are searched: quickly with the other tests, and thoroughly by `python -m tests.model`."""

from __future__ import annotations

from .ledger import JOIN, REPLACE, TRAIL
from .steps import BY_NAME, CALL, Bounds

QUICK = {
    "Redis tags": Bounds(faults=2, acts=2),
    "RabbitMQ tags": Bounds(faults=3, acts=1, redis=False),
    "three workers": Bounds(faults=2, acts=1, workers=3),
    "many crashes": Bounds(faults=5, acts=0, max_crashes=2),
    "hold after a crash": Bounds(faults=2, acts=1, hold=True),
    "receipts counted": Bounds(faults=2, acts=1, receipts=2),
    "late requests": Bounds(faults=2, acts=1, late=True),
    "fail-over": Bounds(faults=2, acts=1, failovers=True),
    "fail-over, RabbitMQ tags": Bounds(faults=2, acts=1, failovers=True, redis=False),
    "silent store": Bounds(faults=2, acts=0, failovers=True, silent=True, late=True),
    "joined twice": Bounds(faults=1, acts=1, submissions=(JOIN, JOIN), copies=1),
    "reserved, then sent by name": Bounds(faults=1, acts=1, submissions=(JOIN, BY_NAME), copies=1),
    "sent by name, then reserved": Bounds(faults=1, acts=1, submissions=(BY_NAME, JOIN), copies=1),
    "trailed": Bounds(faults=1, acts=1, submissions=(TRAIL, TRAIL), copies=1),
    "replaced": Bounds(faults=1, acts=1, submissions=(JOIN, REPLACE), copies=1),
    "calls": Bounds(faults=2, acts=2, submissions=(CALL, CALL)),
}

THOROUGH = {
    "Redis tags": Bounds(faults=4, acts=3),
    "RabbitMQ tags": Bounds(faults=4, acts=3, redis=False),
    "three workers": Bounds(faults=4, acts=2, workers=3),
    "three workers, RabbitMQ tags": Bounds(faults=3, acts=2, workers=3, redis=False),
    "many crashes": Bounds(faults=8, acts=1, max_crashes=3),
    "hold after a crash": Bounds(faults=4, acts=3, hold=True),
    "receipts counted": Bounds(faults=4, acts=2, receipts=2),
    "late requests": Bounds(faults=3, acts=2, late=True),
    "fail-over": Bounds(faults=3, acts=2, failovers=True),
    "fail-over, RabbitMQ tags": Bounds(faults=3, acts=2, failovers=True, redis=False),
    "fail-over, three workers": Bounds(faults=2, acts=1, failovers=True, workers=3),
    "fail-over, many submissions": Bounds(faults=1, acts=1, failovers=True, submissions=(JOIN, JOIN)),
    "silent store": Bounds(faults=3, acts=1, failovers=True, silent=True, late=True),
    "joined twice": Bounds(faults=2, acts=2, submissions=(JOIN, JOIN)),
    "reserved, then sent by name": Bounds(faults=2, acts=2, submissions=(JOIN, BY_NAME)),
    "sent by name, then reserved": Bounds(faults=2, acts=2, submissions=(BY_NAME, JOIN)),
    "trailed": Bounds(faults=1, acts=2, submissions=(TRAIL, TRAIL)),
    "trailed twice": Bounds(faults=0, acts=2, submissions=(TRAIL, TRAIL, TRAIL), copies=1),
    "replaced": Bounds(faults=1, acts=2, submissions=(JOIN, REPLACE)),
    "calls": Bounds(faults=3, acts=3, submissions=(CALL, CALL)),
}
