from __future__ import annotations

import inspect
import subprocess
import sys
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


def test_a_store_without_an_opener_is_told_what_to_fill(tmp_path: Path) -> None:
    mine = tmp_path / "test_mine.py"
    mine.write_text(
        "from oncelery.testing.conformance import StoreConformance\n\nclass TestMine(StoreConformance): pass\n"
    )
    command = [sys.executable, "-m", "pytest", "-p", "no:valkey", "-k", "empty_ledger_has_nothing", str(mine)]

    told = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False).stdout

    assert "TestMine must have a fixture `opener`" in told
    assert "1 error" in told
