"""The Makefile and the pins: what stops, and with which message."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[3]
pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="no make found: install make")


@pytest.fixture
def make(tmp_path):
    """A function that runs make in a copy of the repository's root whose environment counts as installed."""
    for name in ("Makefile", "requirements.txt", "code/pyproject.toml"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    bin_folder = tmp_path / ".venv/bin"
    bin_folder.mkdir(parents=True)
    (bin_folder / "python").symlink_to(sys.executable)
    (tmp_path / ".venv/requirements.installed").write_text(
        (tmp_path / "requirements.txt").read_text() + (tmp_path / "code/pyproject.toml").read_text()
    )
    (bin_folder / "jupyter-book").write_text('#!/bin/sh\necho "built with: $*"\n')
    (bin_folder / "jupyter-book").chmod(0o755)

    def run(*arguments, version="1.0.4"):
        metadata = tmp_path / f"installed/jupyter_book-{version}.dist-info/METADATA"
        metadata.parent.mkdir(parents=True)
        metadata.write_text(f"Metadata-Version: 2.1\nName: jupyter-book\nVersion: {version}\n")
        environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(tmp_path / "installed")}
        return subprocess.run(
            ["make", *arguments], cwd=tmp_path, env=environment, text=True, capture_output=True, check=False
        )

    return run


def test_wrong_major_version_stops_the_build(make):
    done = make("book", version="2.1.0")
    assert done.returncode != 0
    assert "jupyter-book<2" in done.stderr
    assert "pip install -r requirements.txt" in done.stderr
    assert "2.1.0" in done.stderr
    assert "Traceback" not in done.stderr
    assert "built with" not in done.stdout


def test_right_major_version_builds_and_says_where(make):
    done = make("book")
    assert done.returncode == 0, done.stderr
    assert "built with: build ." in done.stdout
    assert "_build/html/index.html" in done.stdout


def test_failed_build_fails_make(make, tmp_path):
    (tmp_path / ".venv/bin/jupyter-book").write_text("#!/bin/sh\nexit 3\n")
    done = make("book")
    assert done.returncode != 0
    assert "ready" not in done.stdout


@pytest.mark.parametrize("python", ["no-such-python", "false"])
def test_python_missing_or_too_old_is_named(make, tmp_path, python):
    done = make("book", f"PYTHON={python}", "VENV=fresh")
    assert done.returncode != 0
    assert f"Python 3.11 or newer, and {python} is not" in done.stderr
    assert not (tmp_path / "fresh").exists()


def test_failed_installation_is_not_taken_for_done(make, tmp_path):
    (tmp_path / ".venv/requirements.installed").unlink()
    (tmp_path / "requirements.txt").write_text("no such requirement\n")
    done = make("book")
    assert done.returncode != 0
    assert "built with" not in done.stdout
    assert not (tmp_path / ".venv/requirements.installed").exists()


def test_every_requirement_is_pinned():
    lines = [line.split("#")[0].strip() for line in (ROOT / "requirements.txt").read_text().splitlines()]
    lines = [line for line in lines if line]
    assert lines.pop() == "-e ./code"
    assert [line for line in lines if not re.fullmatch(r"[A-Za-z0-9_.-]+==[\w.]+(,<2)?", line)] == []
    assert next(line for line in lines if line.startswith("jupyter-book")).endswith(",<2")


def test_other_major_version_run_by_hand_stops():
    """Jupyter Book 2 reads myst.yml alone; a version that it does not know makes it stop and show the remedy."""
    version = yaml.safe_load((ROOT / "myst.yml").read_text())["version"]
    assert "jupyter-book<2" in version
    assert "pip install -r requirements.txt" in version


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash found: install bash")
def test_ci_names_what_it_cannot_install(tmp_path):
    for name in ("bash", "dirname", "id", "make", "python3"):
        (tmp_path / name).symlink_to(sys.executable if name == "python3" else shutil.which(name))
    for name in ("apt-get", "sudo"):
        (tmp_path / name).write_text("#!/bin/sh\nexit 100\n")
        (tmp_path / name).chmod(0o755)
    done = subprocess.run(
        ["bash", ROOT / ".ci/run"], env={"PATH": str(tmp_path)}, text=True, capture_output=True, check=False
    )
    assert done.returncode == 1
    assert "Cannot install: chromium" in done.stderr
