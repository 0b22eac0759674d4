"""Fetches the files that tests need and the repository does not hold.

    python3 test/environment/fixtures.py

``build/fixtures/vtest.avi``: people walking, 768x576, 795 frames, from the Debian package opencv-doc. The package is
95 MB, so the one file that is wanted is kept in the user's cache for the next clone.

``build/fixtures/headers``: the headers that name pixel formats, see ``uapi_headers.py``.

``build/fixtures/libturbojpeg.so.0``, where the machine has none: see ``turbojpeg.py``.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from environment.console import step
from environment.debian_packages import fetch, unpack_member
from environment.errors import SetupError
from environment.paths import BUILD, cache_folder, locked, place, scratch_folder
from environment.uapi_headers import headers

FIXTURES = BUILD / "fixtures"
VIDEO = "vtest.avi"
VIDEO_PACKAGE = "opencv-doc"


def kept(name: str, fetch_to: Callable[[Path], None]) -> Path:
    """Return a file of :data:`FIXTURES`, from the user's cache when this tree doesn't have it, fetched when neither has."""
    target, cached = FIXTURES / name, cache_folder() / "fixtures" / name
    if not target.is_file():
        lock = cached.with_name(f"{name}.lock")
        with locked(lock, f"waiting for another fetch of {name} (it holds {lock})"):
            if not cached.is_file():
                with scratch_folder(cached.parent) as scratch:
                    fetch_to(scratch / name)
                    os.replace(scratch / name, cached)
        place(cached, target)
    return target


def video() -> Path:
    """Return the video."""
    return kept(VIDEO, _fetch_video)


def _fetch_video(target: Path) -> None:
    with step(f"fetching {VIDEO} from Debian's {VIDEO_PACKAGE} (95 MB)"):
        (deb,) = fetch([VIDEO_PACKAGE], target.parent)
        unpack_member(deb, f"*/{VIDEO}", target)


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
