"""V4L2's structs and ioctl numbers, as far as a capture device needs them. Pure ABI, no I/O.

Source: ``include/uapi/linux/videodev2.h``, 64-bit. ``test/camera/test_v4l2_abi.py`` has a C compiler compare the two.
"""

from __future__ import annotations

import ctypes

CAP_VIDEO_CAPTURE = 0x00000001
CAP_STREAMING = 0x04000000
CAP_DEVICE_CAPS = 0x80000000
BUF_TYPE_VIDEO_CAPTURE = 1
FIELD_NONE = 1
MEMORY_MMAP = 1
BUF_FLAG_ERROR = 0x0040
BUF_FLAG_TIMESTAMP_MASK = 0xE000
BUF_FLAG_TIMESTAMP_MONOTONIC = 0x2000
CAP_TIMEPERFRAME = 0x1000
QUANTIZATION_FULL_RANGE = 1


class Timeval(ctypes.Structure):
    """``struct timeval`` of a 64-bit kernel."""

    _fields_ = (('tv_sec', ctypes.c_int64), ('tv_usec', ctypes.c_int64))


class Capability(ctypes.Structure):
    """``struct v4l2_capability``."""

    _fields_ = (
        ('driver', ctypes.c_char * 16),
        ('card', ctypes.c_char * 32),
        ('bus_info', ctypes.c_char * 32),
        ('version', ctypes.c_uint32),
        ('capabilities', ctypes.c_uint32),
        ('device_caps', ctypes.c_uint32),
        ('reserved', ctypes.c_uint32 * 3),
    )


class PixFormat(ctypes.Structure):
    """``struct v4l2_pix_format``; ``ycbcr_enc`` stands in a union with ``hsv_enc``."""

    _fields_ = (
        ('width', ctypes.c_uint32),
        ('height', ctypes.c_uint32),
        ('pixelformat', ctypes.c_uint32),
        ('field', ctypes.c_uint32),
        ('bytesperline', ctypes.c_uint32),
        ('sizeimage', ctypes.c_uint32),
        ('colorspace', ctypes.c_uint32),
        ('priv', ctypes.c_uint32),
        ('flags', ctypes.c_uint32),
        ('ycbcr_enc', ctypes.c_uint32),
        ('quantization', ctypes.c_uint32),
        ('xfer_func', ctypes.c_uint32),
    )


class _FormatUnion(ctypes.Union):
    # The pointer gives the union the alignment that v4l2_window has.
    _fields_ = (('pix', PixFormat), ('raw_data', ctypes.c_uint8 * 200), ('_align', ctypes.c_void_p))


class Format(ctypes.Structure):
    """``struct v4l2_format``."""

    _fields_ = (('type', ctypes.c_uint32), ('fmt', _FormatUnion))


class Fract(ctypes.Structure):
    """``struct v4l2_fract``."""

    _fields_ = (('numerator', ctypes.c_uint32), ('denominator', ctypes.c_uint32))


class CaptureParm(ctypes.Structure):
    """``struct v4l2_captureparm``."""

    _fields_ = (
        ('capability', ctypes.c_uint32),
        ('capturemode', ctypes.c_uint32),
        ('timeperframe', Fract),
        ('extendedmode', ctypes.c_uint32),
        ('readbuffers', ctypes.c_uint32),
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
        ('count', ctypes.c_uint32),
        ('type', ctypes.c_uint32),
        ('memory', ctypes.c_uint32),
        ('capabilities', ctypes.c_uint32),
        ('flags', ctypes.c_uint8),
        ('reserved', ctypes.c_uint8 * 3),
    )


class Timecode(ctypes.Structure):
    """``struct v4l2_timecode``."""

    _fields_ = (
        ('type', ctypes.c_uint32),
        ('flags', ctypes.c_uint32),
        ('frames', ctypes.c_uint8),
        ('seconds', ctypes.c_uint8),
        ('minutes', ctypes.c_uint8),
        ('hours', ctypes.c_uint8),
        ('userbits', ctypes.c_uint8 * 4),
    )


class _BufferUnion(ctypes.Union):
    _fields_ = (('offset', ctypes.c_uint32), ('userptr', ctypes.c_ulong), ('planes', ctypes.c_void_p), ('fd', ctypes.c_int32))


class Buffer(ctypes.Structure):
    """``struct v4l2_buffer``."""

    _fields_ = (
        ('index', ctypes.c_uint32),
        ('type', ctypes.c_uint32),
        ('bytesused', ctypes.c_uint32),
        ('flags', ctypes.c_uint32),
        ('field', ctypes.c_uint32),
        ('timestamp', Timeval),
        ('timecode', Timecode),
        ('sequence', ctypes.c_uint32),
        ('memory', ctypes.c_uint32),
        ('m', _BufferUnion),
        ('length', ctypes.c_uint32),
        ('reserved2', ctypes.c_uint32),
        ('request_fd', ctypes.c_int32),
    )


class ExportBuffer(ctypes.Structure):
    """``struct v4l2_exportbuffer``."""

    _fields_ = (
        ('type', ctypes.c_uint32),
        ('index', ctypes.c_uint32),
        ('plane', ctypes.c_uint32),
        ('flags', ctypes.c_uint32),
        ('fd', ctypes.c_int32),
        ('reserved', ctypes.c_uint32 * 11),
    )


class Control(ctypes.Structure):
    """``struct v4l2_control``."""

    _fields_ = (('id', ctypes.c_uint32), ('value', ctypes.c_int32))


def _request(direction: int, number: int, argument: type[ctypes.Structure] | type[ctypes.c_int]) -> int:
    return direction << 30 | ctypes.sizeof(argument) << 16 | ord('V') << 8 | number


_WRITE, _READ = 1, 2
VIDIOC_QUERYCAP = _request(_READ, 0, Capability)
VIDIOC_G_FMT = _request(_READ | _WRITE, 4, Format)
VIDIOC_S_FMT = _request(_READ | _WRITE, 5, Format)
VIDIOC_REQBUFS = _request(_READ | _WRITE, 8, RequestBuffers)
VIDIOC_QUERYBUF = _request(_READ | _WRITE, 9, Buffer)
VIDIOC_QBUF = _request(_READ | _WRITE, 15, Buffer)
VIDIOC_EXPBUF = _request(_READ | _WRITE, 16, ExportBuffer)
VIDIOC_DQBUF = _request(_READ | _WRITE, 17, Buffer)
VIDIOC_STREAMON = _request(_WRITE, 18, ctypes.c_int)
VIDIOC_STREAMOFF = _request(_WRITE, 19, ctypes.c_int)
VIDIOC_G_PARM = _request(_READ | _WRITE, 21, StreamParm)
VIDIOC_S_PARM = _request(_READ | _WRITE, 22, StreamParm)
VIDIOC_S_CTRL = _request(_READ | _WRITE, 28, Control)
