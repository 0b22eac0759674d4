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
The package's exceptions, and functions that format their messages.

Every message is written for the program's user: it names the wrong value, the allowed values and
the next step. Console scripts print the message as one line, without a traceback. They then exit
with :data:`EXIT_USAGE`, or :data:`EXIT_FAILURE` if the work failed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
import errno

EXIT_FAILURE, EXIT_USAGE = 1, 2
NO_DESCRIPTOR: Mapping[int, str] = {
    errno.EMFILE: "this process has no file descriptor left; raise the limit ('ulimit -n')",
    errno.ENFILE: (
        'the machine has no file descriptor left; end the program that leaks them, or '
        'raise fs.file-max'
    ),
}
"""
What to do when no file descriptor is left, by errno.

The meaning of other errnos depends on the system call. So modules that make system calls have
tables of their own.
"""
_MOST_SHOWN = 120
# Larger integers are not converted: str() raises above 4,300 digits, which are about 14,000 bits
# (see sys.set_int_max_str_digits).
_MOST_BITS = 10_000


class ZcError(Exception):
    """Base class of every error that this package raises on purpose."""


class ConfigError(ZcError):
    """The user named a parameter value, file or model that can't be used."""


class LayoutError(ZcError, ValueError):
    """A plane layout is impossible or doesn't fit its buffers. The message names the plane."""


class FormatError(ZcError, ValueError):
    """A pixel format or modifier is unknown, unsupported, or has no name in another API."""


class AllocationError(ZcError):
    """Memory of the required kind can't be allocated or mapped."""


class FrameReleasedError(ZcError):
    """A frame was used after its release."""


class StaleFrameError(ZcError):
    """A lease or message refers to a frame whose slot the camera has reused since."""


class NegotiationError(ZcError):
    """No format and layout meets all participants' constraints; the message names the conflict."""


class CameraError(ZcError):
    """A camera can't be opened, or it no longer delivers frames."""


class RecordingError(CameraError):
    """
    The rest of a recording can't be played, so the recording counts as ended.

    Opening it again would fail at the same place.
    """


class CameraLostError(CameraError):
    """
    The camera was unplugged, or gave no frame for longer than its watchdog allows.

    Close the camera; it may be opened again when a device with the same identity is plugged in.
    """


class CameraChangedError(CameraError):
    """The camera's format has changed: close the camera, open it again and renegotiate."""


class CameraBusyError(CameraError):
    """The camera can't be opened, because another program streams from it."""


class AcceleratorError(ZcError):
    """
    An accelerator can't be opened, or a job failed.

    The node continues; it drops the job's frame and counts it as lost.
    """


class NoDeviceError(AcceleratorError):
    """This machine has no accelerator of the requested kind, which is not a fault."""


class DeviceLostError(AcceleratorError):
    """
    The accelerator was removed or hangs; all its jobs are lost.

    Close all objects that use the device before opening it again.
    """


def nearest(word: str, known: Iterable[str]) -> str:
    """Return ``; did you mean 'x'?`` with the known word most like *word*, or an empty text."""
    from difflib import get_close_matches  # imported here, because only mistakes need this module

    names = {name.lower(): name for name in known}
    found = get_close_matches(word.lower(), names, n=1, cutoff=0.6)
    return f"; did you mean '{names[found[0]]}'?" if found else ''


def printable(text: str) -> str:
    """
    Escape line breaks, terminal control codes and other unprintable characters of *text*.

    Use this function for every text from outside the package: names of processes, nodes and files,
    and values read from files.
    """
    return ''.join(c if c.isprintable() else c.encode('unicode_escape').decode() for c in text)


def shown(value: object) -> str:
    """Format a value for a message: text in quotes, escaped, cut after 120 characters."""
    if isinstance(value, int) and value.bit_length() > _MOST_BITS:
        return f'a number of {value.bit_length()} bits'
    try:
        text = f"'{value}'" if isinstance(value, str) else str(value)
    except Exception:  # str() may raise for any object
        text = type(value).__name__
    return printable(text) if len(text) <= _MOST_SHOWN else f'{printable(text[:_MOST_SHOWN])}…'


def message_of(error: BaseException) -> str:
    """Return an exception's text without line breaks, escaped by :func:`printable`."""
    return printable(' '.join(str(error).split()))


def one_line(error: BaseException) -> str:
    """Return an exception's class and text as one line; for a :exc:`ZcError`, only the text."""
    try:
        text = message_of(error)
    except Exception:  # str() of another package's exception may raise
        text = ''
    if isinstance(error, ZcError) and text:
        return text
    return f'{type(error).__name__}: {text}' if text else type(error).__name__


def error_line(program: str, error: Exception) -> str:
    """Return the line that a program prints about an error, escaped by :func:`printable`."""
    return f'{program}: error: {printable(str(error))}'
