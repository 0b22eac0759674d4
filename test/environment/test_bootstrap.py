"""The set-up's own logic: what is stale, what is missing, which Debian package is meant."""

from __future__ import annotations

import io
import subprocess
import sys
import tarfile
import threading
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from environment import bootstrap, console, debian_packages, fixtures, paths, prerequisites
from environment.errors import SetupError
from environment.layers import Layer, content_key, keys, read_record, stale_layers, write_record

KERNEL_LISTING = """\
linux-image-6.12-amd64
  Depends: linux-base
 |Depends: linux-image-6.12.117+deb12-amd64
  Depends: <linux-image-unsigned>
    linux-image-6.12.117+deb12-amd64-unsigned
  Recommends: linux-image-rescue
"""


@pytest.fixture
def stack(tmp_path: Path) -> tuple[Layer, ...]:
    """Return three layers, each with one input file."""

    def layer(name: str) -> Layer:
        file = tmp_path / name
        file.write_text(name)
        return Layer(name, (file,), lambda: None)

    return layer("wheels"), layer("interfaces"), layer("package")


def names(layers: list[Layer]) -> list[str]:
    return [layer.name for layer in layers]


def test_nothing_is_stale_after_everything_was_recorded(stack: tuple[Layer, ...]) -> None:
    assert stale_layers(stack, keys(stack, "3.11"), keys(stack, "3.11")) == []


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ("wheels", ["wheels", "interfaces", "package"]),
        ("interfaces", ["interfaces", "package"]),
        ("package", ["package"]),
    ],
)
def test_a_change_makes_its_layer_and_those_above_stale(
    stack: tuple[Layer, ...], tmp_path: Path, changed: str, expected: list[str]
) -> None:
    recorded = keys(stack, "3.11")
    (tmp_path / changed).write_text("other")
    assert names(stale_layers(stack, keys(stack, "3.11"), recorded)) == expected


def test_another_interpreter_makes_everything_stale(stack: tuple[Layer, ...]) -> None:
    assert names(stale_layers(stack, keys(stack, "3.12"), keys(stack, "3.11"))) == ["wheels", "interfaces", "package"]


def test_an_interrupted_set_up_goes_on_at_the_layer_that_was_not_recorded(stack: tuple[Layer, ...]) -> None:
    recorded = keys(stack, "3.11")
    del recorded["interfaces"], recorded["package"]
    assert names(stale_layers(stack, keys(stack, "3.11"), recorded)) == ["interfaces", "package"]


def test_the_key_tells_apart_where_one_file_ends_and_the_next_begins(tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    first.write_text("xy")
    second.write_text("z")
    before = content_key([first, second], "")
    first.write_text("x")
    second.write_text("yz")
    assert content_key([first, second], "") != before


def test_a_file_that_appears_changes_the_key(tmp_path: Path) -> None:
    before = content_key([tmp_path / "setup.cfg"], "")
    (tmp_path / "setup.cfg").touch()
    assert content_key([tmp_path / "setup.cfg"], "") != before


@pytest.mark.parametrize("content", ["", "{", "[1]", '"text"'])
def test_a_damaged_record_counts_as_none(tmp_path: Path, content: str) -> None:
    record = tmp_path / "record.json"
    record.write_text(content)
    assert read_record(record) == {}


def test_a_record_comes_back_as_it_was_written(tmp_path: Path) -> None:
    write_record(tmp_path / "record.json", {"wheels": "1"})
    assert read_record(tmp_path / "record.json") == {"wheels": "1"}
    assert [path.name for path in tmp_path.iterdir()] == ["record.json"]


def test_a_half_made_environment_is_discarded_and_a_foreign_folder_is_not(tmp_path: Path) -> None:
    half_made = tmp_path / "half"
    half_made.mkdir()
    write_record(half_made / "zc_layers.json", {})
    (half_made / "lib").mkdir()
    bootstrap.discard(half_made)
    assert not half_made.exists()

    (tmp_path / "thesis.txt").touch()
    with pytest.raises(SetupError, match="no Python environment"):
        bootstrap.discard(tmp_path)
    assert (tmp_path / "thesis.txt").exists()


def test_every_distribution_has_requirements_and_an_environment_of_its_own() -> None:
    assert len(set(bootstrap.VENV_OF_DISTRO.values())) == len(bootstrap.VENV_OF_DISTRO)
    for distro in bootstrap.VENV_OF_DISTRO:
        for file in bootstrap.Environment(distro, Path("venv")).requirements:
            assert file.is_file()


def test_missing_prerequisites_are_named_with_the_command_that_installs_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    apt = tmp_path / "apt-get"
    apt.write_text("#!/bin/sh\nexit 0\n")
    apt.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(prerequisites.os, "geteuid", lambda: 1000)
    with pytest.raises(SetupError) as raised:
        prerequisites.ensure(tmp_path / "log")
    message = str(raised.value)
    assert "gcc: a C compiler" in message and "g++: a C++ compiler" in message
    assert "sudo apt-get install --yes --no-install-recommends gcc libc6-dev g++" in message


def test_an_old_python_is_refused_with_a_newer_one_on_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    newer = tmp_path / "python3.12"
    newer.touch()
    newer.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(prerequisites.sys, "version_info", (3, 9, 2))
    with pytest.raises(SetupError, match=r"make PYTHON=python3\.12"):
        prerequisites.check_python()


def test_a_failed_command_shows_the_end_of_its_output(tmp_path: Path) -> None:
    script = "import sys; print('first'); [print(n) for n in range(100)]; sys.exit('no matching distribution')"
    with pytest.raises(SetupError) as raised:
        console.run_logged([sys.executable, "-c", script], tmp_path / "log", tmp_path)
    assert "status 1" in str(raised.value) and "no matching distribution" in str(raised.value)
    assert "first" not in str(raised.value).split("\n  ", 1)[1]


def test_a_command_does_not_see_another_ros(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AMENT_PREFIX_PATH", "/opt/ros/humble")
    script = "import os; assert '/opt/ros/humble' not in os.environ.get('AMENT_PREFIX_PATH', '')"
    console.run_logged([sys.executable, "-c", script], tmp_path / "log", tmp_path)


def test_a_second_set_up_waits_for_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order = []
    said: list[str] = []
    entered, told = threading.Event(), threading.Event()
    monkeypatch.setattr(paths, "print", lambda text, **_: (said.append(text), told.set()), raising=False)

    def first() -> None:
        with paths.locked(tmp_path / "lock", "busy"):
            entered.set()
            told.wait(60.0)
            threading.Event().wait(0.1)
            order.append("first")

    thread = threading.Thread(target=first)
    thread.start()
    entered.wait()
    with paths.locked(tmp_path / "lock", "busy"):
        order.append("second")
    thread.join()
    assert order == ["first", "second"]
    assert said == ["busy"]


def test_the_cache_falls_back_to_the_tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "BUILD", tmp_path / "build")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache dir"))
    assert paths.cache_folder() == tmp_path / "cache dir/zc_perception"
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert paths.cache_folder() == tmp_path / "build/cache"


def test_a_meta_package_is_resolved_to_the_concrete_one() -> None:
    found = debian_packages.parse_dependency(KERNEL_LISTING, "linux-image-6.12-amd64", "linux-image-6")
    assert found == "linux-image-6.12.117+deb12-amd64"


def test_an_unresolved_dependency_says_what_there_is() -> None:
    with pytest.raises(debian_packages.AptError, match=r"no linux-headers-\*, but on linux-base"):
        debian_packages.parse_dependency(KERNEL_LISTING, "linux-image-6.12-amd64", "linux-headers-")


def test_a_virtual_package_is_no_dependency_to_download() -> None:
    with pytest.raises(debian_packages.AptError):
        debian_packages.parse_dependency("meta\n  Depends: <virtual>\n", "meta", "virtual")


def test_without_apt_the_error_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(debian_packages.AptError, match="apt-get is not on this machine"):
        debian_packages.fetch(["busybox-static"], tmp_path)


def test_stale_system_lists_make_it_fetch_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An apt that fails with the system's lists and, after its own update, works."""
    calls = tmp_path / "calls"
    apt = tmp_path / "bin/apt-get"
    apt.parent.mkdir()
    apt.write_text(
        "#!/bin/sh\n"
        f'echo "$*" >> "{calls}"\n'
        'case "$*" in *Dir::State=*update*) exit 0;; *Dir::State=*download*) : > "tool_1.0_all.deb";;\n'
        "*) echo 'E: Unable to locate package tool' >&2; exit 100;; esac\n"
    )
    apt.chmod(0o755)
    monkeypatch.setenv("PATH", f"{apt.parent}:/usr/bin:/bin")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert debian_packages.fetch(["tool"], tmp_path / "into") == [tmp_path / "into/tool_1.0_all.deb"]
    assert [line.split()[-1] for line in calls.read_text().splitlines()] == ["tool", "update", "tool"]


def test_one_file_is_taken_out_of_a_package(tmp_path: Path) -> None:
    deb = make_deb(tmp_path, {"usr/share/doc/examples/vtest.avi": b"RIFF", "usr/share/other.txt": b"no"})
    debian_packages.unpack_member(deb, "*/vtest.avi", tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == b"RIFF"
    with pytest.raises(debian_packages.AptError, match="/absent"):
        debian_packages.unpack_member(deb, "*/absent", tmp_path / "out")
    debian_packages.unpack(deb, tmp_path / "tree")
    assert (tmp_path / "tree/usr/share/other.txt").read_bytes() == b"no"


def make_deb(folder: Path, files: dict[str, bytes]) -> Path:
    """Write a Debian package by hand: an ar archive of a version file and two tar archives."""

    def tar(members: dict[str, bytes]) -> bytes:
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
            for name, content in members.items():
                info = tarfile.TarInfo(f"./{name}")
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
        return buffer.getvalue()

    control = b"Package: test\nVersion: 1\nArchitecture: all\nMaintainer: nobody\nDescription: test\n"
    parts = {"debian-binary": b"2.0\n", "control.tar.gz": tar({"control": control}), "data.tar.gz": tar(files)}
    deb = folder / "test_1_all.deb"
    with open(deb, "wb") as file:
        file.write(b"!<arch>\n")
        for name, content in parts.items():
            file.write(f"{name:<16}{0:<12}{0:<6}{0:<6}{'100644':<8}{len(content):<10}`\n".encode())
            file.write(content + b"\n" * (len(content) % 2))
    return deb


def test_the_video_comes_from_the_cache_without_a_fetch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cached = tmp_path / "cache/zc_perception/fixtures/vtest.avi"
    cached.parent.mkdir(parents=True)
    cached.write_bytes(b"RIFF")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(fixtures, "FIXTURES", tmp_path / "build/fixtures")
    monkeypatch.setattr(fixtures, "fetch", lambda *_: pytest.fail("fetched although cached"))
    assert fixtures.video().read_bytes() == b"RIFF"


def test_make_without_a_target_says_what_there_is() -> None:
    output = subprocess.run(["make", "-C", str(paths.ROOT)], capture_output=True, text=True, check=True).stdout
    assert "make demo" in output and "make test" in output
