"""The buffers of one camera: negotiated with everybody who is known when capture is configured, and what became of each of them."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence

from zc_perception.camera.camera import Camera
from zc_perception.errors import NegotiationError
from zc_perception.negotiation.collection import BufferCollection
from zc_perception.negotiation.constraints import BufferConstraints
from zc_perception.negotiation.roster import Verdict
from zc_perception.negotiation.settings import Allocation, AllocationRequest, BufferSettings
from zc_perception.negotiation.token import BufferToken, Consumer, Participant
from zc_perception.nodes.perception_node import FINALIZED
from zc_perception.observe.diagnostics import Figures, Level, Status

# Everybody is in this process and has spoken before; nobody is waited for.
_ALLOCATE_S = 1.0


class CameraBuffers:
    """Negotiates a camera's buffers; the camera allocates them.

    :param wanted_slots: slots in all, if participants don't need more.
    :param stand_ins: constraints of participants that come later.
    """

    def __init__(self, camera: Camera, *, wanted_slots: int, stand_ins: Sequence[BufferConstraints]) -> None:
        self._camera = camera
        self._stand_ins = stand_ins
        self._participants: list[Participant] = []
        self._local: dict[int, tuple[Participant, BufferConstraints]] = {}
        self.settled = False
        self.collection = BufferCollection(
            camera.device, (camera.width, camera.height), heaps=[camera.heap_name], wanted_slots=wanted_slots
        )

    def configure(self, consumers: Sequence[BufferConstraints | Consumer]) -> BufferSettings:
        """Agree with camera, consumers and stand-ins, allocate, and let every consumer import every buffer on trial. Once.

        :raises NegotiationError: nothing suits everybody, or a required consumer can't import the buffers.
        :raises AllocationError: no memory.
        """
        first = self.collection.first_token()
        tokens = [first.duplicate(constraints.participant) for constraints in map(_constraints, consumers)]
        stand_in_tokens = [first.duplicate(constraints.participant) for constraints in self._stand_ins]
        self._take_part(first, Consumer(self._camera.constraints(), required=True))
        for token, consumer in zip(tokens, consumers, strict=True):
            participant = self._take_part(token, consumer if isinstance(consumer, Consumer) else Consumer(consumer))
            self._local[id(consumer)] = participant, _constraints(consumer)
        for token, constraints in zip(stand_in_tokens, self._stand_ins, strict=True):
            token.stand_in(constraints)
        settings = self.collection.allocate(self._allocate, _ALLOCATE_S)
        self.settled = True
        return settings

    def join(self, consumer: Consumer) -> None:
        """Let one in that comes after the allocation; it imports every buffer on trial.

        :raises NegotiationError: what is allocated doesn't suit it.
        """
        constraints = consumer.constraints
        token = self.collection.attach_token(constraints.participant)
        participant = self._take_part(token, consumer)
        self._local[id(consumer)] = participant, constraints

    def leave(self, consumer: Consumer) -> None:
        """It lets go; its place is somebody else's. Idempotent."""
        entry = self._local.pop(id(consumer), None)
        if entry is not None:
            self._participants.remove(entry[0])
            entry[0].close()

    @property
    def local_slots(self) -> int:
        """Slots that consumers of this process hold together, and one more each: the newest frame comes before the oldest goes."""
        return sum(constraints.slots + 1 for _, constraints in self._local.values())

    def _take_part(self, token: BufferToken, consumer: Consumer) -> Participant:
        constraints = consumer.constraints
        participant = token.bind(constraints.participant, trial_import=consumer.trial_import, required=consumer.required)
        try:
            participant.set_constraints(constraints)
        except BaseException:
            participant.close()
            raise
        self._participants.append(participant)
        return participant

    def _allocate(self, request: AllocationRequest) -> Allocation:
        self._camera.allocate(request)
        slots = self._camera.slots
        return Allocation(slots[0].layout, tuple(slot.buffers for slot in slots))

    def describe(self) -> str:
        """What was agreed on, and what became of each participant; one line."""
        outcomes = ', '.join(f'{name} {outcome}' for name, outcome in self.collection.outcomes().items())
        return f'{self.collection.settings.describe()}; {outcomes}'

    def status(self) -> Status:
        """For diagnostics."""
        outcomes = self.collection.outcomes()
        values = Figures(lambda: self._figures(outcomes))
        try:
            settings = self.collection.settings
        except NegotiationError as error:
            level = Level.ERROR if self.collection.failure else Level.WARN
            return Status(
                'negotiation', level, str(error), values, 'change what the message names: a participant, a format, a heap or a size'
            )
        lost = [f'{name} {o}' for name, o in outcomes.items() if o.verdict in (Verdict.FELL_BACK, Verdict.REFUSED, Verdict.DIED)]
        if lost:
            text = f'{"; ".join(lost)}: frames reach them by the next link, which copies'
            return Status(
                'negotiation', Level.WARN, text, values, 'start them before the camera, or name them in its parameter participants'
            )
        return Status('negotiation', Level.OK, settings.describe(), values)

    def _figures(self, outcomes: Mapping[str, object]) -> dict[str, object]:
        values: dict[str, object] = {f'participant {name}': str(outcome) for name, outcome in outcomes.items()}
        values |= {f'references {kind}': ', '.join(holders) for kind, holders in self.collection.references().items()}
        with contextlib.suppress(NegotiationError):
            values |= {'settings': self.collection.settings.describe(), 'generation': self.collection.generation}
        return values

    def close(self) -> None:
        """Everybody lets go. Idempotent."""
        for participant in self._participants:
            participant.close()
        self.collection.close()


def negotiation_status(buffers: CameraBuffers | None, disagreement: str, state: str, *, waits: bool) -> Status:
    """What was agreed on.

    :param disagreement: why nothing was; empty: nobody has tried.
    :param state: the node's.
    :param waits: whether a camera is to come, of which part ``camera`` tells.
    """
    if buffers is not None:
        return buffers.status()
    if disagreement:
        again = 'restart the node' if state == FINALIZED else 'configure the node again or restart it'
        return Status('negotiation', Level.ERROR, disagreement, advice=f'change what the message names, then {again}')
    if waits:
        return Status('negotiation', Level.WARN, 'waits for the camera', advice='part camera says what it waits for')
    return Status('negotiation', Level.OK, f'nothing to agree on: the node is {state}')


def _constraints(consumer: BufferConstraints | Consumer) -> BufferConstraints:
    return consumer.constraints if isinstance(consumer, Consumer) else consumer
