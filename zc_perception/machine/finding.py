"""What a check says: what was found, how good that is, what to do.

How bad something is depends on who needs it, which the parameter file says (:class:`Need`):

============  ===============================================================  ==========================================================
need          when                                                             what is missing or can't be used is a
============  ===============================================================  ==========================================================
REQUIRED      the parameter file names it                                      ``fail``: these nodes won't do what their file says
POSSIBLE      ``auto`` may take it, or there is no parameter file              ``warn``: something else does, or the use it is for is out
                                                                               (``skip`` for software that most machines don't have)
UNUSED        the parameter file uses something else                           ``skip``
============  ===============================================================  ==========================================================
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any


class Status(Enum):
    """The verdict. ``SKIP``: does not apply here, and why."""

    OK = 'ok'
    WARN = 'warn'
    FAIL = 'fail'
    SKIP = 'skip'


class Need(Enum):
    """Who needs it."""

    REQUIRED = 'required'
    POSSIBLE = 'possible'
    UNUSED = 'unused'

    @property
    def missing(self) -> Status:
        """The verdict on something that is missing, or can't be used."""
        return {Need.REQUIRED: Status.FAIL, Need.POSSIBLE: Status.WARN, Need.UNUSED: Status.SKIP}[
            self
        ]

    @property
    def missing_extra(self) -> Status:
        """The same of software that most machines do without."""
        return Status.FAIL if self is Need.REQUIRED else Status.SKIP


@dataclass(frozen=True)
class Finding:
    """One line of the report.

    :param found: what is there, in one sentence without a full stop.
    :param advice: what to do; empty where there is nothing to do.
    :param subject: which device, heap or camera, where a check has several.
    :param figures: the same for programs: strings, numbers, booleans, ``None``, and lists and objects of them.
    """

    status: Status
    found: str
    advice: str = ''
    subject: str = ''
    figures: Mapping[str, Any] = field(default_factory=dict)


def ok(found: str, subject: str = '', /, **figures: Any) -> Finding:
    """All is well."""
    return Finding(Status.OK, found, '', subject, figures)


def skip(found: str, subject: str = '', /, **figures: Any) -> Finding:
    """Does not apply; *found* says why."""
    return Finding(Status.SKIP, found, '', subject, figures)


def told(status: Status, error: object, subject: str = '', /, **figures: Any) -> Finding:
    """One of the package's own errors, which says what to do behind its last semicolon."""
    found, _, advice = str(error).rpartition('; ')
    return Finding(status, found or advice, advice, subject, figures)
