from __future__ import annotations

import inspect
from pathlib import Path

from oncelery.testing.conformance import StoreConformance
from oncelery.testing.conformance.cells import GIVEN, VERBS
from oncelery.testing.conformance.document import GROUPS, document
from oncelery.testing.conformance.table import CELLS, Situation, Verb

PAGE = Path(__file__).parents[2] / "docs" / "state-machine.md"

#: Where the parts of the suite take what they are given from.
PARTS = [part for part in StoreConformance.__mro__ if any(name.startswith("test_") for name in vars(part))]


def test_every_verb_has_one_answer_in_every_situation() -> None:
    covered = [(cell.verb, cell.given) for cell in CELLS]

    assert sorted(covered) == sorted((verb, situation) for verb in Verb for situation in Situation)


def test_every_situation_and_verb_of_the_table_can_be_acted_out() -> None:
    assert set(GIVEN) == set(Situation)
    assert set(VERBS) == set(Verb)


def test_the_page_on_the_state_machine_is_printed_from_the_table() -> None:
    assert PAGE.read_text() == document(), "python -m oncelery.testing.conformance > docs/state-machine.md"


def test_the_page_shows_every_verb_once() -> None:
    shown = [verb for _, _, verbs in GROUPS for verb in verbs]

    assert sorted(shown) == sorted(Verb)


def test_no_sentence_hides_another_of_the_same_name() -> None:
    names = [name for part in PARTS for name in vars(part) if name.startswith("test_")]

    assert sorted(names) == sorted(set(names))


def test_every_part_says_what_it_is_about() -> None:
    assert [part.__name__ for part in PARTS if not inspect.getdoc(part)] == []
