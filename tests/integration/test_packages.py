"""The packages: their files, and the behaviour of an installed wheel."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import venv
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from zipfile import ZipFile

import pytest

from tests.integration.broker import HOST, environment, run_to_end

ROOT = Path(__file__).parents[2]
# Seconds; building takes about ten.
TIMEOUT = 300
# Tracked files of a checkout that are not needed with the packages.
NOT_PACKED = re.compile(r"\.ci/|\.gitignore$|\.pre-commit-config\.yaml$")
IN_WHEEL = re.compile(r"(pubsub|twisted)/|(pubsub_broker(_pytest)?|pyspark_pubsub)\.py$")
# Litter of a checkout; none of it is tracked, and git ignores none of it.
LITTER = (
    "pubsub.key",
    ".env",
    "big.bin",
    "history.log/00000000.log",
    "pubsub/.env",
    "pubsub/pubsub.key",
    "pubsub/http_api/dashboard/node_modules.tar",
    "twisted/plugins/other.py",
    "docs/notes.txt",
    "tests/secret.pem",
    "seeds/vectors/key",
)
TWISTD = "import sys; from twisted.scripts.twistd import run; sys.argv[0] = 'twistd'; run()"


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout of the committed files, with litter."""
    path = tmp_path_factory.mktemp("packages") / "checkout"
    subprocess.run(["git", "clone", "-q", str(ROOT), str(path)], check=True, timeout=TIMEOUT)
    for name in LITTER:
        file = path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"litter" * (200_000 if name == "big.bin" else 1))
    return path


@pytest.fixture(scope="module")
def built(checkout: Path) -> Path:
    """The directory with the sdist and the wheel, without the compiled kernel."""
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-t", "wheel"],
        cwd=checkout,
        env={**os.environ, "PUBSUB_COMPILE": "0"},
        check=True,
        timeout=TIMEOUT,
    )
    return checkout / "dist"


def tracked(checkout: Path) -> set[str]:
    listed = subprocess.run(
        ["git", "ls-files"], cwd=checkout, check=True, capture_output=True, text=True
    )
    return set(listed.stdout.splitlines())


def test_the_sdist_has_the_tracked_files(checkout: Path, built: Path) -> None:
    (path,) = built.glob("pubsub_broker-*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    # hatchling adds .gitignore for builds from the sdist.
    expected = {name for name in tracked(checkout) if not NOT_PACKED.match(name)}
    assert names - {".gitignore"} == expected | {"PKG-INFO"}


def test_the_wheel_has_the_tracked_files_of_the_package(checkout: Path, built: Path) -> None:
    (path,) = built.glob("pubsub_broker-*.whl")
    with ZipFile(path) as archive:
        listed = archive.namelist()
    names = {name for name in listed if ".dist-info/" not in name}
    data = {name for name in names if ".data/" in name}
    assert names - data == {name for name in tracked(checkout) if IN_WHEEL.match(name)}
    shared = {
        name.removeprefix("docs/deploy/")
        for name in tracked(checkout)
        if name == "docs/deploy/pubsub.toml" or name.startswith("docs/deploy/systemd/")
    }
    assert {name.partition("/data/share/pubsub/")[2] for name in data} == shared
    licenses = {name for name in tracked(checkout) if Path(name).name == "LICENSE"}
    found = [name.partition(".dist-info/licenses/")[2] for name in listed]
    assert {name for name in found if name} == licenses


def test_a_wheel_built_from_the_sdist_is_the_same(built: Path, tmp_path: Path) -> None:
    (sdist,) = built.glob("pubsub_broker-*.tar.gz")
    (wheel,) = built.glob("pubsub_broker-*.whl")
    with tarfile.open(sdist) as archive:
        # Python 3.11.4 has the first filters.
        archive.extraction_filter = getattr(tarfile, "data_filter", None)
        archive.extractall(tmp_path)
    (source,) = tmp_path.iterdir()
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel"],
        cwd=source,
        env={**os.environ, "PUBSUB_COMPILE": "0"},
        check=True,
        timeout=TIMEOUT,
    )
    (again,) = (source / "dist").glob("*.whl")
    with ZipFile(wheel) as first, ZipFile(again) as second:
        assert sorted(first.namelist()) == sorted(second.namelist())


class Installation:
    """A virtual environment with the wheel; its dependencies are those of the tests."""

    def __init__(self, directory: Path, wheel: Path) -> None:
        venv.create(directory, with_pip=False)
        self.python = directory / "bin" / "python"
        (self.packages,) = directory.glob("lib/python*/site-packages")
        # Files of this kind in that directory are not followed, so the checkout is not found.
        (self.packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
        pip = [sys.executable, "-m", "pip", "--python", str(self.python), "install", "--quiet"]
        subprocess.run([*pip, "--no-deps", str(wheel)], check=True, timeout=TIMEOUT)

    @property
    def cache(self) -> Path:
        return self.packages / "twisted" / "plugins" / "dropin.cache"

    def run(
        self, command: Sequence[str], cwd: Path, env: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run ``command`` to its end."""
        return run_to_end(command, env, cwd)

    def twistd(self, *arguments: str) -> list[str]:
        return [str(self.python), "-P", "-c", TWISTD, *arguments]

    @property
    def pubsub(self) -> str:
        return str(self.python.with_name("pubsub"))

    @contextmanager
    def broker(self, cwd: Path) -> Iterator[tuple[int, list[str]]]:
        """Run a broker; yield the port of its API, and the list of the lines that it logs."""
        command = self.twistd(
            *("-n", "--pidfile=", "pubsub", "--store=memory"),
            *("--listen", f"cafe=tcp:0:interface={HOST}", f"--admin-port=tcp:0:interface={HOST}"),
        )
        with subprocess.Popen(
            command, cwd=cwd, env=environment(), stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            lines, port = [], 0
            for line in process.stdout:
                lines.append(line)
                if found := re.search(r"http on tcp \S+:(\d+)$", line):
                    port = int(found[1])
                if "history: " in line:
                    break
            try:
                yield port, lines
            finally:
                process.terminate()
                lines += process.stdout


@pytest.fixture(scope="module")
def installed(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Installation:
    (wheel,) = built.glob("pubsub_broker-*.whl")
    return Installation(tmp_path_factory.mktemp("installed") / "venv", wheel)


def test_an_installed_broker_serves_the_command(installed: Installation, tmp_path: Path) -> None:
    where = installed.run(
        [str(installed.python), "-P", "-c", "import pubsub; print(pubsub.__file__)"], tmp_path
    )
    assert where.stdout.startswith(str(installed.packages))
    with installed.broker(tmp_path) as (port, lines):
        url = {"PUBSUB_URL": f"http://{HOST}:{port}"}
        sent = installed.run([installed.pubsub, "pub", "greetings", "hello"], tmp_path, url)
        assert (sent.returncode, sent.stderr) == (0, "")
        read = [installed.pubsub, "sub", "greetings", "--from", "earliest", "--count", "1"]
        assert installed.run(read, tmp_path, url).stdout == "hello\n"
    assert any("stopped: 1 published" in line for line in lines)


def test_the_plugin_cache_is_written_once(installed: Installation, tmp_path: Path) -> None:
    command = [str(installed.python), "-P", "-m", "pubsub.plugin_cache"]
    result = installed.run(command, tmp_path)
    assert str(installed.cache) in result.stdout.splitlines()
    before = installed.cache.stat()
    with installed.broker(tmp_path) as (_, lines):
        pass
    after = installed.cache.stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert not any("plugin cache" in line for line in lines)


def test_the_plugin_cache_is_written_from_within_a_checkout(
    installed: Installation, checkout: Path
) -> None:
    """Python finds the plugins twice there, and Twisted takes and caches those of one place."""
    installed.cache.unlink(missing_ok=True)
    result = installed.run([str(installed.python), "-m", "pubsub.plugin_cache"], checkout)
    assert (result.returncode, len(result.stdout.splitlines())) == (0, 1)
    assert Path(result.stdout.rstrip("\n")).is_file()


def test_a_cache_that_cannot_be_written_is_reported(
    installed: Installation, tmp_path: Path
) -> None:
    installed.cache.unlink(missing_ok=True)
    # In the place of the file, as root may write everything.
    installed.cache.mkdir()
    (installed.cache / "x").touch()
    try:
        command = [str(installed.python), "-P", "-m", "pubsub.plugin_cache"]
        result = installed.run(command, tmp_path)
    finally:
        (installed.cache / "x").unlink()
        installed.cache.rmdir()
    assert result.returncode == 1
    assert f"plugin cache: {installed.cache} cannot be written" in result.stderr


class TestShadowed:
    """Another package called pubsub is found first"""

    @pytest.fixture(params=["package", "module"])
    def shadow(self, request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, str]:
        """The environment in which PyPubSub's package, or a module, is found."""
        directory = tmp_path / "shadow"
        directory.mkdir()
        if request.param == "package":
            (directory / "pubsub").mkdir()
            (directory / "pubsub" / "__init__.py").write_text("__version__ = '4.0.7'\n")
            (directory / "pubsub" / "pub.py").touch()
        else:
            (directory / "pubsub.py").touch()
        return {"PYTHONPATH": str(directory)}

    def assert_told(self, result: subprocess.CompletedProcess[str]) -> None:
        (line,) = result.stderr.splitlines()
        assert line.startswith("pubsub: the package pubsub of this broker is shadowed by /")
        assert result.returncode == 1

    def test_the_broker_says_so(
        self, installed: Installation, shadow: dict[str, str], tmp_path: Path
    ) -> None:
        command = [str(installed.python), "-c", TWISTD, "-n", "--pidfile=", "pubsub"]
        for cached in (False, True):
            if cached:
                installed.run([str(installed.python), "-m", "pubsub.plugin_cache"], tmp_path)
            else:
                installed.cache.unlink(missing_ok=True)
            self.assert_told(installed.run(command, tmp_path, shadow))
        # The protocols are found once the other package is gone.
        result = installed.run([*command, "--help"], tmp_path)
        assert "--cafe-channels" in result.stdout

    def test_without_a_cache_the_protocols_are_found_afterwards(
        self, installed: Installation, shadow: dict[str, str], tmp_path: Path
    ) -> None:
        installed.cache.unlink(missing_ok=True)
        command = [str(installed.python), "-c", TWISTD, "-n", "--pidfile=", "pubsub", "--help"]
        self.assert_told(installed.run(command, tmp_path, shadow))
        assert "--cafe-channels" in installed.run(command, tmp_path).stdout

    def test_the_command_says_so(
        self, installed: Installation, shadow: dict[str, str], tmp_path: Path
    ) -> None:
        self.assert_told(installed.run([installed.pubsub, "--help"], tmp_path, shadow))

    def test_pytest_works(
        self, installed: Installation, shadow: dict[str, str], tmp_path: Path
    ) -> None:
        (tmp_path / "test_it.py").write_text("def test_it():\n    pass\n")
        command = [str(installed.python), "-m", "pytest", "-p", "no:cacheprovider", str(tmp_path)]
        result = installed.run(command, tmp_path, shadow)
        assert result.returncode == 0, result.stdout
        assert "is shadowed by" in result.stdout
        assert "1 passed" in result.stdout


def test_another_package_in_the_same_directory_is_reported(
    installed: Installation, tmp_path: Path
) -> None:
    """PyPubSub, installed after the broker, replaces one file and adds others."""
    own, other = installed.packages / "pubsub" / "__init__.py", installed.packages / "pubsub/pub.py"
    text = own.read_text()
    own.write_text("__version__ = '4.0.7'\n")
    other.touch()
    try:
        result = installed.run([installed.pubsub, "--version"], tmp_path)
    finally:
        own.write_text(text)
        other.unlink()
    assert result.returncode == 0
    (line,) = result.stderr.splitlines()
    assert line.startswith("pubsub: PyPubSub is installed into the directory of this broker")
