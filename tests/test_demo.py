from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_the_demonstration_charges_each_order_once(tmp_path: Path) -> None:
    shown = subprocess.run(
        [sys.executable, "-m", "oncelery.embedded", "--folder", tmp_path / "ledger"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.count("begins, attempt 2, after a crash") == 2
    assert "may not charge: another run has taken over" in shown.stdout
    assert shown.stdout.strip().endswith("3 orders, 3 charges at the bank: none lost, none twice.")
