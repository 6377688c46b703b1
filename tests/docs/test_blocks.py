"""Every Python block of the docs is run, page by page, as if a reader had copied it.

A block that begins with `# shop.py` is that file, one that names no file goes on with the last; files that are called
`test_…` are run by pytest, all others are imported. `<!-- given … -->` before a block is what the page takes for
granted, `<!-- given: shop -->` a `shop.py` as in the README; `<!-- not run: why -->` leaves a block out. Addresses of
servers are replaced by those of the tests' own.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from faults.brokers import fresh_database

from oncelery.testing.servers import PostgresServer, ValkeyServer

ROOT = Path(__file__).parents[2]

BLOCK = re.compile(
    r"<!-- given\n(?P<given>.*?)-->"
    r"|(?P<shop><!-- given: shop -->)"
    r"|<!-- not run: (?P<why>.+?) -->\n```python\n.*?```"
    r"|```python\n(?P<shown>.*?)```",
    re.DOTALL,
)

#: Pages with Python in them; test_quickstart.py plays the quickstart.
PAGES = [
    page
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
    if "```python" in page.read_text() and page.name != "quickstart.md"
]

SHOP = """\
# shop.py
from celery import Celery
from oncelery import Oncelery, current_run

app = Celery("shop", broker="redis://localhost:6379/0", backend="redis://localhost:6379/0")
once = Oncelery(app, store="redis://localhost:6379/1")


@once.task(key="order_id")
def charge(order_id: str, amount: int) -> dict[str, int]:
    return {"charged": amount}
"""

#: In seconds; reached only when a block hangs.
SOON = 120.0

#: Of Celery's Redis backend.
NOT_OURS = "ignore:Call to deprecated setex:DeprecationWarning"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_blocks_of_a_page_do_what_they_say(
    page: Path, tmp_path: Path, valkey: ValkeyServer, request: pytest.FixtureRequest
) -> None:
    files = files_of(page.read_text())
    text = "".join(files.values())
    servers = {f"redis://localhost:6379/{number}": fresh_database(valkey) for number in (0, 1)}
    if "postgresql://localhost/shop" in text:
        postgres: PostgresServer = request.getfixturevalue("postgres")
        servers["postgresql://localhost/shop"] = postgres.create_database()
    for name, code in files.items():
        file = tmp_path / f"{name}.py"
        file.parent.mkdir(exist_ok=True)
        file.write_text(moved(code, servers))

    tests = {name for name in files if name.startswith("test_")}
    run(["-c", "\n".join(f"import {module(name)}" for name in files if name not in tests)], tmp_path)
    if tests:
        told = run(["-m", "pytest", "-p", "no:randomly", "-p", "no:valkey", "-W", "error"], tmp_path)
        assert f"{text.count('def test_')} passed" in told


def test_a_block_that_is_not_run_says_why() -> None:
    excused = {
        page.name: [found["why"] for found in BLOCK.finditer(page.read_text()) if found["why"]] for page in PAGES
    }

    assert all(len(why) > 10 for reasons in excused.values() for why in reasons)
    # An excuse is an exception: a page of which nothing is run proves nothing.
    assert all(files_of(page.read_text()) for page in PAGES)


def files_of(text: str) -> dict[str, str]:
    """Give the files that a page's blocks make, in their order."""
    made: dict[str, str] = {}
    name = "page"
    for found in BLOCK.finditer(text):
        code = SHOP if found["shop"] else found["given"] or found["shown"]
        if code is None:
            continue
        named = re.match(r"# ([\w/]+)\.py\n", code)
        name = named[1] if named else name
        made[name] = made.get(name, "") + code + "\n"
    return made


def module(name: str) -> str:
    """Tell how a file is imported."""
    return name.removesuffix("/__init__").replace("/", ".")


def moved(code: str, servers: dict[str, str]) -> str:
    """Write a block with the servers of the tests."""
    for public, private in servers.items():
        code = code.replace(public, private)
    return code


def run(arguments: list[str], folder: Path) -> str:
    """Run Python on the page's files, and give what it says."""
    told = subprocess.run(
        [sys.executable, "-W", "error", "-W", NOT_OURS, *arguments],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SOON,
        check=False,
    )
    assert told.returncode == 0, told.stdout
    return told.stdout
