"""Fetches the files that tests need and the repository does not hold.

    python3 test/environment/fixtures.py

``build/fixtures/vtest.avi``: people walking, 768x576, 795 frames, from the Debian package opencv-doc. The package is
95 MB, so the one file that is wanted is kept in the user's cache for the next clone.

``build/fixtures/headers``: the headers that name pixel formats, see ``uapi_headers.py``.

``build/fixtures/libturbojpeg.so.0``, where the machine has none: see ``turbojpeg.py``.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from environment.console import step
from environment.debian_packages import fetch, unpack_member
from environment.errors import SetupError
from environment.paths import BUILD, cache_folder, locked, scratch_folder
from environment.uapi_headers import headers

FIXTURES = BUILD / "fixtures"
VIDEO = "vtest.avi"
VIDEO_PACKAGE = "opencv-doc"


def video() -> Path:
    """Return the video, fetching it when neither this tree nor the cache has it."""
    target = FIXTURES / VIDEO
    if target.is_file():
        return target
    cached = cache_folder() / "fixtures" / VIDEO
    lock = cache_folder() / "fixtures.lock"
    with locked(lock, f"waiting for another fetch of {VIDEO} (it holds {lock})"):
        if not cached.is_file():
            fetch_video(cached)
    place(cached, target)
    return target


def fetch_video(target: Path) -> None:
    """Download the package and keep the video."""
    with step(f"fetching {VIDEO} from Debian's {VIDEO_PACKAGE} (95 MB)"), scratch_folder(target.parent) as scratch:
        (deb,) = fetch([VIDEO_PACKAGE], scratch)
        unpack_member(deb, f"*/{VIDEO}", scratch / VIDEO)
        os.replace(scratch / VIDEO, target)


def place(source: Path, target: Path) -> None:
    """Copy ``source`` to ``target`` so that ``target`` is either whole or absent."""
    with scratch_folder(target.parent) as scratch:
        shutil.copyfile(source, scratch / target.name)
        os.replace(scratch / target.name, target)


def main() -> int:
    """Fetch all fixtures."""
    from environment import turbojpeg  # which places its file with the functions above

    try:
        video()
        headers()
        turbojpeg.load()
    except SetupError as error:
        print(f"\n{error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
