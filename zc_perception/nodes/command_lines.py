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

"""Define options and ``--help`` of programs that run nodes; import neither ROS nor NumPy."""

from __future__ import annotations

from collections.abc import Sequence
import re

from zc_perception.camera.kinds import CAMERAS
from zc_perception.errors import ConfigError
from zc_perception.npu.kinds import ACCELERATORS, AUTO
from zc_perception.programs import NodeOptionParser

_CAMERA = {
    'camera': f'{", ".join(CAMERAS.built_in)}, or the name of a camera of another package',
    'width': "picture width; 0: the camera's own",
    'height': "picture height; 0: the camera's own",
    'framerate': "frames per second; 0: the camera's own",
    'heap': 'where the buffers come from',
}
_DETECTOR = {
    'model': 'road, hog or the path of a model.yaml, of an ONNX file or of a folder with one of '
             'them',
    'accelerator': f'{AUTO}, {", ".join(ACCELERATORS.built_in)}, or the name of an accelerator '
                   'of another package',
    'score_threshold': 'detections with a lower score are dropped',
}
_OVERLAY = {
    'scale': "size of the picture, as a fraction of the frame's size",
    'jpeg_quality': 'JPEG quality of detections/image/compressed',
}
_RECORDER = {
    'path': 'the folder to write; it has the form that ros2 bag record writes',
    'topics': 'topics that are recorded besides the frames, when somebody publishes them',
    'max_frames': 'end after this number of frames; 0: no limit',
    'max_duration': 'end after this number of seconds; 0: no limit',
}
_GSTREAMER = {
    'pipeline': 'the pipeline that gets the frames, written as for gst-launch-1.0; empty: a '
                'pipeline with an encoder, whose H.264 is published',
    'encoder': 'auto, x264enc or openh264enc; used if pipeline is empty',
    'window': 'frames that the pipeline may hold',
}
_KINDS = {
    'capture_node': {'': CAMERAS},
    'inference_node': {'': ACCELERATORS},
    'perception': {'capture:': CAMERAS, 'inference:': ACCELERATORS},
}
PROGRAMS: dict[str, tuple[str, list[str], dict[str, str]]] = {
    'capture_node': (
        'Opens one camera; publishes its frames (image_raw) and calibration (camera_info).',
        ['capture_node', 'capture_node --ros-args -p camera:=v4l2 -p device:=/dev/video0'],
        _CAMERA,
    ),
    'inference_node': (
        (
            'Runs a detector on the frames of image_raw, which this or another process publishes, '
            'and publishes the detections.'
        ),
        ['inference_node', 'inference_node --ros-args -p model:=road -p accelerator:=onnx'],
        _DETECTOR,
    ),
    'overlay_node': (
        (
            'Draws the detections into the frames and publishes detections/image while somebody '
            'subscribes to it.'
        ),
        ['overlay_node', 'overlay_node --ros-args -p scale:=0.5'],
        _OVERLAY,
    ),
    'gstreamer_node': (
        'Runs a GStreamer pipeline on the frames of image_raw, or publishes them as H.264.',
        [
            'gstreamer_node',
            "gstreamer_node --ros-args -p pipeline:='videoconvert ! autovideosink'",
        ],
        _GSTREAMER,
    ),
    'perception': (
        'Runs capture, inference and overlay in one process, for one camera or for several.',
        [
            'perception',
            'perception --ros-args -p capture:camera:=v4l2 -p capture:device:=/dev/video0',
            'perception --cameras front rear --ros-args --params-file my.yaml',
        ],
        {
            f'{node}:{name}': purpose
            for node, parameters in (
                ('capture', _CAMERA),
                ('inference', _DETECTOR),
                ('overlay', {'scale': _OVERLAY['scale']}),
            )
            for name, purpose in parameters.items()
        },
    ),
    'zc_record': (
        'Records the unchanged frames of image_raw, the detections and other topics as MCAP, '
        'without slowing the camera down. It ends at Ctrl-C, or when max_frames or max_duration '
        'is reached.',
        [
            'zc_record --ros-args -p path:=drive',
            'zc_record --ros-args -p path:=drive -p max_duration:=60.0',
            'zc_record --repair drive',
        ],
        _RECORDER,
    ),
    'component_container': (
        (
            'Holds components (rclpy_components) that are loaded on request. One thread runs all '
            'their callbacks.'
        ),
        [
            'component_container',
            'ros2 component load /ComponentManager zc_perception zc_perception::CaptureNode',
        ],
        {},
    ),
    'component_container_mt': (
        (
            'Holds components (rclpy_components) that are loaded on request. Several threads run '
            'their callbacks.'
        ),
        ['component_container_mt', 'component_container_mt --ros-args -p thread_num:=4'],
        {'thread_num': 'number of threads'},
    ),
}
"""For each program: its purpose, examples, and the parameters that ``--help`` lists."""


def options_of(program: str) -> NodeOptionParser:
    """Return the parser for the options of *program*, a key of :data:`PROGRAMS`."""
    parser = NodeOptionParser(program, *PROGRAMS[program], _KINDS.get(program, {}))
    if program == 'perception':
        which = parser.main.add_mutually_exclusive_group()
        which.add_argument(
            '--cameras',
            nargs='+',
            default=[],
            metavar='NAME',
            help='names of cameras; each gets its own nodes, in a namespace of this name',
        )
        which.add_argument(
            '--stereo',
            action='store_true',
            help='two cameras in namespaces left and right; only pairs of frames are published',
        )
    if program == 'zc_record':
        parser.main.add_argument(
            '--repair',
            metavar='FOLDER',
            help='complete the files that a killed recorder left in this folder, then end',
        )
    if not program.startswith(
        'component_container'
    # A container doesn't need --unknown-parameters: each request to load a component has its
    # parameters.
    ):
        parser.add_unknown_parameters()
    return parser


_PART = '[A-Za-z_][A-Za-z0-9_]*'
_NAMESPACE = re.compile(f'{_PART}(/{_PART})*')


def check_namespace(name: str, where: str) -> None:
    """
    Raise ConfigError if *name* can't be a relative namespace.

    The error's text begins with *where*.
    """
    if not _NAMESPACE.fullmatch(name):
        allowed = "letters, digits and underscores, no digit first, with one '/' between two parts"
        raise ConfigError(
            f"{where}: '{name}' can't be a namespace; use {allowed}, such as front_left or "
            'truck/front'
        )


def check_cameras(names: Sequence[str], where: str) -> None:
    """Raise ConfigError if a camera's name can't be a namespace or is given twice."""
    for name in names:
        check_namespace(name, where)
        if names.count(name) > 1:
            raise ConfigError(
                f"{where}: '{name}' is given twice; each camera needs a name of its own"
            )
