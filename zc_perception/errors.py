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
allowed, what to do next. Console scripts print it as one line and exit with :data:`EXIT_USAGE`;
nothing of it is ever a traceback.
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
What to do about these errnos, whatever was opened. The meaning of other errnos depends on the
call: each driver's room knows its own.
"""
_MOST_SHOWN = 120
# Python writes no number of more than 4,300 digits (sys.set_int_max_str_digits).
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
    """No memory of the wanted kind could be had."""


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
    A recording can't be played on.

    Opening it again would meet the same place: it has ended, whatever the rest of it holds.
    """


class CameraLostError(CameraError):
    """
    The camera was unplugged, or stays silent beyond its watchdog.

    Close it; the same device (by its identity) may come back.
    """


class CameraChangedError(CameraError):
    """The source has another format now: close the camera, open it again and negotiate anew."""


class CameraBusyError(CameraError):
    """Another program streams from the camera."""


class AcceleratorError(ZcError):
    """
    An accelerator can't be opened, or a job failed.

    The node lives on; the frame is lost and counted.
    """


class NoDeviceError(AcceleratorError):
    """
    This machine has no device of that kind.

    Nothing is wrong with it: a laptop has no accelerator card.
    """


class DeviceLostError(AcceleratorError):
    """
    The device is gone or hangs: every job that it had is lost.

    What was opened must be closed, and may be opened anew later.
    """


def nearest(word: str, known: Iterable[str]) -> str:
    """
    Return ``; did you mean 'x'?`` for the known word nearest to *word*, or nothing.

    Capitals make no difference.
    """
    from difflib import get_close_matches  # only mistakes need it

    names = {name.lower(): name for name in known}
    found = get_close_matches(word.lower(), names, n=1, cutoff=0.6)
    return f"; did you mean '{names[found[0]]}'?" if found else ''


def printable(text: str) -> str:
    """
    Return *text* as one line that a terminal prints.

    Characters that move its cursor, change its colours or aren't printable are escaped. Use it for
    everything that comes from outside: names of processes, nodes and files, values of a file.
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
    except Exception:  # a foreign object may have no text, and a list may have long numbers
        text = type(value).__name__
    return printable(text) if len(text) <= _MOST_SHOWN else f'{printable(text[:_MOST_SHOWN])}…'


def message_of(error: BaseException) -> str:
    """
    Return an exception's text as a part of a line.

    It has no line breaks, and is escaped by :func:`printable`.
    """
    return printable(' '.join(str(error).split()))


def one_line(error: BaseException) -> str:
    """
    Return an exception as a part of a sentence: its class and its words.

    The class is left out if it is one of this package's.
    """
    try:
        text = message_of(error)
    except Exception:  # another package's exception may have no text
        text = ''
    if isinstance(error, ZcError):
        return text
    return f'{type(error).__name__}: {text}' if text else type(error).__name__


def error_line(program: str, error: Exception) -> str:
    """
    Return what a program says of an error.

    It is one line, whatever value it names; characters that a terminal would not print are
    escaped.
    """
    return f'{program}: error: {printable(str(error))}'
