"""The files of the packages, the version, the release notes, and the files for Docker."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import distributions, packages_distributions, version
from pathlib import Path, PurePosixPath
from typing import Any

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from pathspec import GitIgnoreSpec
from ruamel.yaml import YAML
from twisted.trial.unittest import SkipTest, SynchronousTestCase

from pubsub.plugin import installed_protocols
from pubsub.server.command_line import make_options

ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "docs" / "deploy" / "docker"
BIN = Path(sys.executable).parent


IN_WHEEL = re.compile(r"(pubsub|twisted)/|(pubsub_broker(_pytest)?|pyspark_pubsub)\.py$")
IN_SDIST = re.compile(r"(?!\.ci/|\.gitignore$|\.pre-commit-config\.yaml$|pyproject\.toml$)")


def tracked() -> list[str]:
    """Return the files that git tracks; skips the test if this is no checkout."""
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listed.returncode:
        raise SkipTest("this is no checkout")
    return listed.stdout.splitlines()


def ignored() -> list[str]:
    """Return the patterns of the files that the build of the image does not see."""
    lines = (DOCKER / "Dockerfile.dockerignore").read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def seen(name: str, patterns: list[str]) -> bool:
    """Whether Podman and Docker pass the file to the build.

    The last pattern that fits the file or a directory above it decides. A directory that is ignored
    is skipped by Podman, unless an exception begins with its path.
    """
    path = PurePosixPath(name)
    above = list(path.parents)[-2::-1]
    skipped = (
        directory
        for directory in above
        if not excepted(directory, patterns)
        and not any(pattern.startswith(f"!{directory}/") for pattern in patterns)
    )
    return excepted(path, patterns) and next(skipped, None) is None


def excepted(path: PurePosixPath, patterns: list[str]) -> bool:
    names = [str(path), *map(str, path.parents)]
    found = True
    for pattern in patterns:
        bare = re.escape(pattern.removeprefix("!"))
        expression = bare.replace(r"\*\*/", "(.*/)?").replace(r"\*", "[^/]*")
        if any(re.fullmatch(expression, part) for part in names):
            found = pattern.startswith("!")
    return found


def project() -> dict[str, Any]:
    with open(ROOT / "pyproject.toml", "rb") as file:
        return tomllib.load(file)


class ConstraintsTests(SynchronousTestCase):
    """The tested versions of the dependencies"""

    def test_they_work_with_the_python_of_debian(self) -> None:
        # That of Debian 12, which has the oldest one that is supported.
        pins = dict(re.findall(r"^([\w.-]+)==(\S+)", (ROOT / "constraints.txt").read_text(), re.M))
        tested = [
            found.metadata
            for found in distributions()
            if pins.get(canonicalize_name(found.name)) == found.version
        ]
        assert len(tested) > len(pins) // 2
        required = {
            metadata["Name"]: metadata["Requires-Python"]
            for metadata in tested
            if "Requires-Python" in metadata
        }
        assert [
            f"{name} requires Python {text}"
            for name, text in required.items()
            if not SpecifierSet(text).contains("3.11.2")
        ] == []


class ExtrasTests(SynchronousTestCase):
    """What can be installed besides"""

    def test_arrow_is_enough_for_the_client_of_the_history(self) -> None:
        found = project()["project"]
        requirements = [*found["dependencies"], *found["optional-dependencies"]["arrow"]]
        named = {canonicalize_name(Requirement(text).name) for text in requirements}
        owners, imported = packages_distributions(), set[str]()
        for path in ROOT.glob("pubsub/client/history_*.py"):
            imported |= set(re.findall(r"^(?:import|from) (\w+)", path.read_text(), re.M))
        others = imported - sys.stdlib_module_names - {"pubsub"}
        assert {canonicalize_name(owners[module][0]) for module in others} <= named


class VersionTests(SynchronousTestCase):
    """The version"""

    def release(self) -> str:
        expression = project()["tool"]["hatch"]["version"]["expression"]
        found = re.fullmatch(r"of_build\(\"([0-9.]+)\"\)", expression)
        assert found is not None
        return found[1]

    def test_it_is_in_one_place(self) -> None:
        number = self.release()
        found = [
            path.relative_to(ROOT).as_posix()
            for path in ROOT.glob("pubsub/**/*.py")
            if re.search(rf"version\w* *= *[\"']{re.escape(number)}", path.read_text())
        ]
        assert found == []

    def test_the_installed_package_has_the_version(self) -> None:
        # An installation between releases has the commit behind it.
        assert version("pubsub-broker").partition("+")[0] == self.release()


class ReleaseNotesTests(SynchronousTestCase):
    """towncrier"""

    def test_a_draft_has_every_fragment(self) -> None:
        result = subprocess.run(
            [str(BIN / "towncrier"), "build", "--draft", "--version", "9.9.9"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert result.returncode == 0, result.stderr
        assert "## 9.9.9 (" in result.stdout
        notes = " ".join(result.stdout.split())
        for fragment in (ROOT / "changelog.d").glob("+*.md"):
            assert " ".join(fragment.read_text().split()) in notes, fragment.name


class DockerTests(SynchronousTestCase):
    """docs/deploy/docker"""

    def test_the_dockerfile_has_no_findings(self) -> None:
        hadolint = shutil.which("hadolint", path=str(BIN))
        if hadolint is None:
            raise SkipTest("hadolint is not there for this platform")
        result = subprocess.run(
            [hadolint, "--format", "json", str(DOCKER / "Dockerfile")],
            capture_output=True,
            timeout=60,
            check=False,
        )
        assert json.loads(result.stdout) == []

    def test_the_image_is_hardened(self) -> None:
        final = (DOCKER / "Dockerfile").read_text().rpartition("\nFROM ")[2]
        assert "\nUSER 10001:10001\n" in final
        assert "\nSTOPSIGNAL SIGTERM\n" in final
        assert "/healthz" in final
        assert '\nVOLUME ["/var/lib/pubsub"]\n' in final
        assert "gcc" not in final

    def test_the_compose_file_follows_its_schema(self) -> None:
        result = subprocess.run(
            [
                *(str(BIN / "check-jsonschema"), "--builtin-schema", "vendor.compose-spec"),
                str(DOCKER / "compose.yaml"),
            ],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert result.returncode == 0, result.stdout

    def test_the_compose_file_publishes_on_loopback_only(self) -> None:
        (service,) = YAML(typ="safe").load(DOCKER / "compose.yaml")["services"].values()
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert all(port.startswith("127.0.0.1:") for port in service["ports"])
        exposed = re.search(r"EXPOSE (.*)", (DOCKER / "Dockerfile").read_text())
        assert exposed is not None
        published = {port.rpartition(":")[2] for port in service["ports"]}
        assert published < set(exposed[1].split())

    def test_the_configuration_of_the_image_is_valid(self) -> None:
        options = make_options()
        options.parseOptions(["--config", str(DOCKER / "pubsub.toml")])
        served = {listener.protocol.name for listener in options.config.listeners}
        # It needs a secret.
        assert served == installed_protocols().keys() - {"fast"}

    def test_the_build_sees_the_files_of_the_wheel(self) -> None:
        """Each pattern stands for files, and files that the Dockerfile copies are not ignored."""
        patterns = ignored()
        assert patterns[0] == "*"
        exceptions = [pattern[1:] for pattern in patterns if pattern.startswith("!")]
        assert [pattern for pattern in exceptions if not list(ROOT.glob(pattern))] == []
        missing = [name for name in tracked() if IN_WHEEL.match(name) and not seen(name, patterns)]
        assert missing == []

    def test_the_build_does_not_see_secrets(self) -> None:
        names = (".env", "pubsub.key", "pubsub/.env", "pubsub/pubsub.key", "history/0.log")
        assert [name for name in names if seen(name, ignored())] == []


class ListTests(SynchronousTestCase):
    """The lists of the packages' files; tests/integration/test_packages.py builds them"""

    def test_the_lists_include_the_tracked_files(self) -> None:
        targets = project()["tool"]["hatch"]["build"]["targets"]
        for target, wanted in (("wheel", IN_WHEEL), ("sdist", IN_SDIST)):
            spec = GitIgnoreSpec.from_lines(targets[target]["include"])
            missing = [name for name in tracked() if wanted.match(name)]
            missing = [name for name in missing if not spec.match_file(name)]
            assert missing == [], f"add them to include of the {target} in pyproject.toml"
