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
Negotiate buffers between one camera and all its consumers.

::

    session = BufferSession(camera.constraints(), (1920, 1080), wanted_slots=8)
    settings = session.allocate([Consumer(accelerator.constraints(), trial_import)], allocate)
    outcome = session.join(late)      # accepted, or refused with the reason
    reason = session.stands_against([late])    # empty: another setting would suit all

The camera and the present consumers state their constraints. A stand-in is the constraints of a
consumer that comes later; it counts until a consumer of the same name exists. The session chooses
one setting, and the camera allocates the buffers. Then each consumer imports every buffer on
trial, because the constraints alone don't guarantee that an import succeeds. Consumers in other
processes send their constraints in their HELLO message, and import on trial by themselves.

A consumer that joins after the allocation gets the buffers only if they suit it. If they don't,
:meth:`BufferSession.stands_against` checks whether another setting would suit all consumers. A
session allocates only once: for another setting the camera's owner makes another session.

If camera and stand-ins can't agree, the session fails, and its error names the constraints that
are the cause. A consumer that the setting doesn't suit gets no buffers; its :class:`Outcome` has
the reason.

**Threads.** Every method may be called from any thread. Allocators and trial imports run without
the lock.

Source: Fuchsia's *Sysmem overview* (constraints, stand-ins, late joiners) and the kernel's
*Exchanging pixel buffers*.
"""

from __future__ import annotations

from collections.abc import Sequence
import contextlib
from dataclasses import dataclass
from enum import Enum
import threading

from zc_perception.errors import NegotiationError, one_line
from zc_perception.negotiation.agreement import agree, check_answer
from zc_perception.negotiation.constraints import BufferConstraints, Size
from zc_perception.negotiation.settings import (
    AllocationRequest,
    Allocator,
    Buffers,
    BufferSettings,
    TrialImport,
    Undo,
    violations,
)


@dataclass(frozen=True, eq=False)
class Consumer:
    """
    A user of the buffers; two consumers are equal only if they are the same object.

    :param constraints: the consumer's constraints; ``participant`` is the consumer's name in logs
        and errors.
    :param trial_import: imports one slot's buffers on trial; ``None``: the consumer imports
        nothing, or does so in its own process.
    :param name: the name of the stand-in that the consumer replaces. A stand-in is constraints
        that were stated for a consumer before it came. By default, ``participant``.
    """

    constraints: BufferConstraints
    trial_import: TrialImport | None = None
    name: str = ''


class Verdict(Enum):
    """The result of the negotiation for one participant."""

    ACCEPTED = 'accepted'
    REFUSED = 'refused'
    FELL_BACK = 'fell back'
    STAND_IN = 'stand-in'


@dataclass(frozen=True)
class Outcome:
    """
    A participant's verdict and the reason for it.

    REFUSED: the participant's constraints don't suit the buffers or the earlier participants.
    FELL_BACK: its trial import failed.
    """

    verdict: Verdict
    reason: str = ''

    @property
    def has_buffers(self) -> bool:
        """Whether the participant may use the buffers."""
        return self.verdict in (Verdict.ACCEPTED, Verdict.STAND_IN)

    def __str__(self) -> str:
        return f'{self.verdict.value}: {self.reason}' if self.reason else self.verdict.value


class BufferSession:
    """
    The negotiation of one camera with its consumers: see the module's docstring.

    :param camera: the camera's constraints; ``heaps`` are those that it can allocate from. The
        order of its formats and heaps decides between settings with equal costs.
    :param size: the images' width and height in pixels.
    :param wanted_slots: the total number of slots to ask for, unless more are needed or fewer are
        allowed.
    :param stand_ins: the constraints of consumers that come later.

    Attribute ``possible`` has the constraints that the camera could have if it were opened again;
    the owner may set it, and by default it is *camera*. ``why`` has the reason for the chosen
    settings; it is empty if there was no choice.
    """

    def __init__(
        self,
        camera: BufferConstraints,
        size: Size,
        *,
        wanted_slots: int = 0,
        stand_ins: Sequence[BufferConstraints] = (),
    ) -> None:
        self._camera = camera
        self.possible = camera
        self._size = size
        self._wanted_slots = wanted_slots
        self._stand_ins = stand_ins
        self._lock = threading.Lock()
        self._outcomes: dict[Consumer, Outcome] = {}
        self._settings: BufferSettings | None = None
        self._buffers: tuple[Buffers, ...] = ()
        self.why = ''

    def allocate(self, consumers: Sequence[Consumer], allocator: Allocator) -> BufferSettings:
        """
        Choose settings for all consumers, allocate the buffers, and let the consumers import them.

        Consumers whose constraints contradict those of the camera, of a stand-in (for a consumer
        that comes later) or of earlier *consumers* are refused. Each other consumer imports the
        buffers of every slot. Call this method only once in a session.

        :raises NegotiationError: camera and stand-ins can't agree, or the allocation doesn't match
            the request.
        :raises AllocationError: *allocator* has no memory.
        """
        request, outcomes = self.plan(consumers)
        allocation = allocator(request)
        fixed = [self._camera, *self._standing_in(consumers)]
        settings = check_answer(request, allocation, fixed)
        for consumer in [one for one in consumers if one not in outcomes]:
            outcomes[consumer] = self._admit(consumer, settings, allocation.buffers)
        with self._lock:
            self._settings, self._buffers = settings, allocation.buffers
            self.why = '; '.join(request.reasons)
            self._outcomes = {consumer: outcomes[consumer] for consumer in consumers}
        return settings

    def _standing_in(self, consumers: Sequence[Consumer]) -> list[BufferConstraints]:
        """Return the stand-ins that no consumer of the same name in *consumers* replaces."""
        here = {consumer.name or consumer.constraints.participant for consumer in consumers}
        return [one for one in self._stand_ins if one.participant not in here]

    def plan(
        self, consumers: Sequence[Consumer]
    ) -> tuple[AllocationRequest, dict[Consumer, Outcome]]:
        """
        Return the request that :meth:`allocate` would make, and the consumers it would refuse.

        :raises NegotiationError: no setting suits both the camera and the stand-ins, which are the
            constraints of consumers that come later.
        """
        refused: dict[Consumer, Outcome] = {}
        fitting: list[Consumer] = []
        stand_ins = self._standing_in(consumers)
        request = self._agree((), stand_ins)
        for consumer in consumers:
            try:
                request = self._agree([*fitting, consumer], stand_ins)
            except NegotiationError as error:
                refused[consumer] = Outcome(Verdict.REFUSED, str(error))
            else:
                fitting.append(consumer)
        return request, refused

    def _agree(
        self,
        consumers: Sequence[Consumer],
        stand_ins: Sequence[BufferConstraints],
        camera: BufferConstraints | None = None,
    ) -> AllocationRequest:
        constraints = [consumer.constraints for consumer in consumers]
        participants = [camera or self._camera, *constraints, *stand_ins]
        return agree(participants, self._size, wanted_slots=self._wanted_slots)

    def stands_against(
        self, newcomers: Sequence[Consumer], camera: BufferConstraints | None = None
    ) -> str:
        """
        Return why no buffer settings suit the accepted consumers and *newcomers*.

        An empty text means that there are suitable settings.

        :param camera: the camera's constraints; by default attribute ``possible``.
        """
        consumers = [*(one for one in self._accepted() if one not in newcomers), *newcomers]
        try:
            self._agree(consumers, self._standing_in(consumers), camera or self.possible)
        except NegotiationError as error:
            return str(error)
        return ''

    def outcome(self, consumer: Consumer) -> Outcome | None:
        """Return the result for *consumer*; ``None``: it isn't part of this session."""
        with self._lock:
            return self._outcomes.get(consumer)

    def _admit(
        self, consumer: Consumer, settings: BufferSettings, buffers: Sequence[Buffers]
    ) -> Outcome:
        problems = violations(consumer.constraints, settings)
        if problems:
            return Outcome(Verdict.REFUSED, '; '.join(problems))
        failure = trial_failure(consumer.trial_import, settings, buffers)
        return Outcome(Verdict.FELL_BACK, failure) if failure else Outcome(Verdict.ACCEPTED)

    def join(self, consumer: Consumer) -> Outcome:
        """
        Add *consumer* after the allocation, and return whether the consumer was accepted.

        To be accepted, the consumer must be able to use the allocated buffers, enough slots must
        be free, and the consumer's trial imports of all slots must succeed.

        :raises NegotiationError: nothing is allocated yet.
        """
        settings = self.settings
        outcome = self._too_few(consumer, settings) or self._admit(
            consumer, settings, self._buffers
        )
        with self._lock:
            self._outcomes[consumer] = outcome
        return outcome

    def _too_few(self, consumer: Consumer, settings: BufferSettings) -> Outcome | None:
        """Return a refusal if fewer slots are free than *consumer* needs, else ``None``."""
        claims = [self._camera, *(one.constraints for one in self._accepted())]
        free = settings.slots - sum(claim.slots for claim in claims)
        wanted = consumer.constraints.slots
        if wanted <= free:
            return None
        holders = ', '.join(f'{one.participant} {one.slots}' for one in claims if one.slots)
        return Outcome(
            Verdict.REFUSED,
            f'it needs {wanted} slots, but only {max(free, 0)} of {settings.slots} are not '
            f"reserved ({holders}); raise parameter 'slots', or name the consumer in parameter "
            'participants',
        )

    def _accepted(self) -> list[Consumer]:
        with self._lock:
            return [
                consumer for consumer, outcome in self._outcomes.items() if outcome.has_buffers
            ]

    def leave(self, consumer: Consumer) -> None:
        """Remove *consumer*, so that other consumers can get its slots. Idempotent."""
        with self._lock:
            self._outcomes.pop(consumer, None)

    def objection(self, consumer: Consumer) -> str:
        """Return why *consumer* must not get buffers; empty: it may, or no buffers exist."""
        with self._lock:
            if self._settings is None:
                return ''
            outcome = self._outcomes.get(consumer)
        if outcome is None:
            return 'it was not part of the negotiation of these buffers'
        return '' if outcome.has_buffers else str(outcome)

    @property
    def settings(self) -> BufferSettings:
        """The settings of the allocated buffers; raises NegotiationError if there are none yet."""
        with self._lock:
            if self._settings is None:
                raise NegotiationError(
                    f'the buffers of {self._camera.participant} are not allocated yet'
                )
            return self._settings

    @property
    def settled(self) -> bool:
        return self._settings is not None

    def outcomes(self) -> dict[str, Outcome]:
        """Return a dict from participant's name to result; if names are equal, the last result."""
        found = (
            {} if self._settings is None else {self._camera.participant: Outcome(Verdict.ACCEPTED)}
        )
        with self._lock:
            consumers = list(self._outcomes)
            found |= {
                consumer.constraints.participant: outcome
                for consumer, outcome in self._outcomes.items()
            }
        for stand_in in self._standing_in(consumers):
            found.setdefault(stand_in.participant, Outcome(Verdict.STAND_IN))
        return found

    def describe(self) -> str:
        """Return a log line: the settings, why they were chosen, and each participant's result."""
        why = f' ({self.why})' if self.why else ''
        return f'{self.settings.describe()}{why}; ' + ', '.join(
            f'{name} {outcome}' for name, outcome in self.outcomes().items()
        )


def trial_failure(
    trial: TrialImport | None,
    settings: BufferSettings,
    slots: Sequence[Buffers],
    number: int | None = None,
) -> str:
    """
    Import every slot's buffers on trial; return the error's text, or an empty text.

    After a failure, earlier imports are undone.

    :param number: the slot's number, for the error's text, if *slots* has only one of the
        pool's slots.
    """
    if trial is None:
        return ''
    undos: list[Undo] = []
    for index, buffers in enumerate(slots):
        try:
            undo = trial(settings, buffers)
        except Exception as error:
            # A consumer's code may raise any exception. Only this consumer fails then; all other
            # consumers continue.
            while undos:
                with contextlib.suppress(Exception):
                    undos.pop()()
            which = f'{index} of {len(slots)}' if number is None else number
            return f'trial import of slot {which} failed: {one_line(error)}'
        if undo is not None:
            undos.append(undo)
    return ''
