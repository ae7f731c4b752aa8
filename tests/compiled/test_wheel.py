"""The build hook: modules that cannot or should not be compiled stay as Python in the wheel."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hatch_build import CompileHook

ROOT = Path(__file__).parents[2]
UNTOUCHED: dict[str, Any] = {"force_include": {}, "pure_python": True}


def built(modules: list[str], version: str = "standard") -> dict[str, Any]:
    """Return the build data that the hook sets."""
    data: dict[str, Any] = {"force_include": {}, "pure_python": True}
    arguments: Any = ({"modules": modules}, None, None, str(ROOT / "dist"), "wheel")
    hook = CompileHook(str(ROOT), *arguments)
    hook.initialize(version, data)
    hook.finalize(version, data, "")
    return data


def test_a_compiler_that_fails(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CC", "/bin/false")
    assert built(["pubsub/wire/frame_runs.py"]) == UNTOUCHED
    assert "built without compiled modules: " in capfd.readouterr().err


def test_code_that_mypyc_refuses(capfd: pytest.CaptureFixture[str]) -> None:
    assert built(["pubsub/no/such/module.py"]) == UNTOUCHED
    assert "built without compiled modules: " in capfd.readouterr().err


def test_compilation_that_is_disabled(monkeypatch: pytest.MonkeyPatch) -> None:
    assert built(["pubsub/wire/frame_runs.py"], "editable") == UNTOUCHED
    monkeypatch.setenv("PUBSUB_COMPILE", "0")
    assert built(["pubsub/wire/frame_runs.py"]) == UNTOUCHED


def test_a_compiler_that_works() -> None:
    data = built(["pubsub/wire/frame_runs.py"])
    assert data["infer_tag"]
    assert not data["pure_python"]
    assert any(
        name.startswith("pubsub/wire/frame_runs.") for name in data["force_include"].values()
    )
