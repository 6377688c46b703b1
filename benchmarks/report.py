"""Tables: as Markdown that also reads well on a terminal, and as JSON with the figures unrounded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from benchmarks.measure import Comparison

Cell = str | int | float


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """The answer to one question. All rows have the same columns."""

    title: str
    rows: list[dict[str, Cell]] = field(default_factory=list)
    #: What the reader must know to read it right.
    note: str = ""

    def lines(self) -> Iterator[str]:
        """Give the table as Markdown, its columns aligned."""
        columns = list(self.rows[0]) if self.rows else []
        cells = [[_text(row[column]) for column in columns] for row in self.rows]
        widths = [max(len(text) for text in column) for column in zip(columns, *cells, strict=True)]
        numeric = [not isinstance(value, str) for value in self.rows[0].values()] if self.rows else []
        yield f"### {self.title}"
        yield ""
        yield _row(columns, widths, numeric)
        yield _row(["-" * (w - n) + ":" * n for w, n in zip(widths, numeric, strict=True)], widths, numeric)
        for texts in cells:
            yield _row(texts, widths, numeric)
        if self.note:
            yield ""
            yield self.note


def figures(comparison: Comparison) -> dict[str, Cell]:
    """Give a comparison's columns, in microseconds."""
    return {
        "Oncelery µs": comparison.ours * 1e6,
        "theirs µs": comparison.theirs * 1e6,
        "ratio": comparison.ratio,
        "Q1": comparison.low,
        "Q3": comparison.high,
    }


def _text(value: Cell) -> str:
    match value:
        case float() if abs(value) >= 100:
            return f"{value:,.0f}"
        case float():
            return f"{value:.2f}" if abs(value) < 10 else f"{value:.1f}"
        case int():
            return f"{value:,}"
        case str():
            return value


def _row(texts: list[str], widths: list[int], numeric: list[bool]) -> str:
    aligned = (
        text.rjust(width) if right else text.ljust(width)
        for text, width, right in zip(texts, widths, numeric, strict=True)
    )
    return f"| {' | '.join(aligned)} |"
