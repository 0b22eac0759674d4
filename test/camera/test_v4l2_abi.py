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

"""V4L2's structs and requests as ctypes must equal those of a C compiler."""

from __future__ import annotations

import ctypes
from pathlib import Path

from doubles.c_layout import struct_expressions, wrong_values

from zc_perception.camera.v4l2 import abi

STRUCTS = {
    'v4l2_capability': abi.Capability, 'v4l2_pix_format': abi.PixFormat,
    'v4l2_plane_pix_format': abi.PlanePixFormat, 'v4l2_pix_format_mplane': abi.PixFormatMplane,
    'v4l2_format': abi.Format, 'v4l2_fmtdesc': abi.FmtDesc, 'v4l2_fract': abi.Fract,
    'v4l2_frmsize_discrete': abi.FrameSizeDiscrete, 'v4l2_frmsize_stepwise': abi.FrameSizeStepwise,
    'v4l2_frmsizeenum': abi.FrameSizeEnum, 'v4l2_frmival_stepwise': abi.FrameIntervalStepwise,
    'v4l2_frmivalenum': abi.FrameIntervalEnum, 'v4l2_captureparm': abi.CaptureParm,
    'v4l2_streamparm': abi.StreamParm, 'v4l2_requestbuffers': abi.RequestBuffers,
    'v4l2_plane': abi.Plane, 'v4l2_buffer': abi.Buffer, 'v4l2_exportbuffer': abi.ExportBuffer,
    'v4l2_query_ext_ctrl': abi.QueryExtCtrl, 'v4l2_querymenu': abi.QueryMenu,
    'v4l2_ext_control': abi.ExtControl, 'v4l2_ext_controls': abi.ExtControls,
    'v4l2_event_subscription': abi.EventSubscription, 'v4l2_event': abi.Event,
    'v4l2_input': abi.Input, 'v4l2_dv_timings': abi.DvTimings,
}  # fmt: skip
# Fields inside C's anonymous unions that have other names here.
MEMBERS = {
    'v4l2_dv_timings': {'words': 'reserved'}, 'v4l2_frmsizeenum': {'_size': 'stepwise'},
    'v4l2_frmivalenum': {'_interval': 'stepwise'}, 'v4l2_querymenu': {'_item': 'name'},
    'v4l2_ext_control': {'_value': 'value64'},
}  # fmt: skip
PREFIXED = {
    name: value
    for name, value in vars(abi).items()
    if name.isupper()
    and isinstance(value, int)
    and not name.startswith('VIDIOC_')
    and name not in ('READ', 'WRITE', 'MAX_PLANES')
}
CONSTANTS = (
    {f'V4L2_{name}': value for name, value in PREFIXED.items()}
    | {'VIDEO_MAX_PLANES': abi.MAX_PLANES}
    | {name: value for name, value in vars(abi).items() if name.startswith('VIDIOC_')}
)


PLACES = {'offsetof(struct v4l2_dv_timings, bt.width)': abi.DvTimings.words.offset,
          'offsetof(struct v4l2_dv_timings, bt.height)': abi.DvTimings.words.offset + 4,
          'offsetof(struct v4l2_event, u.src_change.changes)': abi.Event.u.offset,
          'offsetof(struct v4l2_querymenu, value)': abi.QueryMenu.value.offset,
          'offsetof(struct v4l2_ext_control, value)': abi.ExtControl.value.offset}  # fmt: skip


def test_constants_requests_and_structs_are_the_kernels(tmp_path: Path) -> None:
    ours = {f'({name}) & 0xFFFFFFFFFFFFFFFF': value for name, value in CONSTANTS.items()} | PLACES
    for name, struct in STRUCTS.items():
        ours |= {f'sizeof(struct {name})': ctypes.sizeof(struct)} | struct_expressions(
            f'struct {name}', struct, MEMBERS.get(name, {})
        )
    assert wrong_values(ours, ['linux/videodev2.h'], tmp_path) == {}
