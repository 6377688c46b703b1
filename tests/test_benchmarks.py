from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

Benchmark = Callable[[list[str]], None]


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch, pytestconfig: pytest.Config) -> Benchmark:
    """Give the program that `make bench` runs; it is beside the package, not in it."""
    monkeypatch.syspath_prepend(pytestconfig.rootpath)
    from benchmarks.__main__ import main  # noqa: PLC0415 - found only now

    return main


def test_a_benchmark_prints_its_table(benchmark: Benchmark, capsys: pytest.CaptureFixture[str]) -> None:
    benchmark(["--quick", "--only", "fingerprint"])

    lines = capsys.readouterr().out.splitlines()
    (heading,) = (line for line in lines if line.startswith("| payload "))
    assert lines[lines.index(heading) + 1].startswith("| ---")


# Celery's result backend calls what redis-py would like it not to call any more.
@pytest.mark.filterwarnings("ignore:Call to deprecated setex:DeprecationWarning")
def test_the_figures_of_every_question_are_written_as_json(benchmark: Benchmark, tmp_path: Path) -> None:
    benchmark(["--quick", "--json", str(tmp_path / "figures.json")])

    report = json.loads((tmp_path / "figures.json").read_text())
    assert all(rows for rows in report["tables"].values())
    assert "Python" in report["machine"]


def test_a_question_that_nobody_asks_is_refused_by_name(
    benchmark: Benchmark, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        benchmark(["--only", "weather"])

    assert "round-trips" in capsys.readouterr().err
