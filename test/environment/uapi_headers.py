"""The headers that name pixel formats, from Debian packages that are unpacked and not installed.

    drm_fourcc = uapi_headers.headers()["drm_fourcc.h"]

They lie in ``build/fixtures/headers``, and in the user's cache for the next clone: a second call needs no network. They are the
distribution's own, so they may be older than the formats that the package knows.
"""

from __future__ import annotations

import os
from pathlib import Path

from environment.console import step
from environment.debian_packages import fetch, unpack_member
from environment.paths import BUILD, cache_folder, locked, place, scratch_folder

HEADERS = BUILD / "fixtures/headers"
#: Each header's package, and the end of its path in there.
SOURCES = {
    "drm_fourcc.h": ("libdrm-dev", "/libdrm/drm_fourcc.h"),
    "videodev2.h": ("linux-libc-dev", "/linux/videodev2.h"),
    "video-format.h": ("libgstreamer-plugins-base1.0-dev", "/gst/video/video-format.h"),
    "video-color.h": ("libgstreamer-plugins-base1.0-dev", "/gst/video/video-color.h"),
}


def headers() -> dict[str, Path]:
    """Return the headers' paths by name, fetching those that neither this tree nor the cache has."""
    cache = cache_folder() / "headers"
    missing = [name for name in SOURCES if not (HEADERS / name).is_file()]
    if missing:
        lock = cache_folder() / "headers.lock"
        with locked(lock, f"waiting for another fetch of headers (it holds {lock})"):
            if not all((cache / name).is_file() for name in missing):
                fetch_headers(cache)
        for name in missing:
            place(cache / name, HEADERS / name)
    return {name: HEADERS / name for name in SOURCES}


def fetch_headers(into: Path) -> None:
    """Download the packages and keep the headers."""
    packages = sorted({package for package, _ in SOURCES.values()})
    with step(f"fetching headers from Debian's {', '.join(packages)} (4 MB)"), scratch_folder(into) as scratch:
        debs = dict(zip(packages, fetch(packages, scratch), strict=True))
        for name, (package, path) in SOURCES.items():
            unpack_member(debs[package], f"*{path}", scratch / name)
        for name in SOURCES:
            os.replace(scratch / name, into / name)
