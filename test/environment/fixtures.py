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
Fetches the files that tests need and the repository does not contain.

    python3 test/environment/fixtures.py

``build/fixtures/vtest.avi``: people walking, 768x576, 795 frames, from the Debian package
opencv-doc. As the package has 95 MB, the video is kept in the user's cache for the next clone.

``build/fixtures/headers``: the distribution's headers with the names of pixel formats, which may
be older than the package's formats.

``build/fixtures/gstreamer`` and ``build/fixtures/gstreamer-1.26``: see ``gstreamer_root.py``.

``build/fixtures/libturbojpeg.so.0``, where the machine has none: Debian's. Once a process has
loaded the library, the dynamic linker finds it by name, so the package under test loads it as on
any machine.
"""

from __future__ import annotations

from collections.abc import Callable
import ctypes
import functools
import os
from pathlib import Path
import sys

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from environment import gstreamer_root  # noqa: E402
from environment.console import step  # noqa: E402
from environment.debian_packages import AptError, fetch, unpack_member  # noqa: E402
from environment.errors import SetupError  # noqa: E402
from environment.paths import BUILD, cache_folder, locked, place, scratch_folder  # noqa: E402

FIXTURES = BUILD / 'fixtures'
VIDEO = 'vtest.avi'
LIBTURBOJPEG = 'libturbojpeg.so.0'
#: The package of each header, and the end of the header's path in it.
HEADERS = {
    'drm_fourcc.h': ('libdrm-dev', '/libdrm/drm_fourcc.h'),
    'videodev2.h': ('linux-libc-dev', '/linux/videodev2.h'),
    'video-format.h': ('libgstreamer-plugins-base1.0-dev', '/gst/video/video-format.h'),
    'video-color.h': ('libgstreamer-plugins-base1.0-dev', '/gst/video/video-color.h'),
}


def kept(name: str, fetch_to: Callable[[Path], None], cache: str = 'fixtures') -> Path:
    """
    Return a file of :data:`FIXTURES`, from this tree, the user's cache, or freshly fetched.

    :param cache: the folder of the user's cache.
    """
    target, cached = FIXTURES / name, cache_folder() / cache / Path(name).name
    if not target.is_file():
        lock = cached.with_name(f'{cached.name}.lock')
        with locked(lock, f'waiting for another fetch of {name} (it holds {lock})'):
            if not cached.is_file():
                with scratch_folder(cached.parent) as scratch:
                    fetch_to(scratch / cached.name)
                    os.replace(scratch / cached.name, cached)
        place(cached, target)
    return target


def _member(package: str, path: str, size: str) -> Callable[[Path], None]:
    """Return a function that fetches a package and extracts one file from it."""

    def fetch_to(target: Path) -> None:
        with step(f"fetching {target.name} from Debian's {package} ({size})"):
            (deb,) = fetch([package], target.parent)
            unpack_member(deb, f'*{path}', target)

    return fetch_to


def video() -> Path:
    return kept(VIDEO, _member('opencv-doc', f'/{VIDEO}', '95 MB'))


def headers() -> dict[str, Path]:
    return {
        name: kept(f'headers/{name}', _member(*source, '1 to 2 MB'), 'headers')
        for name, source in HEADERS.items()
    }


@functools.cache
def load_turbojpeg() -> ctypes.CDLL:
    """Load libturbojpeg into this process; raise SetupError if it can't be fetched."""
    try:
        return ctypes.CDLL(LIBTURBOJPEG)
    except OSError:
        return ctypes.CDLL(str(kept(LIBTURBOJPEG, _fetch_turbojpeg)))


def _fetch_turbojpeg(target: Path) -> None:
    with step(f'fetching {LIBTURBOJPEG} from its Debian package (0.2 MB)'):
        try:
            (deb,) = fetch(['libturbojpeg0'], target.parent)
        except AptError:
            (deb,) = fetch(['libturbojpeg'], target.parent)  # its name in Ubuntu
        # The library's name is a link to the file with the full version.
        unpack_member(deb, '*/libturbojpeg.so.0.*', target)


def main() -> int:
    try:
        video()
        headers()
        load_turbojpeg()
        gstreamer_root.root()
        gstreamer_root.newer_root()
    except SetupError as error:
        print(f'\n{error}', file=sys.stderr)
        return 1
    return 0


if __name__ == '__main__':
    sys.exit(main())
