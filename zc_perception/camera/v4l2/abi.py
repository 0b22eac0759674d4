"""V4L2's structs and ioctl numbers: formats, buffers and streaming, then controls, events and inputs. Pure ABI, no I/O.

Source: ``include/uapi/linux/videodev2.h`` and ``v4l2-controls.h``, 64-bit. ``test/camera/test_v4l2_abi.py`` has a C compiler compare the
two.
"""

from __future__ import annotations

import ctypes

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


def _u32(*names: str) -> tuple[tuple[str, type[ctypes.c_uint32]], ...]:
    """Fields of type ``u32``."""
    return tuple((name, ctypes.c_uint32) for name in names)


class Timeval(ctypes.Structure):
    """``struct timeval`` of a 64-bit kernel."""

    _fields_ = (('tv_sec', ctypes.c_int64), ('tv_usec', ctypes.c_int64))


class Capability(ctypes.Structure):
    """``struct v4l2_capability``."""

    _fields_ = (
        ('driver', ctypes.c_char * 16),
        ('card', ctypes.c_char * 32),
        ('bus_info', ctypes.c_char * 32),
        *_u32('version', 'capabilities', 'device_caps'),
        ('reserved', ctypes.c_uint32 * 3),
    )


class PixFormat(ctypes.Structure):
    """``struct v4l2_pix_format``; ``ycbcr_enc`` stands in a union with ``hsv_enc``."""

    _fields_ = (
        *_u32(
            'width',
            'height',
            'pixelformat',
            'field',
            'bytesperline',
            'sizeimage',
            'colorspace',
            'priv',
        ),
        *_u32('flags', 'ycbcr_enc', 'quantization', 'xfer_func'),
    )


class PlanePixFormat(ctypes.Structure):
    """``struct v4l2_plane_pix_format``, which is packed."""

    _pack_ = 1
    _layout_ = 'ms'
    _fields_ = (
        ('sizeimage', ctypes.c_uint32),
        ('bytesperline', ctypes.c_uint32),
        ('reserved', ctypes.c_uint16 * 6),
    )


class PixFormatMplane(ctypes.Structure):
    """``struct v4l2_pix_format_mplane``, which is packed; ``num_planes`` are memory buffers, NV12 has one."""

    _pack_ = 1
    _layout_ = 'ms'
    _fields_ = (
        *_u32('width', 'height', 'pixelformat', 'field', 'colorspace'),
        ('plane_fmt', PlanePixFormat * MAX_PLANES),
        ('num_planes', ctypes.c_uint8),
        ('flags', ctypes.c_uint8),
        ('ycbcr_enc', ctypes.c_uint8),
        ('quantization', ctypes.c_uint8),
        ('xfer_func', ctypes.c_uint8),
        ('reserved', ctypes.c_uint8 * 7),
    )


class _FormatUnion(ctypes.Union):
    # The pointer gives the union the alignment that v4l2_window has.
    _fields_ = (
        ('pix', PixFormat),
        ('pix_mp', PixFormatMplane),
        ('raw_data', ctypes.c_uint8 * 200),
        ('_align', ctypes.c_void_p),
    )


class Format(ctypes.Structure):
    """``struct v4l2_format``."""

    _fields_ = (('type', ctypes.c_uint32), ('fmt', _FormatUnion))


class FmtDesc(ctypes.Structure):
    """``struct v4l2_fmtdesc``."""

    _fields_ = (
        *_u32('index', 'type', 'flags'),
        ('description', ctypes.c_char * 32),
        *_u32('pixelformat', 'mbus_code'),
        ('reserved', ctypes.c_uint32 * 3),
    )


class Fract(ctypes.Structure):
    """``struct v4l2_fract``."""

    _fields_ = (('numerator', ctypes.c_uint32), ('denominator', ctypes.c_uint32))


class FrameSizeDiscrete(ctypes.Structure):
    """``struct v4l2_frmsize_discrete``."""

    _fields_ = (('width', ctypes.c_uint32), ('height', ctypes.c_uint32))


class FrameSizeStepwise(ctypes.Structure):
    """``struct v4l2_frmsize_stepwise``."""

    _fields_ = _u32(
        'min_width', 'max_width', 'step_width', 'min_height', 'max_height', 'step_height'
    )


class _FrameSizeUnion(ctypes.Union):
    _fields_ = (('discrete', FrameSizeDiscrete), ('stepwise', FrameSizeStepwise))


class FrameSizeEnum(ctypes.Structure):
    """``struct v4l2_frmsizeenum``."""

    _anonymous_ = ('_size',)
    _fields_ = (
        *_u32('index', 'pixel_format', 'type'),
        ('_size', _FrameSizeUnion),
        ('reserved', ctypes.c_uint32 * 2),
    )


class FrameIntervalStepwise(ctypes.Structure):
    """``struct v4l2_frmival_stepwise``."""

    _fields_ = (('min', Fract), ('max', Fract), ('step', Fract))


class _FrameIntervalUnion(ctypes.Union):
    _fields_ = (('discrete', Fract), ('stepwise', FrameIntervalStepwise))


class FrameIntervalEnum(ctypes.Structure):
    """``struct v4l2_frmivalenum``."""

    _anonymous_ = ('_interval',)
    _fields_ = (
        *_u32('index', 'pixel_format', 'width', 'height', 'type'),
        ('_interval', _FrameIntervalUnion),
        ('reserved', ctypes.c_uint32 * 2),
    )


class CaptureParm(ctypes.Structure):
    """``struct v4l2_captureparm``."""

    _fields_ = (
        *_u32('capability', 'capturemode'),
        ('timeperframe', Fract),
        *_u32('extendedmode', 'readbuffers'),
        ('reserved', ctypes.c_uint32 * 4),
    )


class _ParmUnion(ctypes.Union):
    _fields_ = (('capture', CaptureParm), ('raw_data', ctypes.c_uint8 * 200))


class StreamParm(ctypes.Structure):
    """``struct v4l2_streamparm``."""

    _fields_ = (('type', ctypes.c_uint32), ('parm', _ParmUnion))


class RequestBuffers(ctypes.Structure):
    """``struct v4l2_requestbuffers``."""

    _fields_ = (
        *_u32('count', 'type', 'memory', 'capabilities'),
        ('flags', ctypes.c_uint8),
        ('reserved', ctypes.c_uint8 * 3),
    )


class _PlaneUnion(ctypes.Union):
    _fields_ = (
        ('mem_offset', ctypes.c_uint32),
        ('userptr', ctypes.c_ulong),
        ('fd', ctypes.c_int32),
    )


class Plane(ctypes.Structure):
    """``struct v4l2_plane``; ``bytesused`` counts from the buffer's start, ``data_offset`` included."""

    _fields_ = (
        *_u32('bytesused', 'length'),
        ('m', _PlaneUnion),
        ('data_offset', ctypes.c_uint32),
        ('reserved', ctypes.c_uint32 * 11),
    )


class _BufferUnion(ctypes.Union):
    _fields_ = (
        ('offset', ctypes.c_uint32),
        ('userptr', ctypes.c_ulong),
        ('planes', ctypes.c_void_p),
        ('fd', ctypes.c_int32),
    )


class Buffer(ctypes.Structure):
    """``struct v4l2_buffer``."""

    _fields_ = (
        *_u32('index', 'type', 'bytesused', 'flags', 'field'),
        ('timestamp', Timeval),
        ('timecode', ctypes.c_uint32 * 4),
        *_u32('sequence', 'memory'),
        ('m', _BufferUnion),
        *_u32('length', 'reserved2'),
        ('request_fd', ctypes.c_int32),
    )


class ExportBuffer(ctypes.Structure):
    """``struct v4l2_exportbuffer``."""

    _fields_ = (
        *_u32('type', 'index', 'plane', 'flags'),
        ('fd', ctypes.c_int32),
        ('reserved', ctypes.c_uint32 * 11),
    )


def request(
    direction: int, number: int, argument: type[ctypes.Structure | ctypes.c_int | ctypes.c_uint64]
) -> int:
    """The number of ``_IOC(direction, 'V', number, argument)``."""
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


class QueryExtCtrl(ctypes.Structure):
    """``struct v4l2_query_ext_ctrl``."""

    _fields_ = (
        *_u32('id', 'type'),
        ('name', ctypes.c_char * 32),
        ('minimum', ctypes.c_int64),
        ('maximum', ctypes.c_int64),
        ('step', ctypes.c_uint64),
        ('default_value', ctypes.c_int64),
        *_u32('flags', 'elem_size', 'elems', 'nr_of_dims'),
        ('dims', ctypes.c_uint32 * 4),
        ('reserved', ctypes.c_uint32 * 32),
    )


class _MenuUnion(ctypes.Union):
    _pack_ = 1
    _layout_ = 'ms'
    _fields_ = (('name', ctypes.c_uint8 * 32), ('value', ctypes.c_int64))


class QueryMenu(ctypes.Structure):
    """``struct v4l2_querymenu``, which is packed."""

    _pack_ = 1
    _layout_ = 'ms'
    _anonymous_ = ('_item',)
    _fields_ = (
        ('id', ctypes.c_uint32),
        ('index', ctypes.c_uint32),
        ('_item', _MenuUnion),
        ('reserved', ctypes.c_uint32),
    )


class _ExtControlUnion(ctypes.Union):
    _pack_ = 1
    _layout_ = 'ms'
    _fields_ = (
        ('value', ctypes.c_int32),
        ('value64', ctypes.c_int64),
        ('string', ctypes.c_void_p),
    )


class ExtControl(ctypes.Structure):
    """``struct v4l2_ext_control``, which is packed."""

    _pack_ = 1
    _layout_ = 'ms'
    _anonymous_ = ('_value',)
    _fields_ = (
        ('id', ctypes.c_uint32),
        ('size', ctypes.c_uint32),
        ('reserved2', ctypes.c_uint32 * 1),
        ('_value', _ExtControlUnion),
    )


class ExtControls(ctypes.Structure):
    """``struct v4l2_ext_controls``; ``which`` stands in a union with ``ctrl_class``."""

    _fields_ = (
        *_u32('which', 'count', 'error_idx'),
        ('request_fd', ctypes.c_int32),
        ('reserved', ctypes.c_uint32 * 1),
        ('controls', ctypes.POINTER(ExtControl)),
    )


class EventSubscription(ctypes.Structure):
    """``struct v4l2_event_subscription``."""

    _fields_ = (
        ('type', ctypes.c_uint32),
        ('id', ctypes.c_uint32),
        ('flags', ctypes.c_uint32),
        ('reserved', ctypes.c_uint32 * 5),
    )


class _EventUnion(ctypes.Union):
    # The pointer gives the union the alignment that the others in it have.
    _fields_ = (
        ('src_change', ctypes.c_uint32),
        ('data', ctypes.c_uint8 * 64),
        ('_align', ctypes.c_int64),
    )


class Event(ctypes.Structure):
    """``struct v4l2_event``; of its union only the source change's ``changes`` and the raw bytes."""

    _fields_ = (
        ('type', ctypes.c_uint32),
        ('u', _EventUnion),
        *_u32('pending', 'sequence'),
        ('timestamp', ctypes.c_int64 * 2),
        ('id', ctypes.c_uint32),
        ('reserved', ctypes.c_uint32 * 8),
    )


class Input(ctypes.Structure):
    """``struct v4l2_input``."""

    _fields_ = (
        ('index', ctypes.c_uint32),
        ('name', ctypes.c_char * 32),
        *_u32('type', 'audioset', 'tuner'),
        ('std', ctypes.c_uint64),
        *_u32('status', 'capabilities'),
        ('reserved', ctypes.c_uint32 * 3),
    )


class DvTimings(ctypes.Structure):
    """``struct v4l2_dv_timings``, which is packed; ``words`` are its union: width and height come first in ``v4l2_bt_timings``."""

    _pack_ = 1
    _layout_ = 'ms'
    _fields_ = (('type', ctypes.c_uint32), ('words', ctypes.c_uint32 * 32))


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
