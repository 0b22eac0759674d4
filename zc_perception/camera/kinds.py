"""Which kinds of cameras there are: :data:`BUILT_IN` is where this package's are registered, one line each.

Cameras of other packages come by entry points of the group ``zc_perception.cameras``: the name is the kind, the value ``module:Class`` a
class derived from :class:`~zc_perception.camera.camera.Camera`.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

from zc_perception.entry_points import CAMERA_GROUP, load_entry_point, offered
from zc_perception.errors import ConfigError, nearest

if TYPE_CHECKING:
    from zc_perception.camera.camera import Camera

BUILT_IN: Mapping[str, str] = {
    'synthetic': 'zc_perception.camera.synthetic:SyntheticCamera',
    'replay': 'zc_perception.camera.replay.camera:ReplayCamera',
    'v4l2': 'zc_perception.camera.v4l2.camera:V4l2Camera',
    'gstreamer': 'zc_perception.camera.gstreamer.camera:GStreamerCamera',
    'argus': 'zc_perception.camera.argus:ArgusCamera',
    'libcamera': 'zc_perception.camera.libcamera:LibcameraCamera',
}
"""The class of each kind, as ``module:Class``. It is imported when it is wanted, which keeps a start short."""
CAMERAS = tuple(BUILT_IN)


def other_cameras() -> tuple[str, ...]:
    """Kinds of the cameras that other packages offer."""
    return tuple(kind for kind in offered(CAMERA_GROUP) if kind not in BUILT_IN)


def draws(kind: str) -> bool:
    """Whether a kind of this package writes its pictures with the CPU: then it needs no device, and its memory comes from the package."""
    from zc_perception.camera.camera import DrawnCamera

    return kind in BUILT_IN and issubclass(camera_class(kind), DrawnCamera)


def camera_class(kind: str) -> type[Camera]:
    """The class of a kind, imported now.

    :raises ConfigError: there is no such kind, or its package is broken.
    """
    from zc_perception.camera.camera import Camera

    if kind in BUILT_IN:
        module, _, name = BUILT_IN[kind].partition(':')
        found = getattr(importlib.import_module(module), name)
    else:
        found = load_entry_point(CAMERA_GROUP, kind)
    if found is None:
        known = (*CAMERAS, *other_cameras())
        raise ConfigError(
            f"camera '{kind}' is not known; it must be one of {', '.join(known)}{nearest(kind, known)}"
        )
    if not (isinstance(found, type) and issubclass(found, Camera)):
        raise ConfigError(
            f"camera '{kind}' is {found!r}, which is no class derived from zc_perception.camera.camera.Camera"
        )
    return found
