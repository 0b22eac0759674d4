"""V4L2's structs and ioctl numbers for controls, events and inputs. Pure ABI, no I/O.

Source: ``include/uapi/linux/videodev2.h`` and ``v4l2-controls.h``, 64-bit. ``test/camera/test_v4l2_abi.py`` has a C compiler compare the
two.
"""

from __future__ import annotations

import ctypes

from zc_perception.camera.v4l2.abi import READ, WRITE, request

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
CTRL_FLAG_GRABBED = 0x0002
CTRL_FLAG_READ_ONLY = 0x0004
CTRL_FLAG_INACTIVE = 0x0010
CTRL_FLAG_WRITE_ONLY = 0x0040
CTRL_FLAG_VOLATILE = 0x0080
CTRL_FLAG_HAS_PAYLOAD = 0x0100
CTRL_FLAG_NEXT_CTRL = 0x80000000
CTRL_WHICH_CUR_VAL = 0
CID_MIN_BUFFERS_FOR_CAPTURE = 0x00980927
EVENT_ALL = 0
EVENT_SOURCE_CHANGE = 5
EVENT_SRC_CH_RESOLUTION = 1 << 0
IN_CAP_DV_TIMINGS = 0x00000002
IN_CAP_STD = 0x00000004


class QueryExtCtrl(ctypes.Structure):
    """``struct v4l2_query_ext_ctrl``."""

    _fields_ = (
        ('id', ctypes.c_uint32),
        ('type', ctypes.c_uint32),
        ('name', ctypes.c_char * 32),
        ('minimum', ctypes.c_int64),
        ('maximum', ctypes.c_int64),
        ('step', ctypes.c_uint64),
        ('default_value', ctypes.c_int64),
        ('flags', ctypes.c_uint32),
        ('elem_size', ctypes.c_uint32),
        ('elems', ctypes.c_uint32),
        ('nr_of_dims', ctypes.c_uint32),
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
    _fields_ = (('id', ctypes.c_uint32), ('index', ctypes.c_uint32), ('_item', _MenuUnion), ('reserved', ctypes.c_uint32))


class _ExtControlUnion(ctypes.Union):
    _pack_ = 1
    _layout_ = 'ms'
    _fields_ = (('value', ctypes.c_int32), ('value64', ctypes.c_int64), ('string', ctypes.c_void_p))


class ExtControl(ctypes.Structure):
    """``struct v4l2_ext_control``, which is packed."""

    _pack_ = 1
    _layout_ = 'ms'
    _anonymous_ = ('_value',)
    _fields_ = (('id', ctypes.c_uint32), ('size', ctypes.c_uint32), ('reserved2', ctypes.c_uint32 * 1), ('_value', _ExtControlUnion))


class ExtControls(ctypes.Structure):
    """``struct v4l2_ext_controls``; ``which`` stands in a union with ``ctrl_class``."""

    _fields_ = (
        ('which', ctypes.c_uint32),
        ('count', ctypes.c_uint32),
        ('error_idx', ctypes.c_uint32),
        ('request_fd', ctypes.c_int32),
        ('reserved', ctypes.c_uint32 * 1),
        ('controls', ctypes.POINTER(ExtControl)),
    )


class EventSubscription(ctypes.Structure):
    """``struct v4l2_event_subscription``."""

    _fields_ = (('type', ctypes.c_uint32), ('id', ctypes.c_uint32), ('flags', ctypes.c_uint32), ('reserved', ctypes.c_uint32 * 5))


class _EventUnion(ctypes.Union):
    # The pointer gives the union the alignment that the others in it have.
    _fields_ = (('src_change', ctypes.c_uint32), ('data', ctypes.c_uint8 * 64), ('_align', ctypes.c_int64))


class Timespec(ctypes.Structure):
    """``struct timespec`` of a 64-bit kernel."""

    _fields_ = (('tv_sec', ctypes.c_int64), ('tv_nsec', ctypes.c_int64))


class Event(ctypes.Structure):
    """``struct v4l2_event``; of its union only the source change's ``changes`` and the raw bytes."""

    _fields_ = (
        ('type', ctypes.c_uint32),
        ('u', _EventUnion),
        ('pending', ctypes.c_uint32),
        ('sequence', ctypes.c_uint32),
        ('timestamp', Timespec),
        ('id', ctypes.c_uint32),
        ('reserved', ctypes.c_uint32 * 8),
    )


class Input(ctypes.Structure):
    """``struct v4l2_input``."""

    _fields_ = (
        ('index', ctypes.c_uint32),
        ('name', ctypes.c_char * 32),
        ('type', ctypes.c_uint32),
        ('audioset', ctypes.c_uint32),
        ('tuner', ctypes.c_uint32),
        ('std', ctypes.c_uint64),
        ('status', ctypes.c_uint32),
        ('capabilities', ctypes.c_uint32),
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
