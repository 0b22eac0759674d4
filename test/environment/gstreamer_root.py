# Copyright 2026 The zc_perception authors
# SPDX-License-Identifier: Apache-2.0
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.

"""
GStreamer as a distribution ships it, unpacked from Debian packages without installing.

    root = gstreamer_root.root()
    subprocess.run([...], env={**os.environ, **root.environment()})
    newer = gstreamer_root.newer_root()
    subprocess.run(newer.command('gst-launch-1.0', ...), env={**os.environ, **newer.environment()})

``build/fixtures/gstreamer`` (:data:`OWN`) has the machine's own release and the C headers;
``build/fixtures/gstreamer-1.26`` (:data:`NEWER`) has Debian 13's. Both are also kept in the user's
cache, so a second call needs no network. Plugins without their libraries are left out.

The machine's own GStreamer is not used, so that all machines test the same one. A process needs
the environment above from its start, because the dynamic linker reads it only then. The newer root
needs a newer C library, so its programs run under that root's dynamic linker. Nothing here depends
on the version of Python.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
import itertools
import os
from pathlib import Path
import shutil

from environment.console import step
from environment.debian_packages import fetch, resolve_dependency, unpack
from environment.errors import SetupError
from environment.paths import BUILD, cache_folder, locked, place, scratch_folder

FIXTURES = BUILD / 'fixtures'


@dataclass(frozen=True)
class Recipe:
    """
    The packages, libraries and plugins of a root.

    :param name: name of its folder.
    :param format: part of the cache's name; change it with the list of packages or plugins.
    :param renamed: packages with other names on other releases (``libglib2.0-0t64``): the package
        that depends on each, and how its name begins; ``?`` if some releases lack it.
    :param needed: plugins that the root must have; others are kept where present.
    :param suite: the release of Debian; empty: the machine's own. Another release brings its own C
        library and programs, and no headers.
    """

    name: str
    format: int  # noqa: A003
    size: str
    packages: tuple[str, ...]
    renamed: tuple[tuple[str, str], ...]
    plugins: tuple[str, ...]
    needed: tuple[str, ...]
    suite: str = ''


#: ``videoconvertscale`` was two plugins before 1.22.
OWN = Recipe(
    'gstreamer', 3, '17 MB',
    ('libgstreamer1.0-0', 'libgstreamer-plugins-base1.0-0', 'gstreamer1.0-plugins-base',
     'gstreamer1.0-plugins-good', 'gstreamer1.0-plugins-bad', 'gstreamer1.0-plugins-ugly',
     'libgstreamer-plugins-bad1.0-0', 'libgstreamer1.0-dev', 'libgstreamer-plugins-base1.0-dev',
     'libglib2.0-dev', 'libgudev-1.0-0', 'libdrm2', 'libffi8', 'libpcre2-8-0'),
    (('libgstreamer1.0-0', 'libglib2.0-0'), ('libgstreamer1.0-0', 'libdw1?'),
     ('libgstreamer1.0-0', 'libunwind8?'), ('libdw1?', 'libelf1?'),
     ('libgstreamer-plugins-base1.0-0', 'liborc-0.4-0'), ('gstreamer1.0-plugins-good', 'libv4l-0'),
     ('libv4l-0', 'libv4lconvert0'), ('libv4lconvert0', 'libjpeg'),
     ('libglib2.0-dev', 'libgio-2.0-dev?'), ('gstreamer1.0-plugins-ugly', 'libx264-'),
     ('gstreamer1.0-plugins-bad', 'libopenh264-')),
    ('app', 'audiotestsrc', 'coreelements', 'jpeg', 'multifile', 'openh264', 'playback',
     'rawparse', 'typefindfunctions', 'video4linux2', 'videocrop', 'videofilter', 'videorate',
     'videoconvertscale', 'videoconvert', 'videoparsersbad', 'videoscale', 'videotestsrc', 'x264'),
    ('app', 'coreelements', 'video4linux2', 'videotestsrc', 'videoparsersbad', 'x264'),
)  # fmt: skip
NEWER = Recipe(
    'gstreamer-1.26', 1, '19 MB',
    ('gstreamer1.0-tools', 'libgstreamer1.0-0', 'libgstreamer-plugins-base1.0-0',
     'gstreamer1.0-plugins-base', 'gstreamer1.0-plugins-good', 'gstreamer1.0-plugins-bad',
     'gstreamer1.0-plugins-ugly', 'libgstreamer-plugins-bad1.0-0', 'libatomic1', 'libblkid1',
     'libbz2-1.0', 'libc6', 'libcap2', 'libdrm2', 'libdw1t64', 'libelf1t64', 'libffi8',
     'libgcc-s1', 'libglib2.0-0t64', 'liblzma5', 'libmount1', 'libopenh264-8', 'liborc-0.4-0t64',
     'libpcre2-8-0', 'libselinux1', 'libstdc++6', 'libunwind8', 'libx264-164', 'libzstd1',
     'zlib1g'),
    (),
    ('app', 'coreelements', 'openh264', 'rawparse', 'typefindfunctions', 'unixfd',
     'videoconvertscale', 'videoparsersbad', 'videorate', 'videotestsrc', 'x264'),
    ('app', 'coreelements', 'openh264', 'unixfd', 'videoconvertscale', 'videoparsersbad',
     'videotestsrc', 'x264'),
    suite='trixie',
)  # fmt: skip


@dataclass(frozen=True)
class GStreamerRoot:
    folder: Path

    @property
    def libraries(self) -> Path:
        return self.folder / 'lib'

    def environment(self, plugins: Path | None = None) -> dict[str, str]:
        """Return the environment of a process; *plugins* is a folder with further plugins."""
        registry = self.folder.with_name(f'{self.folder.name}-registry.bin')
        own_programs = (self.folder / 'bin').is_dir()
        return {
            **({} if own_programs else {'LD_LIBRARY_PATH': str(self.libraries)}),
            'GST_PLUGIN_SYSTEM_PATH_1_0': str(self.folder / 'plugins'),
            'GST_PLUGIN_PATH_1_0': '' if plugins is None else str(plugins),
            'GST_PLUGIN_SCANNER_1_0': str(self.folder / 'gst-plugin-scanner'),
            # GStreamer would start the plugin scanner without the dynamic linker that it needs.
            **({'GST_REGISTRY_FORK': 'no'} if own_programs else {}),
            'GST_REGISTRY_1_0': str(registry if plugins is None else plugins / 'registry.bin'),
            # Fixed for tests: they compare messages, and must not read typefinders in the home
            # folder.
            'LC_ALL': 'C.UTF-8',
        }

    def command(self, program: str, *arguments: str) -> list[str]:
        """Return a command line with the newer root's libraries, for its own program or a path."""
        (linker,) = self.libraries.glob('ld-linux*.so.*')
        own = self.folder / 'bin' / program
        path = str(own if own.is_file() else program)
        how = ('--library-path', str(self.libraries), '--argv0', path)
        return [str(linker), *how, path, *arguments]

    def compiler_arguments(self) -> list[str]:
        include = self.folder / 'include'
        parts = ('gstreamer-1.0', 'glib-2.0', 'glib-2.0-config')
        libraries = ('gstreamer-1.0', 'gstbase-1.0', 'gstvideo-1.0', 'gstallocators-1.0',
                     'gobject-2.0', 'glib-2.0')  # fmt: skip
        return [
            *(f'-I{include / part}' for part in parts),
            *(str(self.libraries / f'lib{name}.so.0') for name in libraries),
            f'-Wl,-rpath-link,{self.libraries}',
        ]


def root() -> GStreamerRoot:
    """Return the root of the machine's own release; raise SetupError if it can't be fetched."""
    return _made(OWN)


def newer_root() -> GStreamerRoot:
    """Return the root with GStreamer 1.26; see :func:`root`."""
    return _made(NEWER)


def _made(recipe: Recipe) -> GStreamerRoot:
    target, cached = FIXTURES / recipe.name, cache_folder() / f'{recipe.name}-{recipe.format}'

    def complete() -> bool:
        stamp = target / 'complete'
        return stamp.is_file() and stamp.read_text() == str(recipe.format)

    if not complete():
        lock = cache_folder() / f'{recipe.name}.lock'
        with locked(lock, f'waiting for another fetch of GStreamer (it holds {lock})'):
            if not cached.is_dir():
                fetch_root(recipe, cached)
            if not complete():
                place(cached, target)
    return GStreamerRoot(target)


def fetch_root(recipe: Recipe, into: Path) -> None:
    """Download the packages and keep the needed files in the folder *into*."""
    with (
        step(f"fetching {recipe.name} from Debian's packages ({recipe.size})"),
        scratch_folder(into.parent) as scratch,
    ):
        renamed: dict[str, str] = {}
        for package, prefix in recipe.renamed:
            if of := renamed.get(package, package):
                optional = prefix.endswith('?')
                renamed[prefix] = resolve_dependency(of, prefix.rstrip('?'), optional=optional)
        names = [*recipe.packages, *filter(None, renamed.values())]
        # The package libjpeg8 is empty and depends on the real one.
        names = [name if name != 'libjpeg8' else 'libjpeg-turbo8' for name in names]
        for deb in fetch(names, scratch / 'debs', suite=recipe.suite):
            unpack(deb, scratch / 'tree')
        kept = scratch / 'kept'
        _keep(recipe, scratch / 'tree', kept)
        (kept / 'complete').write_text(str(recipe.format))
        os.replace(kept, into)


def _keep(recipe: Recipe, tree: Path, kept: Path) -> None:
    libraries = _only(sorted((tree / 'usr/lib').glob('*-linux-gnu*')), 'usr/lib/*-linux-gnu*')
    for name in ('lib', 'plugins'):
        (kept / name).mkdir(parents=True)
    folders = [libraries, *(tree / 'lib').glob('*-linux-gnu*')]
    patterns = ('lib*.so.*', 'ld-linux*.so.*') if recipe.suite else ('lib*.so.*',)
    found = [sorted(folder.glob(pattern)) for folder in folders for pattern in patterns]
    for library in itertools.chain(*found):
        # Versioned names are links to one file; keep it under the name that the linker looks for.
        stem, _, version = library.name.partition('.so.')
        target = kept / 'lib' / f'{stem}.so.{version.split(".")[0]}'
        if not target.exists():
            shutil.copy(library.resolve(), target)
    for plugin in recipe.plugins:
        file = libraries / f'gstreamer-1.0/libgst{plugin}.so'
        if file.is_file():
            shutil.copyfile(file, kept / 'plugins' / file.name)
        elif plugin in recipe.needed:
            raise SetupError(
                f"Debian's packages have no GStreamer plugin {plugin!r}; they have been rearranged"
            )
    scanner = _only(sorted(libraries.rglob('gst-plugin-scanner')), 'gst-plugin-scanner')
    shutil.copy(scanner, kept / 'gst-plugin-scanner')
    if recipe.suite:
        (kept / 'bin').mkdir()
        for program in ('gst-launch-1.0', 'gst-inspect-1.0'):
            shutil.copy(tree / 'usr/bin' / program, kept / 'bin' / program)
        return
    for name in ('gstreamer-1.0', 'glib-2.0'):
        shutil.copytree(tree / 'usr/include' / name, kept / 'include' / name)
    shutil.copytree(libraries / 'glib-2.0/include', kept / 'include/glib-2.0-config')


def _only(found: list[Path], what: str) -> Path:
    if len(found) != 1:
        raise SetupError(
            f"Debian's packages have {len(found)} of {what}, not one; they have been rearranged"
        )
    return found[0]


def with_environment(environment: Mapping[str, str]) -> dict[str, str]:
    return {**os.environ, **environment}
