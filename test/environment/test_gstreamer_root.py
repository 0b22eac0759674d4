"""GStreamer's packages are fetched once for all trees of a user, whole or not at all, and what is kept runs by itself."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from environment import gstreamer_root
from environment.errors import SetupError

LIBRARY = 'usr/lib/x86_64-linux-gnu'


def contents() -> dict[str, list[str]]:
    """The files of some packages, as Debian lays them out."""
    return {
        'libgstreamer1.0-0': [
            f'{LIBRARY}/libgstreamer-1.0.so.0.2200.0',
            f'{LIBRARY}/gstreamer-1.0/libgstcoreelements.so',
            f'{LIBRARY}/gstreamer1.0/gstreamer-1.0/gst-plugin-scanner',
        ],
        'gstreamer1.0-plugins-base': [f'{LIBRARY}/gstreamer-1.0/libgst{name}.so' for name in ('app', 'videotestsrc', 'ogg')],
        'gstreamer1.0-plugins-good': [f'{LIBRARY}/gstreamer-1.0/libgstvideo4linux2.so'],
        'libgstreamer1.0-dev': ['usr/include/gstreamer-1.0/gst/gst.h'],
        'libglib2.0-dev': ['usr/include/glib-2.0/glib.h', f'{LIBRARY}/glib-2.0/include/glibconfig.h'],
    }


class Archive:
    """Stands in for apt."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.fetched: list[str] = []
        self.files = contents()

    def fetch(self, names: Sequence[str], into: Path) -> list[Path]:
        self.fetched.extend(names)
        return [self._deb(name, into) for name in names]

    def _deb(self, name: str, into: Path) -> Path:
        tree = self.folder / name
        (tree / 'DEBIAN').mkdir(parents=True, exist_ok=True)
        (tree / 'DEBIAN/control').write_text(f'Package: {name}\nVersion: 1\nArchitecture: all\nMaintainer: x <x@y>\nDescription: x\n')
        for file in self.files.get(name, []):
            (tree / file).parent.mkdir(parents=True, exist_ok=True)
            (tree / file).write_text(file)
        into.mkdir(parents=True, exist_ok=True)
        subprocess.run(['dpkg-deb', '--build', '--root-owner-group', str(tree), str(into)], check=True, capture_output=True)
        (deb,) = into.glob(f'{name}_*.deb')
        return deb


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Archive:
    """A tree and a cache with nothing in them."""
    if shutil.which('dpkg-deb') is None:
        pytest.skip('packages can be made on Debian and Ubuntu only')
    made = Archive(tmp_path / 'packages')
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
    monkeypatch.setattr(gstreamer_root, 'ROOT', tmp_path / 'build/gstreamer')
    monkeypatch.setattr(gstreamer_root, 'fetch', made.fetch)
    monkeypatch.setattr(gstreamer_root, 'resolve_dependency', lambda meta, prefix: f'{prefix}t64')
    return made


def test_what_is_needed_is_kept_and_fetched_once_for_all_trees(archive: Archive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = gstreamer_root.root()
    assert {*gstreamer_root.PACKAGES, 'libglib2.0-0t64'} <= set(archive.fetched)
    kept = {path.relative_to(root.folder).as_posix() for path in root.folder.rglob('*') if path.is_file()}
    assert kept == {
        "complete", "gst-plugin-scanner", "lib/libgstreamer-1.0.so.0", "include/gstreamer-1.0/gst/gst.h", "include/glib-2.0/glib.h",
        "include/glib-2.0-config/glibconfig.h", *(f"plugins/libgst{name}.so" for name in gstreamer_root.NEEDED),
    }  # fmt: skip
    monkeypatch.setattr(gstreamer_root, 'fetch', lambda *_: pytest.fail('fetched although cached'))
    assert gstreamer_root.root() == root
    monkeypatch.setattr(gstreamer_root, 'ROOT', tmp_path / 'other tree/gstreamer')
    assert (gstreamer_root.root().folder / 'plugins/libgstapp.so').is_file()


def test_a_part_of_a_copy_is_none(archive: Archive) -> None:
    root = gstreamer_root.root()
    (root.folder / 'complete').unlink()
    shutil.rmtree(root.folder / 'plugins')
    assert (gstreamer_root.root().folder / 'plugins/libgstapp.so').is_file()


@pytest.mark.parametrize(
    ('package', 'missing', 'words'),
    [
        ('gstreamer1.0-plugins-good', 'video4linux2', "have no GStreamer plugin 'video4linux2'"),
        ('libgstreamer1.0-0', 'gst-plugin-scanner', 'have 0 of gst-plugin-scanner, not one'),
    ],
)
def test_rearranged_packages_are_named_and_leave_nothing(archive: Archive, package: str, missing: str, words: str, tmp_path: Path) -> None:
    archive.files[package] = [file for file in archive.files[package] if missing not in file]
    with pytest.raises(SetupError, match=words):
        gstreamer_root.root()
    assert not (tmp_path / 'build/gstreamer').exists() and not list((tmp_path / 'cache/zc_perception').glob('gstreamer-*'))


def test_the_real_one_runs_without_any_gstreamer_of_the_machine() -> None:
    try:
        root = gstreamer_root.root()
    except SetupError as error:
        if os.environ.get('ZC_RIG') == 'required':
            raise
        pytest.skip(f'no GStreamer for tests here: {error}')
    program = (
        'from zc_perception.camera.gstreamer.abi import load_gstreamer; g = load_gstreamer();'
        "print(g.version[0], all(map(g.has_element, ('appsink', 'v4l2src', 'videotestsrc', 'videoconvert', 'queue'))), g.has_element('x'));"
        "lines = [line.rstrip() for line in open('/proc/self/maps') if 'libgst' in line or 'libglib' in line];"
        "print({line[line.index('/'):].rpartition('/')[0] for line in lines})"
    )
    environment = gstreamer_root.with_environment(root.environment())
    result = subprocess.run([sys.executable, '-c', program], env=environment, capture_output=True, text=True, check=True)
    version, folders = result.stdout.splitlines()
    assert version == '1 True False'
    assert folders == str({str(root.libraries), str(root.folder / 'plugins')}) or folders == str({str(root.libraries)})
