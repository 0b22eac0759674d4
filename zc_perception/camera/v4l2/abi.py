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
V4L2's constants, structs and ioctl requests, under C's names without the prefix ``v4l2_``.

For example ``Format`` is ``struct v4l2_format``. Sources: ``include/uapi/linux/videodev2.h`` and
``v4l2-controls.h``, for 64-bit systems. ``test/camera/test_v4l2_abi.py`` compares this file with
these headers with the help of a C compiler.
"""

from __future__ import annotations

import ctypes

from zc_perception.c_structs import c_struct, c_union

CAP_VIDEO_CAPTURE = 0x00000001
CAP_VIDEO_CAPTURE_MPLANE = 0x00001000
CAP_STREAMING = 0x04000000
CAP_META_CAPTURE = 0x00800000
CAP_DEVICE_CAPS = 0x80000000
BUF_TYPE_VIDEO_CAPTURE = 1
BUF_TYPE_VIDEO_CAPTURE_MPLANE = 9
FIELD_NONE = 1
MEMORY_MMAP = 1
MEMORY_DMABUF = 4
BUF_CAP_SUPPORTS_MMAP = 1 << 0
BUF_CAP_SUPPORTS_DMABUF = 1 << 2
BUF_FLAG_ERROR = 0x0040
BUF_FLAG_TIMESTAMP_MASK = 0xE000
BUF_FLAG_TIMESTAMP_MONOTONIC = 0x2000
BUF_FLAG_TSTAMP_SRC_MASK = 0x00070000
BUF_FLAG_TSTAMP_SRC_SOE = 0x00010000
FRMSIZE_TYPE_DISCRETE = 1
FRMIVAL_TYPE_DISCRETE = 1
FRMIVAL_TYPE_CONTINUOUS = 2
MAX_PLANES = 8
CTRL_TYPE_INTEGER = 1
CTRL_TYPE_BOOLEAN = 2
CTRL_TYPE_MENU = 3
CTRL_TYPE_BUTTON = 4
CTRL_TYPE_INTEGER64 = 5
CTRL_TYPE_CTRL_CLASS = 6
CTRL_TYPE_STRING = 7
CTRL_TYPE_BITMASK = 8
CTRL_TYPE_INTEGER_MENU = 9
CTRL_FLAG_DISABLED = 0x0001
CTRL_FLAG_READ_ONLY = 0x0004
CTRL_FLAG_INACTIVE = 0x0010
CTRL_FLAG_WRITE_ONLY = 0x0040
CTRL_FLAG_HAS_PAYLOAD = 0x0100
CTRL_FLAG_NEXT_CTRL = 0x80000000
CTRL_WHICH_CUR_VAL = 0
CID_MIN_BUFFERS_FOR_CAPTURE = 0x00980927
EVENT_SOURCE_CHANGE = 5
EVENT_SRC_CH_RESOLUTION = 1 << 0
IN_CAP_DV_TIMINGS = 0x00000002
IN_CAP_STD = 0x00000004

Capability = c_struct(
    'char[16] driver; char[32] card bus_info; u32 version capabilities device_caps; u32[3] '
    'reserved'
)
# In C, ``ycbcr_enc`` shares a union with ``hsv_enc``.
PixFormat = c_struct(
    'u32 width height pixelformat field bytesperline sizeimage colorspace priv flags ycbcr_enc '
    'quantization xfer_func'
)
PlanePixFormat = c_struct('u32 sizeimage bytesperline; u16[6] reserved', packed=True)
# ``num_planes`` counts memory buffers, not an image's planes: for NV12 in one buffer it is 1.
PixFormatMplane = c_struct(
    (
        'u32 width height pixelformat field colorspace; plane[8] plane_fmt; u8 num_planes flags '
        'ycbcr_enc quantization xfer_func; u8[7] reserved'
    ),
    packed=True,
    plane=PlanePixFormat,
)
# The pointer gives the union the alignment of ``v4l2_window``, which is left out here.
_FORMAT = c_union(
    'pix pix; pix_mp pix_mp; u8[200] raw_data; ptr _align', pix=PixFormat, pix_mp=PixFormatMplane
)
Format = c_struct('u32 type; fmt fmt', fmt=_FORMAT)
FmtDesc = c_struct(
    'u32 index type flags; char[32] description; u32 pixelformat mbus_code; u32[3] reserved'
)
Fract = c_struct('u32 numerator denominator')
FrameSizeDiscrete = c_struct('u32 width height')
FrameSizeStepwise = c_struct(
    'u32 min_width max_width step_width min_height max_height step_height'
)
_SIZE = c_union(
    'discrete discrete; stepwise stepwise', discrete=FrameSizeDiscrete, stepwise=FrameSizeStepwise
)
FrameSizeEnum = c_struct(
    'u32 index pixel_format type; size _size; u32[2] reserved', anonymous=('_size',), size=_SIZE
)
FrameIntervalStepwise = c_struct('fract min max step', fract=Fract)
_INTERVAL = c_union(
    'fract discrete; stepwise stepwise', fract=Fract, stepwise=FrameIntervalStepwise
)
FrameIntervalEnum = c_struct(
    'u32 index pixel_format width height type; interval _interval; u32[2] reserved',
    anonymous=('_interval',),
    interval=_INTERVAL,
)
CaptureParm = c_struct(
    (
        'u32 capability capturemode; fract timeperframe; u32 extendedmode readbuffers; u32[4] '
        'reserved'
    ),
    fract=Fract,
)
StreamParm = c_struct(
    'u32 type; parm parm', parm=c_union('capture capture; u8[200] raw_data', capture=CaptureParm)
)
RequestBuffers = c_struct('u32 count type memory capabilities; u8 flags; u8[3] reserved')
_MEMORY = c_union('u32 mem_offset; ulong userptr; s32 fd')
# ``bytesused`` counts from the buffer's start, ``data_offset`` included.
Plane = c_struct(
    'u32 bytesused length; memory m; u32 data_offset; u32[11] reserved', memory=_MEMORY
)
Buffer = c_struct(
    'u32 index type bytesused flags field; timeval timestamp; u32[4] timecode; u32 sequence '
    'memory; place m; u32 length reserved2; s32 request_fd',
    timeval=c_struct('s64 tv_sec tv_usec'),
    place=c_union('u32 offset; ulong userptr; ptr planes; s32 fd'),
)
ExportBuffer = c_struct('u32 type index plane flags; s32 fd; u32[11] reserved')
QueryExtCtrl = c_struct(
    'u32 id type; char[32] name; s64 minimum maximum; u64 step; s64 default_value; u32 flags '
    'elem_size elems nr_of_dims; u32[4] dims; u32[32] reserved'
)
QueryMenu = c_struct(
    'u32 id index; item _item; u32 reserved',
    packed=True,
    anonymous=('_item',),
    item=c_union('u8[32] name; s64 value', packed=True),
)
ExtControl = c_struct(
    'u32 id size; u32[1] reserved2; value _value',
    packed=True,
    anonymous=('_value',),
    value=c_union('s32 value; s64 value64; ptr string', packed=True),
)
# In C, ``which`` shares a union with ``ctrl_class``.
ExtControls = c_struct(
    'u32 which count error_idx; s32 request_fd; u32[1] reserved; controls controls',
    controls=ctypes.POINTER(ExtControl),
)
EventSubscription = c_struct('u32 type id flags; u32[5] reserved')
# C's union has more members than this one. ``src_change`` says what changed at a source change.
# ``data`` and ``_align`` give this union the size and the alignment of C's union.
_EVENT = c_union('u32 src_change; u8[64] data; s64 _align')
Event = c_struct(
    'u32 type; u u; u32 pending sequence; s64[2] timestamp; u32 id; u32[8] reserved', u=_EVENT
)
Input = c_struct(
    'u32 index; char[32] name; u32 type audioset tuner; u64 std; u32 status capabilities; '
    'u32[3] reserved'
)
# ``words`` replaces C's union. For HDMI and SDI, the first two words are the width and height of
# ``v4l2_bt_timings``.
DvTimings = c_struct('u32 type; u32[32] words', packed=True)


def request(
    direction: int, number: int, argument: type[ctypes.Structure | ctypes.c_int | ctypes.c_uint64]
) -> int:
    """Return the ioctl request that C writes as ``_IOC(direction, 'V', number, argument)``."""
    return direction << 30 | ctypes.sizeof(argument) << 16 | ord('V') << 8 | number


WRITE, READ = 1, 2
VIDIOC_QUERYCAP = request(READ, 0, Capability)
VIDIOC_ENUM_FMT = request(READ | WRITE, 2, FmtDesc)
VIDIOC_G_FMT = request(READ | WRITE, 4, Format)
VIDIOC_S_FMT = request(READ | WRITE, 5, Format)
VIDIOC_REQBUFS = request(READ | WRITE, 8, RequestBuffers)
VIDIOC_QUERYBUF = request(READ | WRITE, 9, Buffer)
VIDIOC_QBUF = request(READ | WRITE, 15, Buffer)
VIDIOC_EXPBUF = request(READ | WRITE, 16, ExportBuffer)
VIDIOC_DQBUF = request(READ | WRITE, 17, Buffer)
VIDIOC_STREAMON = request(WRITE, 18, ctypes.c_int)
VIDIOC_STREAMOFF = request(WRITE, 19, ctypes.c_int)
VIDIOC_G_PARM = request(READ | WRITE, 21, StreamParm)
VIDIOC_S_PARM = request(READ | WRITE, 22, StreamParm)
VIDIOC_TRY_FMT = request(READ | WRITE, 64, Format)
VIDIOC_ENUM_FRAMESIZES = request(READ | WRITE, 74, FrameSizeEnum)
VIDIOC_ENUM_FRAMEINTERVALS = request(READ | WRITE, 75, FrameIntervalEnum)
VIDIOC_S_STD = request(WRITE, 24, ctypes.c_uint64)
VIDIOC_ENUMINPUT = request(READ | WRITE, 26, Input)
VIDIOC_QUERYMENU = request(READ | WRITE, 37, QueryMenu)
VIDIOC_G_INPUT = request(READ, 38, ctypes.c_int)
VIDIOC_S_INPUT = request(READ | WRITE, 39, ctypes.c_int)
VIDIOC_QUERYSTD = request(READ, 63, ctypes.c_uint64)
VIDIOC_G_EXT_CTRLS = request(READ | WRITE, 71, ExtControls)
VIDIOC_S_EXT_CTRLS = request(READ | WRITE, 72, ExtControls)
VIDIOC_S_DV_TIMINGS = request(READ | WRITE, 87, DvTimings)
VIDIOC_DQEVENT = request(READ, 89, Event)
VIDIOC_SUBSCRIBE_EVENT = request(WRITE, 90, EventSubscription)
VIDIOC_QUERY_DV_TIMINGS = request(READ, 99, DvTimings)
VIDIOC_QUERY_EXT_CTRL = request(READ | WRITE, 103, QueryExtCtrl)
