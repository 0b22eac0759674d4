"""GStreamer as a distribution ships it, from Debian packages that are unpacked and not installed.

    root = gstreamer_root.root()
    subprocess.run([...], env={**os.environ, **root.environment()})

The libraries, a dozen plugins and the C headers lie in ``build/fixtures/gstreamer`` (11 MB to download, 40 MB unpacked), and in the
user's cache for the next clone: a second call needs no network. Of the plugins only those are kept whose libraries are there as well.
Whatever GStreamer the machine has is not used, so that tests see the same one everywhere; its processes need the environment above
from their start, because the dynamic linker reads it only then. Nothing here depends on the version of Python.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from environment.console import step
from environment.debian_packages import fetch, resolve_dependency, unpack
from environment.errors import SetupError
from environment.paths import BUILD, cache_folder, locked, scratch_folder

ROOT = BUILD / 'fixtures/gstreamer'
REGISTRY = BUILD / 'fixtures/gstreamer-registry.bin'
#: Part of the cache's name: another list of packages or plugins is another root.
FORMAT = 2
PACKAGES = (
    "libgstreamer1.0-0", "libgstreamer-plugins-base1.0-0", "gstreamer1.0-plugins-base", "gstreamer1.0-plugins-good",
    "libgstreamer1.0-dev", "libgstreamer-plugins-base1.0-dev", "libglib2.0-dev", "libgudev-1.0-0", "libv4l-0", "libv4lconvert0",
    "liborc-0.4-0", "libdrm2", "libffi8", "libpcre2-8-0",
)  # fmt: skip
#: Libraries whose packages are called otherwise on other releases (``libglib2.0-0t64``): who depends on them, how their names begin.
RENAMED = (
    ("libgstreamer1.0-0", "libglib2.0-0"), ("libgstreamer1.0-0", "libdw1"), ("libgstreamer1.0-0", "libunwind8"), ("libdw1", "libelf1"),
    ("libv4lconvert0", "libjpeg"),
)  # fmt: skip
PLUGINS = (
    "app", "audiotestsrc", "coreelements", "jpeg", "multifile", "playback", "rawparse",
    "typefindfunctions", "video4linux2", "videocrop", "videofilter", "videorate",
    "videoconvertscale", "videoconvert", "videoscale", "videotestsrc",
)  # fmt: skip
#: Without these a root is of no use; ``videoconvertscale`` was two plugins before 1.22.
NEEDED = ('app', 'coreelements', 'video4linux2', 'videotestsrc')


@dataclass(frozen=True)
class GStreamerRoot:
    """An unpacked GStreamer."""

    folder: Path

    @property
    def libraries(self) -> Path:
        """The folder with the shared libraries, flat."""
        return self.folder / 'lib'

    def environment(self, plugins: Path | None = None) -> dict[str, str]:
        """What a process needs from its start; *plugins* is a folder with more of them."""
        return {
            'LD_LIBRARY_PATH': str(self.libraries),
            'GST_PLUGIN_SYSTEM_PATH_1_0': str(self.folder / 'plugins'),
            'GST_PLUGIN_PATH_1_0': '' if plugins is None else str(plugins),
            'GST_PLUGIN_SCANNER_1_0': str(self.folder / 'gst-plugin-scanner'),
            'GST_REGISTRY_1_0': str(REGISTRY if plugins is None else plugins / 'registry.bin'),
            # A test's messages are compared, and nobody is to look for typefinders at home.
            'LC_ALL': 'C.UTF-8',
        }

    def compiler_arguments(self) -> list[str]:
        """What gcc needs to compile and link against it."""
        include = self.folder / 'include'
        libraries = (
            'gstreamer-1.0',
            'gstbase-1.0',
            'gstvideo-1.0',
            'gstallocators-1.0',
            'gobject-2.0',
            'glib-2.0',
        )
        found = [next(self.libraries.glob(f'lib{name}.so.0')) for name in libraries]
        return [
            *(f'-I{include / part}' for part in ('gstreamer-1.0', 'glib-2.0', 'glib-2.0-config')),
            *map(str, found),
            f'-Wl,-rpath-link,{self.libraries}',
        ]


def root() -> GStreamerRoot:
    """Return the root, fetching it when neither this tree nor the cache has it.

    :raises SetupError: the packages can't be fetched here; the message says why.
    """
    stamp = ROOT / 'complete'
    if not (stamp.is_file() and stamp.read_text() == str(FORMAT)):
        cached = cache_folder() / f'gstreamer-{FORMAT}'
        lock = cache_folder() / 'gstreamer.lock'
        with locked(lock, f'waiting for another fetch of GStreamer (it holds {lock})'):
            if not cached.is_dir():
                fetch_root(cached)
            if not (stamp.is_file() and stamp.read_text() == str(FORMAT)):
                _place(cached, ROOT)
    return GStreamerRoot(ROOT)


def fetch_root(into: Path) -> None:
    """Download the packages and keep what is needed of them as the folder *into*."""
    with (
        step("fetching GStreamer from Debian's packages (11 MB)"),
        scratch_folder(into.parent) as scratch,
    ):
        names = [*PACKAGES, *(resolve_dependency(meta, prefix) for meta, prefix in RENAMED)]
        # libjpeg comes as an empty package that depends on the real one.
        names = [name if name != 'libjpeg8' else 'libjpeg-turbo8' for name in names]
        for deb in fetch(names, scratch / 'debs'):
            unpack(deb, scratch / 'tree')
        kept = scratch / 'kept'
        _keep(scratch / 'tree', kept)
        (kept / 'complete').write_text(str(FORMAT))
        os.replace(kept, into)


def _keep(tree: Path, kept: Path) -> None:
    libraries = _only(sorted((tree / 'usr/lib').glob('*-linux-gnu*')), 'usr/lib/*-linux-gnu*')
    for name in ('lib', 'plugins', 'include'):
        (kept / name).mkdir(parents=True)
    folders = [libraries, *(tree / 'lib').glob('*-linux-gnu*')]
    for library in (path for folder in folders for path in sorted(folder.glob('lib*.so.*'))):
        # Versioned names are links to the file; one file by the name that the linker looks for is enough.
        target = kept / 'lib' / _soname(library.name)
        if not target.exists():
            shutil.copyfile(library.resolve(), target)
    for plugin in PLUGINS:
        file = libraries / f'gstreamer-1.0/libgst{plugin}.so'
        if file.is_file():
            shutil.copyfile(file, kept / 'plugins' / file.name)
        elif plugin in NEEDED:
            raise SetupError(
                f"Debian's packages have no GStreamer plugin {plugin!r}; they have been rearranged"
            )
    scanner = _only(sorted(libraries.rglob('gst-plugin-scanner')), 'gst-plugin-scanner')
    shutil.copy(scanner, kept / 'gst-plugin-scanner')
    for name in ('gstreamer-1.0', 'glib-2.0'):
        shutil.copytree(tree / 'usr/include' / name, kept / 'include' / name)
    shutil.copytree(libraries / 'glib-2.0/include', kept / 'include/glib-2.0-config')


def _soname(name: str) -> str:
    """``libgstapp-1.0.so.0`` of ``libgstapp-1.0.so.0.2200.0``."""
    stem, _, version = name.partition('.so.')
    return f'{stem}.so.{version.split(".")[0]}'


def _only(found: list[Path], what: str) -> Path:
    if len(found) != 1:
        raise SetupError(
            f"Debian's packages have {len(found)} of {what}, not one; they have been rearranged"
        )
    return found[0]


def _place(source: Path, target: Path) -> None:
    """Copy *source* to *target* so that *target* is either whole or absent."""
    with scratch_folder(target.parent) as scratch:
        shutil.copytree(source, scratch / 'copy')
        if target.exists():
            os.replace(target, scratch / 'old')
        os.replace(scratch / 'copy', target)


def with_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """This process's environment, with *environment* on top."""
    return {**os.environ, **environment}
