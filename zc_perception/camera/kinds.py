"""
Which kinds of cameras there are: one line each.

Cameras of other packages come by entry points of the group ``zc_perception.cameras``: the name is
the kind, the value ``module:Class`` a class derived from
:class:`~zc_perception.camera.camera.Camera`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from zc_perception.kinds import CAMERA_GROUP, Kinds

if TYPE_CHECKING:
    from zc_perception.camera.camera import Camera

CAMERAS: Kinds[Camera] = Kinds(
    'camera',
    CAMERA_GROUP,
    {
        'synthetic': 'zc_perception.camera.synthetic:SyntheticCamera',
        'replay': 'zc_perception.camera.replay.camera:ReplayCamera',
        'v4l2': 'zc_perception.camera.v4l2.camera:V4l2Camera',
        'gstreamer': 'zc_perception.camera.gstreamer.camera:GStreamerCamera',
        'argus': 'zc_perception.camera.argus:ArgusCamera',
        'libcamera': 'zc_perception.camera.libcamera:LibcameraCamera',
    },
    'zc_perception.camera.camera:Camera',
)
