"""What does it cost to make a key?"""

from __future__ import annotations

import hashlib
import json
from functools import partial
from itertools import repeat

from benchmarks.calls import TASK, Call
from benchmarks.laboratory import Laboratory, say
from benchmarks.measure import Contender, compare
from benchmarks.report import Table, figures
from oncelery.fingerprint import fingerprint


def ask(laboratory: Laboratory) -> Table:
    """Compare a fingerprint with json.dumps and SHA-256, by the kind and size of the payload."""
    table = Table(
        title="Making a key",
        note="Theirs is json.dumps(sort_keys=True) and SHA-256: no Decimal, datetime or UUID, and 1 is not 1.0.",
    )
    for kind, payload in payloads():
        say(f"making a key: {kind}")
        given = partial(repeat, payload)
        comparison = compare(Contender(given, partial(fingerprint, TASK)), Contender(given, plain), laboratory.effort)
        size = len(json.dumps(payload, ensure_ascii=False, separators=(",", ":")).encode())
        table.rows.append({"payload": kind, "bytes": size, **figures(comparison)})
    return table


def payloads() -> list[tuple[str, Call]]:
    """Give payloads of about 100 bytes, 1 KB, 10 KB and 100 KB."""
    return [("order", order(lines)) for lines in (0, 13, 140, 1400)] + [
        ("measurements", measurements(number)) for number in (3, 53, 520, 4_850)
    ]


def order(lines: int) -> Call:
    """Make what a shop sends: texts, integers, a price, and nesting."""
    return {
        "order_id": "0f8fad5b-d9cb-469f-a165-70867728950e",
        "customer": {"id": 48_211},
        "currency": "EUR",
        "lines": [
            {"sku": f"SKU-{number:06}", "name": "Straße 7", "quantity": number % 7, "price": number + 0.99}
            for number in range(lines)
        ],
    }


def measurements(number: int) -> Call:
    """Make what a sensor sends: floats of all digits."""
    return {"sensor": "0f8fad5b-d9cb", "values": [10 / (7 + index) for index in range(number)], "unit": "K"}


def plain(call: Call) -> str:
    """Make a key as one does by hand."""
    return hashlib.sha256(json.dumps([TASK, call], sort_keys=True).encode()).hexdigest()
