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
The package's one family of errors.

Every message is a sentence for the person at the keyboard: the value that was wrong, what is
allowed, what to do next. Console scripts print the message as one line, without a traceback, and
exit with :data:`EXIT_USAGE`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
import errno

EXIT_FAILURE, EXIT_USAGE = 1, 2
NO_DESCRIPTOR: Mapping[int, str] = {
    errno.EMFILE: "this process has no file descriptor left; raise the limit ('ulimit -n')",
    errno.ENFILE: (
        'the machine has no file descriptor left; end what leaks them, or raise fs.file-max'
    ),
}
"""
By errno: what to do when no descriptor is left, whatever was opened.

What other errnos mean depends on the call; each driver's room has its own table.
"""
_MOST_SHOWN = 120
# Python converts no number of more than 4,300 digits to text (sys.set_int_max_str_digits).
_MOST_BITS = 10_000


class ZcError(Exception):
    """Base class of every error that this package raises on purpose."""


class ConfigError(ZcError):
    """A parameter, file or model that the user named can't be used."""


class LayoutError(ZcError, ValueError):
    """A plane layout is impossible or doesn't fit its buffers. The message names the plane."""


class FormatError(ZcError, ValueError):
    """A pixel format or modifier is unknown, or has no name in the asked system."""


class AllocationError(ZcError):
    """Memory of the wanted kind could not be allocated."""


class FrameReleasedError(ZcError):
    """A frame was used after its lease had been dropped."""


class StaleFrameError(ZcError):
    """A descriptor or lease names a generation of a slot that has been reused since."""


class NegotiationError(ZcError):
    """
    The participants' constraints have no common setting.

    The message names the participants and the constraints.
    """


class CameraError(ZcError):
    """A camera can't be opened, or it no longer delivers frames."""


class RecordingError(CameraError):
    """
    The rest of a recording can't be played.

    The recording counts as ended, because opening it again would fail at the same place.
    """


class CameraLostError(CameraError):
    """
    The camera was unplugged, or gave no frame for longer than its watchdog allows.

    Close the camera; the same device (by its identity) may come back.
    """


class CameraChangedError(CameraError):
    """The source has another format now: close the camera, open it again and negotiate anew."""


class CameraBusyError(CameraError):
    """Another program streams from the camera."""


class AcceleratorError(ZcError):
    """
    An accelerator can't be opened, or a job failed.

    The node goes on; the job's frame is lost and counted.
    """


class NoDeviceError(AcceleratorError):
    """
    This machine has no device of that kind.

    That is no fault: a laptop, for example, has no accelerator card.
    """


class DeviceLostError(AcceleratorError):
    """
    The accelerator is gone or hangs, and all its jobs are lost.

    Close the objects that use the device; they may be opened again later.
    """


def nearest(word: str, known: Iterable[str]) -> str:
    """
    Return ``; did you mean 'x'?`` for the known word nearest to *word*, or an empty text.

    Upper and lower case count as equal.
    """
    from difflib import get_close_matches  # imported here, because only mistakes need this module

    names = {name.lower(): name for name in known}
    found = get_close_matches(word.lower(), names, n=1, cutoff=0.6)
    return f"; did you mean '{names[found[0]]}'?" if found else ''


def printable(text: str) -> str:
    """
    Return *text* as one line that a terminal prints.

    Characters that move its cursor, change its colours or aren't printable are escaped. Use this
    function for every text that comes from outside: names of processes, nodes and files, values of
    a file.
    """
    return ''.join(c if c.isprintable() else c.encode('unicode_escape').decode() for c in text)


def shown(value: object) -> str:
    """
    Return a value for a message: text in quotes, escaped by :func:`printable`.

    Of a long value, the first 120 characters are shown.
    """
    if isinstance(value, int) and value.bit_length() > _MOST_BITS:
        return f'a number of {value.bit_length()} bits'
    try:
        text = f"'{value}'" if isinstance(value, str) else str(value)
    except Exception:  # str() may raise for any object
        text = type(value).__name__
    return printable(text) if len(text) <= _MOST_SHOWN else f'{printable(text[:_MOST_SHOWN])}…'


def message_of(error: BaseException) -> str:
    """
    Return an exception's text, to be used within a line.

    The text has no line breaks, and is escaped by :func:`printable`.
    """
    return printable(' '.join(str(error).split()))


def one_line(error: BaseException) -> str:
    """
    Return an exception's class and text, to be used within a sentence.

    The class is left out for errors of this package.
    """
    try:
        text = message_of(error)
    except Exception:  # str() of another package's exception may raise
        text = ''
    if isinstance(error, ZcError):
        return text
    return f'{type(error).__name__}: {text}' if text else type(error).__name__


def error_line(program: str, error: Exception) -> str:
    """
    Return the line that a program prints about an error.

    It is always one line; characters that a terminal would not print are escaped.
    """
    return f'{program}: error: {printable(str(error))}'
