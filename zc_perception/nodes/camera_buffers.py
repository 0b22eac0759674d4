"""The buffers of one camera: negotiated with everybody who is known when capture is configured, and what became of each of them."""

from __future__ import annotations

from collections.abc import Sequence

from zc_perception.camera.camera import Camera
from zc_perception.errors import NegotiationError
from zc_perception.negotiation.collection import BufferCollection
from zc_perception.negotiation.constraints import BufferConstraints
from zc_perception.negotiation.roster import Verdict
from zc_perception.negotiation.settings import Allocation, AllocationRequest, BufferSettings
from zc_perception.negotiation.token import BufferToken, Consumer, Participant
from zc_perception.observe.diagnostics import Level, Status

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
        self._local_slots = 0
        self.collection = BufferCollection(
            camera.device, (camera.width, camera.height), heaps=[camera.heap_name], wanted_slots=wanted_slots
        )

    def configure(self, consumers: Sequence[BufferConstraints | Consumer]) -> BufferSettings:
        """Agree with camera, consumers and stand-ins, allocate, and let every consumer import every buffer on trial. Once.

        :raises NegotiationError: nothing suits everybody, or a required consumer can't import the buffers.
        :raises AllocationError: no memory.
        """
        self._local_slots = sum(constraints.slots + 1 for constraints in map(_constraints, consumers))
        first = self.collection.first_token()
        tokens = [first.duplicate(constraints.participant) for constraints in map(_constraints, consumers)]
        stand_in_tokens = [first.duplicate(constraints.participant) for constraints in self._stand_ins]
        self._take_part(first, Consumer(self._camera.constraints(), required=True))
        for token, consumer in zip(tokens, consumers, strict=True):
            self._take_part(token, consumer if isinstance(consumer, Consumer) else Consumer(consumer))
        for token, constraints in zip(stand_in_tokens, self._stand_ins, strict=True):
            token.stand_in(constraints)
        return self.collection.allocate(self._allocate, _ALLOCATE_S)

    @property
    def local_slots(self) -> int:
        """Slots that consumers of this process hold together, and one more each: the newest frame comes before the oldest goes."""
        return self._local_slots

    def _take_part(self, token: BufferToken, consumer: Consumer) -> None:
        constraints = consumer.constraints
        participant = token.bind(constraints.participant, trial_import=consumer.trial_import, required=consumer.required)
        self._participants.append(participant)
        participant.set_constraints(constraints)

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
        values: dict[str, object] = {f'participant {name}': str(outcome) for name, outcome in outcomes.items()}
        values |= {f'references {kind}': ', '.join(holders) for kind, holders in self.collection.references().items()}
        try:
            settings = self.collection.settings
        except NegotiationError as error:
            level = Level.ERROR if self.collection.failure else Level.WARN
            return Status('negotiation', level, str(error), values)
        values |= {'settings': settings.describe(), 'generation': self.collection.generation}
        lost = [f'{name} {o}' for name, o in outcomes.items() if o.verdict in (Verdict.FELL_BACK, Verdict.REFUSED, Verdict.DIED)]
        if lost:
            return Status('negotiation', Level.WARN, f'{"; ".join(lost)}: frames reach them by the next link, which copies', values)
        return Status('negotiation', Level.OK, settings.describe(), values)

    def close(self) -> None:
        """Everybody lets go. Idempotent."""
        for participant in self._participants:
            participant.close()
        self.collection.close()


def _constraints(consumer: BufferConstraints | Consumer) -> BufferConstraints:
    return consumer.constraints if isinstance(consumer, Consumer) else consumer
