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
Declarations of the nodes' own parameters; this module needs no ROS.

Each kind of camera or accelerator declares its parameters in its class. A node's class refuses,
by ``CHECKS`` and ``check_together``, values that a declaration allows but that can't work.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from zc_perception.camera.kinds import CAMERAS
from zc_perception.detection.space import PARAMETERS as SPACE
from zc_perception.detection.tracking import PARAMETERS as TRACKING
from zc_perception.errors import ConfigError
from zc_perception.kinds import Kinds
from zc_perception.negotiation.constraints import SYNTAX
from zc_perception.npu.kinds import ACCELERATORS, AUTO, FOR_ALL
from zc_perception.parameters import EVERY_NODE, ParameterSpec
from zc_perception.pixel.raw_picture import OUTPUT_ENCODINGS


class NodeSpecs:
    """
    All parameters of a node: its own, and those of all kinds of camera or accelerator.

    Iterate to get each parameter once. Iteration, :attr:`broken` and :meth:`unread` import the
    modules of all kinds; the constructor doesn't.

    :param own: the node's own parameters.
    :param chooses: the name of the node's parameter that chooses a kind, such as ``camera``.
    :param kinds: the kinds from which that parameter chooses.
    """

    def __init__(
        self, *own: ParameterSpec, chooses: str = '', kinds: Kinds[Any] | None = None
    ) -> None:
        self.own = own
        self.chooses = chooses
        self.kinds = kinds

    def __iter__(self) -> Iterator[ParameterSpec]:
        """Yield each parameter once; ConfigError: two of them have the same name."""
        yield from self.own
        if self.kinds is None:
            return
        names = {*EVERY_NODE, *(spec.name for spec in self.own)}
        for spec in self.kinds.declared.parameters:
            if spec.name in names:
                kind = self.kinds.declared.readers[spec.name][0]
                raise ConfigError(
                    f"parameter '{spec.name}' of {self.kinds.whose(kind)} has the same "
                    "name as a parameter of the node; give it another name, or uninstall the "
                    'package'
                )
            yield spec

    @property
    def broken(self) -> Sequence[str]:
        """A sentence for each kind that can't be imported or has wrong declarations."""
        return () if self.kinds is None else self.kinds.declared.broken

    def unread(self, values: Mapping[str, Any]) -> dict[str, str]:
        """
        Return, by name, a sentence for each parameter that *values* set in vain.

        Such a parameter has another value than its default, but the kind that *values* choose
        doesn't read it. If *values* choose an unknown kind, return nothing.
        """
        found: dict[str, str] = {}
        if self.kinds is None:
            return found
        declared = self.kinds.declared
        defaults = {spec.name: spec.default for spec in (*self.own, *declared.parameters)}
        chosen = values.get(self.chooses, defaults[self.chooses])
        if chosen not in self.kinds.names:
            return found  # Another check reports the wrong choice.
        for name, value in values.items():
            readers = declared.readers.get(name, ())
            if readers and chosen not in readers and value != defaults[name]:
                found[name] = (
                    f"parameter '{name}' is read by {self.chooses}: {', '.join(readers)} only, "
                    f'not by {self.chooses}: {chosen}; leave it out'
                )
        return found


_OWN = -1.0
_LIFECYCLE = (
    ParameterSpec('autostart', True, ('Configure and activate the node at the start. false: '
                                      'wait for lifecycle transitions.'), fixed=True),
)  # fmt: skip
_REALTIME = (
    ParameterSpec('cpu_affinity', [], ('CPUs on which the threads that handle frames may run, '
                                       'as numbers or ranges such as 2-3. Empty: all.'),
                  whole_numbers=True, dynamic=True),
    ParameterSpec('realtime_priority', 0, 'SCHED_FIFO priority of the threads that handle '
                                          'frames, not of those that compute a model on the '
                  'CPU. 0: ordinary scheduling.', '', 0, 99, dynamic=True),
    ParameterSpec('lock_memory', False, ('Lock the memory of the process, so that nothing is '
                                         'paged out (mlockall).')),
    ParameterSpec('gc_freeze', False, ('Garbage collection ignores the objects that exist after '
                                       'configuring (gc.freeze), so that pauses are shorter.')),
)  # fmt: skip
_PUBLISHER = (
    ParameterSpec('shared_memory', True, ('Share the memory of the frames with other processes '
                                          'of this host.')),
    ParameterSpec('shared_memory_group', '', ('Group whose members may read the frames as '
                                              "shared memory, besides root and this node's user."
                                              )),
    ParameterSpec('quarantine', 2.0, ("How long the node doesn't reuse a buffer that a dead "
                                      "consumer held, if no fence tells when the consumer's "
                                      'device is done with the buffer. Set it to the duration of '
                                      "the device's longest job."), 's', 0.0, 60.0),
)  # fmt: skip
_SUBSCRIPTION = (
    ParameterSpec('shared_memory', True, ('Receive frames from other processes of this host by '
                                          'shared memory.')),
    ParameterSpec('shared_memory_users', [], ('Users whose publishers are trusted, besides '
                                              "this node's user and root.")),
    ParameterSpec('copy_free', 'preferred', ('required: it is an error if frames can come only '
                                             'as plain messages, which are copies.'),
                  choices=('preferred', 'required')),
)  # fmt: skip
NODES: Mapping[str, NodeSpecs] = {
    'capture': NodeSpecs(
        ParameterSpec(
            'camera',
            'synthetic',
            'Kind of camera.',
            choices=tuple(CAMERAS.built_in),
            other_choices=lambda: CAMERAS.others,
        ),
        ParameterSpec('width', 0, "Picture width. 0: the camera's own.", 'px', 0, 8192, even=True),
        ParameterSpec(
            'height', 0, "Picture height. 0: the camera's own.", 'px', 0, 8192, even=True
        ),
        ParameterSpec(
            'framerate', 0.0, "Frames per second. 0: the camera's own.", 'Hz', 0.0, 1000.0
        ),
        ParameterSpec('frame_id', 'camera_optical_frame', 'The frame_id of every message header.'),
        ParameterSpec(
            'silent',
            0.0,
            'A camera counts as lost after this time without a good frame. 0: the time of 10 '
            'frames, but at least 2 s (5 s for a kind of camera that is slow to start).',
            's',
            0.0,
            3600.0,
        ),
        ParameterSpec(
            'heap',
            'auto',
            'Where buffers come from: auto, dma_heap/NAME, udmabuf or memfd. auto: the first heap '
            'that works on this machine and suits all participants.',
        ),
        ParameterSpec(
            'camera_name',
            '',
            (
                'Name of the camera in calibrations and in their file names. '
                "Empty: the node's name with its namespace."
            ),
        ),
        ParameterSpec(
            'camera_info_url',
            '',
            'Calibration file, as a file:// or package:// URL; ${NAME} and ${ROS_HOME} are '
            'replaced. Empty: file://${ROS_HOME}/camera_info/${NAME}.yaml.',
        ),
        ParameterSpec(
            'rescale_camera_info',
            False,
            'Whether to scale the calibration if it was made for pictures of another size, with '
            'the same aspect ratio. Set it to true only if pictures of both sizes show the same '
            'view.',
        ),
        ParameterSpec(
            'stereo_tolerance',
            0.005,
            'perception --stereo: two frames are a pair if their times differ by at most this. '
            'Set the same value for both cameras.',
            's',
            0.0001,
            1.0,
        ),
        ParameterSpec(
            'start_delay',
            0.0,
            'Wait this long before the first frame, so that subscribers can connect. With '
            'keep_all: at least 1 s.',
            's',
            0.0,
            60.0,
        ),
        ParameterSpec(
            'slots',
            8,
            'Number of slots in the pool; each has the buffers of one frame. The pool gets more '
            'slots if all participants together hold more frames.',
            '',
            3,
            64,
        ),
        ParameterSpec(
            'participants',
            [],
            'Constraints of consumers that join later: buffers are allocated so that these '
            f"consumers can use them, too. Each is '{SYNTAX}'.",
        ),
        ParameterSpec(
            'renegotiate',
            True,
            "When a consumer comes that can't use the present buffers, allocate other buffers, if "
            "all consumers can use those. The camera pauses meanwhile, at most once in 10 s.",
        ),
        ParameterSpec(
            'image_encoding',
            'rgb8',
            "Encoding of the sensor_msgs/Image messages of image_raw. native: the frame's bytes "
            "as they are, if ROS has an encoding for the frame's format, else rgb8.",
            choices=OUTPUT_ENCODINGS,
            dynamic=True,
        ),
        ParameterSpec(
            'jpeg_quality',
            0,
            'JPEG quality of image_raw/compressed. 0: the topic is not offered.',
            '',
            0,
            100,
            dynamic=True,
        ),
        *_PUBLISHER,
        ParameterSpec(
            'unixfd',
            '',
            "Path of a socket from which GStreamer's own unixfdsrc reads the frames without a "
            "copy. Its folder must be this user's, and writable by nobody else. Empty: no socket.",
        ),
        ParameterSpec(
            'unixfd_window',
            4,
            'Frames that each reader of the unixfd socket may hold at the same time.',
            '',
            1,
            32,
        ),
        ParameterSpec(
            'unixfd_caps',
            'raw',
            'Caps of linear frames on the unixfd socket. raw: video/x-raw. drm-format: '
            'video/x-raw(memory:DMABuf) with a drm-format, for elements that take only dma-bufs. '
            'The caps of frames in other layouts always have a drm-format.',
            choices=('raw', 'drm-format'),
        ),
        ParameterSpec(
            'snapshot_folder',
            '',
            'Folder for ~/snapshot. ~user and $NAME are replaced. A relative path begins in the '
            'working folder of the node. Empty: $ROS_HOME/zc_perception/snapshots, where ROS_HOME '
            'is ~/.ros by default.',
            dynamic=True,
        ),
        *_LIFECYCLE,
        *_REALTIME,
        chooses='camera',
        kinds=CAMERAS,
    ),
    'inference': NodeSpecs(
        ParameterSpec(
            'accelerator',
            AUTO,
            'Where the model runs. auto: the best accelerator that works on this machine; '
            '/diagnostics says why better accelerators do not work.',
            choices=(AUTO, *ACCELERATORS.built_in),
            other_choices=lambda: ACCELERATORS.others,
            renamed={'cpu': 'onnx'},
        ),
        ParameterSpec(
            'model',
            'road',
            (
                'Shipped model (road, hog), or path of an ONNX file, '
                "an exported model's folder or a model.yaml."
            ),
        ),
        ParameterSpec(
            'score_threshold',
            _OWN,
            "Detections with a lower score are dropped. -1: the model's own value.",
            '',
            0.0,
            1.0,
            _OWN,
            dynamic=True,
        ),
        ParameterSpec(
            'nms_threshold',
            _OWN,
            (
                'Boxes of one class that overlap more than this '
                "become one. -1: the model's own value."
            ),
            'IoU',
            0.0,
            1.0,
            _OWN,
            dynamic=True,
        ),
        ParameterSpec(
            'max_detections',
            0,
            "Largest number of detections per frame. 0: the model's own value.",
            '',
            0,
            10000,
            dynamic=True,
        ),
        ParameterSpec(
            'enabled', True, 'Whether frames are run through the model. Service ~/enable sets '
                             'this parameter.', dynamic=True
        ),
        ParameterSpec(
            'classes',
            [],
            'Names or indices of the classes that are published. Empty: all.',
            whole_numbers=True,
            dynamic=True,
        ),
        ParameterSpec(
            'max_rate',
            0.0,
            'The model gets at most this many frames per second. The frames between them are left '
            'out. 0: no limit.',
            'Hz',
            0.0,
            1000.0,
            dynamic=True,
        ),
        ParameterSpec(
            'deadline',
            0.0,
            'A frame should take no longer than this from the camera to its sent detections. '
            '/diagnostics counts the frames that took longer, and names the stage that delayed '
            'them. 0: no deadline.',
            's',
            0.0,
            60.0,
            dynamic=True,
        ),
        ParameterSpec(
            'keep_all', False, ('Run every frame through the model, not only the newest. For '
                                'recordings only.')
        ),
        ParameterSpec(
            'annotations',
            False,
            'Publish boxes and names also as foxglove_msgs/ImageAnnotations, on '
            'detections/annotations. If the model has keypoints, this is always done.',
        ),
        *TRACKING,
        *SPACE,
        *FOR_ALL,
        *_SUBSCRIPTION,
        *_LIFECYCLE,
        *_REALTIME,
        chooses='accelerator',
        kinds=ACCELERATORS,
    ),
    'overlay': NodeSpecs(
        ParameterSpec(
            'scale',
            1.0,
            "Size of detections/image, as a fraction of the frame's size.",
            '',
            0.1,
            1.0,
            dynamic=True,
        ),
        ParameterSpec(
            'history',
            32,
            (
                'Largest number of pictures that wait for their detections. They need memory only '
                'while detections/image has a subscriber.'
            ),
            '',
            1,
            256,
        ),
        ParameterSpec(
            'jpeg_quality',
            80,
            'JPEG quality of detections/image/compressed.',
            '',
            1,
            100,
            dynamic=True,
        ),
        *_SUBSCRIPTION,
        *_LIFECYCLE,
    ),
    'recorder': NodeSpecs(
        ParameterSpec(
            'path',
            '',
            (
                'The folder to write, in the form of ros2 bag record. If it has a recording '
                'already, that recording goes on with a new file.'
            ),
        ),
        ParameterSpec(
            'frames', True, "Record the frames of image_raw as they are. false: only 'topics'."
        ),
        ParameterSpec(
            'topics',
            [
                'camera_info',
                'detections',
                'label_info',
                'image_raw/foxglove',
                '/tf_static',
                '/diagnostics',
            ],
            (
                'Topics that are recorded besides the frames, when somebody publishes them. '
                '* stands for any part of a name.'
            ),
        ),
        ParameterSpec(
            'black_box',
            0.0,
            "Instead of recording, keep the topics' messages of the last black_box seconds in "
            'memory (at most as much as parameter buffer allows), and write them when ~/trigger '
            'is called. 0: record.',
            's',
            0.0,
            600.0,
        ),
        ParameterSpec(
            'split_size',
            2048,
            'A new file begins when the present one has this size. 0: no limit.',
            'MiB',
            0,
            2**31 - 1,
        ),
        ParameterSpec(
            'split_duration', 0.0, 'A new file begins after this time. 0: no limit.', 's', 0.0, 1e6
        ),
        ParameterSpec(
            'disk_floor',
            1024,
            'Recording ends when less than this space is free on the disk. 0: recording ends when '
            'the disk is full.',
            'MiB',
            0,
            2**31 - 1,
        ),
        ParameterSpec('buffer', 256, 'Limit of the memory for frames and messages that wait for '
                                     'the disk.', 'MiB', 1, 65536),
        ParameterSpec(
            'max_frames',
            0,
            'Recording ends after this many frames. 0: no limit.',
            '',
            0,
            2**31 - 1,
        ),
        ParameterSpec(
            'max_duration',
            0.0,
            'Recording ends this long after the first frame. 0: no limit.',
            's',
            0.0,
            1e6,
        ),
        *_SUBSCRIPTION,
        *_LIFECYCLE,
    ),
    'gstreamer': NodeSpecs(
        ParameterSpec(
            'pipeline',
            '',
            'The pipeline that gets the frames, written as for gst-launch-1.0, without a source. '
            'If it ends in appsink name=zc_sink, its H.264 is published. Empty: a pipeline with '
            'the encoder that parameter encoder names.',
        ),
        ParameterSpec(
            'encoder',
            'auto',
            (
                'If pipeline is empty: the encoder whose H.264 is published. auto: x264enc, or '
                'openh264enc if x264enc is missing.'
            ),
            choices=('auto', 'x264enc', 'openh264enc'),
        ),
        ParameterSpec('bit_rate', 4000, 'Bitrate of the encoder.', 'kbit/s', 10, 1000000),
        ParameterSpec(
            'gop_size',
            30,
            'The encoder makes a key frame at least once in this many pictures.',
            '',
            1,
            1000,
        ),
        ParameterSpec(
            'window',
            4,
            (
                'Frames that the pipeline may hold at the same time. While it holds this many, '
                'newer frames are skipped.'
            ),
            '',
            1,
            32,
        ),
        *_SUBSCRIPTION,
        *_LIFECYCLE,
    ),
}
"""Each node's parameters, by the node's default name."""
