"""The rules and the dashboard name what is really exposed, and the dashboard shows all of it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]
from prometheus_client.parser import text_string_to_metric_families

from oncelery import events
from oncelery.events import JobReleased
from oncelery.job import Answer, Cause, Lost, Reason, State
from oncelery.ledger import Ledger
from oncelery.stores import open_store
from oncelery.telemetry.counting import RUN, SEPARATOR
from oncelery.telemetry.prometheus import DETAILED, exposition

METRIC = re.compile(r"\b(?:oncelery|celery_task)_\w+")

#: What each label may be matched with. A lapsed run has nobody left to count it but the sweeper, as a lost worker.
VALUES: Mapping[str, AbstractSet[str]] = {
    "state": set(State),
    "answer": set(Answer),
    "reason": set(Reason),
    "cause": set(Cause) - {Cause.LAPSE},
    "lost": set(Lost),
    "decision": {event.decision for event in events.Event.__subclasses__()},
}


@pytest.fixture(scope="module")
def exposed() -> dict[str, set[str]]:
    """Give the names of all metrics and of the labels of each, as a scrape of a ledger gives them."""
    ledger = Ledger(open_store("memory://"))
    counts = {("shop.charge", f"{word}{SEPARATOR}some"): 1 for word in DETAILED}
    counts |= {("shop.charge", word): 1 for word in VALUES["decision"]}
    counts |= {("shop.charge", f"{RUN}{SEPARATOR}1"): 1}
    counts |= {("shop.charge", f"{JobReleased.decision}{SEPARATOR}{Cause.RETRY}"): 1}
    ledger.count(counts)
    families = text_string_to_metric_families(exposition(ledger).decode())
    names: dict[str, set[str]] = {}
    for sample in (sample for family in families for sample in family.samples):
        names.setdefault(sample.name, set()).update(sample.labels)
    return names


@pytest.fixture(scope="module")
def operations(pytestconfig: pytest.Config) -> Path:
    """Give the folder of the rules and the dashboard."""
    return pytestconfig.rootpath / "docs" / "operations"


def test_rules_and_dashboard_ask_for_metrics_and_labels_that_are_exposed(
    operations: Path, exposed: dict[str, set[str]]
) -> None:
    asked = [*expressions_of(rules(operations)), *expressions_of(dashboard(operations))]

    assert len(asked) > 20
    for expression in asked:
        named = set(METRIC.findall(expression))
        assert named, expression
        assert named <= exposed.keys(), expression
        labels = {"le"}.union(*(exposed[name] for name in named))
        assert set(re.findall(r"(\w+)=~?\"", expression)) <= labels, expression
        assert {word for group in re.findall(r"by \((.*?)\)", expression) for word in group.split(", ")} <= labels


def test_labels_are_matched_with_values_that_they_can_have(operations: Path) -> None:
    asked = [*expressions_of(rules(operations)), *expressions_of(dashboard(operations))]

    matched = [pair for expression in asked for pair in re.findall(r"(\w+)=~?\"(.*?)\"", expression)]

    assert matched
    for label, values in matched:
        assert values == "$task" or set(values.split("|")) <= VALUES[label], (label, values)


def test_every_metric_is_on_the_dashboard_and_in_the_table(operations: Path, exposed: dict[str, set[str]]) -> None:
    shown = {name for expression in expressions_of(dashboard(operations)) for name in METRIC.findall(expression)}
    listed = set(METRIC.findall((operations / "alerts.md").read_text()))

    # A client library adds when it began to count.
    expected = {name for name in exposed if not name.endswith("_created")}
    assert shown == expected
    assert {re.sub(r"_(bucket|sum|count)$", "", name) for name in expected} <= listed


def test_every_alert_is_explained(operations: Path) -> None:
    page = (operations / "alerts.md").read_text()
    alerts = [rule for group in rules(operations)["groups"] for rule in group["rules"]]

    assert [rule["alert"] for rule in alerts if f"| `{rule['alert']}` |" not in page] == []
    assert {rule["labels"]["severity"] for rule in alerts} <= {"critical", "warning", "info"}
    assert all(rule["annotations"].keys() == {"summary", "description"} for rule in alerts)
    assert all(re.fullmatch(r"\d+m", rule.get("for", "0m")) for rule in alerts)


def rules(operations: Path) -> Any:  # noqa: ANN401 - as YAML has it
    """Read the rules."""
    return yaml.safe_load((operations / "alerts.yml").read_text())


def dashboard(operations: Path) -> Any:  # noqa: ANN401 - as JSON has it
    """Read the dashboard."""
    return json.loads((operations / "grafana.json").read_text())


def expressions_of(node: object) -> Iterator[str]:
    """Give all expressions, wherever they stand."""
    match node:
        case dict():
            for key, value in node.items():
                if key == "expr":
                    yield value
                else:
                    yield from expressions_of(value)
        case list():
            for value in node:
                yield from expressions_of(value)
