"""The wheel: it has the compiled kernel, and works without it if there is no compiler."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest

from hatch_build import KERNEL, LIBRARY, SOURCES, CompileHook, compile_kernel, put_in_place

ROOT = Path(__file__).parents[2]
COMPILED = f"{KERNEL}/{LIBRARY}"
# Seconds; building takes about ten.
TIMEOUT = 300
REPORT = """
import pubsub.kernel
from pubsub.build_info import build_kind
table = pubsub.kernel.HeadTable(lambda data, at: None)
print(build_kind(), pubsub.kernel.__file__, table.scan(b"x").count)
"""
UNTOUCHED: dict[str, Any] = {"force_include": {}, "pure_python": True}


def wheel(directory: Path, **environment: str) -> Path:
    """Build the wheel in ``directory`` with the installed tools, and return its path."""
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps"),
            *("--no-build-isolation", "--wheel-dir", str(directory), str(ROOT)),
        ],
        check=True,
        env={**os.environ, **environment},
        timeout=TIMEOUT,
    )
    (found,) = directory.glob("*.whl")
    return found


def reported(path: Path, directory: Path, **environment: str) -> str:
    """Install the wheel at ``path`` in ``directory``, and return the report of its kernel."""
    with ZipFile(path) as archive:
        archive.extractall(directory)
    # -P keeps the working directory out of the module path.
    return subprocess.run(
        [sys.executable, "-P", "-c", REPORT],
        check=True,
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(directory), **environment},
        stdout=subprocess.PIPE,
        timeout=TIMEOUT,
    ).stdout.decode()


def test_a_wheel_with_the_compiled_kernel(tmp_path: Path) -> None:
    path = wheel(tmp_path / "wheel")
    assert "-cp311-abi3-" in path.name
    with ZipFile(path) as archive:
        names = archive.namelist()
        (metadata,) = (name for name in names if name.endswith("/WHEEL"))
        assert b"Root-Is-Purelib: false" in archive.read(metadata)
    assert names.count(COMPILED) == 1
    shared = [name.partition(".data/data/")[2] for name in names]
    assert {"share/pubsub/pubsub.toml", "share/pubsub/systemd/pubsub.service"} <= set(shared)
    assert {"pubsub/monitoring/alerts.yml", "pubsub/monitoring/dashboard.json"} <= set(names)
    fresh = tmp_path / "fresh"
    package = f"{fresh}/pubsub/kernel/__init__.py"
    assert reported(path, fresh, PUBSUB_KERNEL="") == f"compiled {package} 0\n"
    assert reported(path, fresh, PUBSUB_KERNEL="interpreted") == f"interpreted {package} 0\n"


def test_a_wheel_without_the_compiled_kernel(tmp_path: Path) -> None:
    path = wheel(tmp_path / "wheel", PUBSUB_COMPILE="0")
    assert path.name.endswith("-py3-none-any.whl")
    with ZipFile(path) as archive:
        assert not [name for name in archive.namelist() if name.endswith(".so")]
    fresh = tmp_path / "fresh"
    assert reported(path, fresh, PUBSUB_KERNEL="").startswith("interpreted ")


def built(root: Path, version: str = "standard") -> Mapping[str, Any]:
    """Return the build data that the hook sets."""
    data: dict[str, Any] = {"force_include": {}, "pure_python": True}
    arguments: Any = ({}, None, None, str(root / "dist"), "wheel")
    hook = CompileHook(str(root), *arguments)
    hook.initialize(version, data)
    hook.finalize(version, data, "")
    return data


def sources(directory: Path, text: str | None = None) -> Path:
    """Return a directory with the kernel's source, or with ``text`` in its place."""
    (directory / KERNEL).mkdir(parents=True)
    for name in SOURCES:
        source = KERNEL / name
        (directory / source).write_text((ROOT / source).read_text() if text is None else text)
    return directory


def test_a_compiler_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CC", "/bin/false")
    assert built(sources(tmp_path)) == UNTOUCHED
    assert "pubsub is built without the compiled kernel: " in capfd.readouterr().err


def test_a_source_with_a_syntax_error(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert built(sources(tmp_path, "def"), "editable") == UNTOUCHED
    assert "pubsub is built without the compiled kernel: " in capfd.readouterr().err
    assert not list((tmp_path / KERNEL).glob("*.so"))


def test_compilation_can_be_turned_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PUBSUB_COMPILE", "0")
    assert built(sources(tmp_path)) == UNTOUCHED
    assert built(tmp_path, "editable") == UNTOUCHED
    assert not list((tmp_path / KERNEL).glob("*.so"))


def test_an_editable_installation(tmp_path: Path) -> None:
    """The kernel is put beside its source, and the files of running processes are not changed."""
    root = sources(tmp_path)
    before = root / KERNEL / LIBRARY
    before.write_bytes(b"old")
    with before.open("rb") as loaded:
        assert built(root, "editable") == UNTOUCHED
        assert loaded.read() == b"old"
    assert before.read_bytes().startswith(b"\x7fELF")
    assert {path.name for path in before.parent.iterdir()} == {*SOURCES, LIBRARY}


def test_a_library_is_put_beside_its_source(tmp_path: Path) -> None:
    root = sources(tmp_path / "root")
    library = compile_kernel(root, tmp_path / "build")
    put_in_place(library, root)
    assert (root / KERNEL / LIBRARY).read_bytes() == library.read_bytes()
