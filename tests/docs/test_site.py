"""The site: it is built without a warning, can be searched, and its reference has every public name."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

import oncelery
import oncelery.http
from oncelery.policy import Policy
from oncelery.settings import Settings


@pytest.fixture(scope="module")
def site(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build it, as `make docs` does: strictly, so that a link or a name that leads nowhere ends it."""
    folder = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", folder],
        cwd=pytestconfig.rootpath,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
    )
    assert built.returncode == 0, built.stdout
    return folder


def test_the_reference_has_every_public_name_with_its_docstring(site: Path) -> None:
    page = (site / "reference.html").read_text()
    public = {f"oncelery.{name}" for name in oncelery.__all__} | {
        f"oncelery.http.{name}" for name in oncelery.http.__all__
    }

    headings = set(re.findall(r'id="(oncelery\.[\w.]+)"', page))

    assert public - headings == set()
    assert "Skip a call, which then returns None" in page
    assert "Same idempotency key" in page


def test_the_reference_has_every_option_and_every_setting(pytestconfig: pytest.Config) -> None:
    page = (pytestconfig.rootpath / "docs" / "reference.md").read_text()
    options, _, rest = page.partition("### Settings")

    def rows(text: str) -> set[str]:
        return set(re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE))

    assert rows(options.partition("### Options of a task")[2]) == {field.name for field in fields(Policy)}
    assert rows(rest.partition(":::")[0]) == {field.name for field in fields(Settings)} - {"policy"}


def test_the_site_can_be_searched(site: Path) -> None:
    index = json.loads((site / "search" / "search_index.json").read_text())

    found = {entry["location"].partition("#")[0] for entry in index["docs"] if "visibility" in entry["text"].lower()}

    assert {"doctor.html", "how-to/redis.html"} <= found


def test_the_readme_leads_to_every_how_to(pytestconfig: pytest.Config) -> None:
    readme = (pytestconfig.rootpath / "README.md").read_text()

    pages = {f"docs/how-to/{page.name}" for page in (pytestconfig.rootpath / "docs" / "how-to").glob("*.md")}

    assert pages - set(re.findall(r"\]\((.+?)\)", readme)) == set()


def test_pages_load_nothing_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        loaded = re.findall(r'<(?:script|img|iframe)[^>]* src="?(https?:[^">\s]+)', page.read_text())
        styles = re.findall(r'<link[^>]* rel="?stylesheet"?[^>]* href="?(https?:[^">\s]+)', page.read_text())
        assert (loaded, styles) == ([], []), page
