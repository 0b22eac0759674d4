"""How many bytes the parameter file's pools take, and which memory they come from.

The doctor makes the capture node's own :class:`~zc_perception.negotiation.session.BufferSession` of the same participants (camera,
inference nodes of the same process, stand-ins of ``participants``), and asks it what it would allocate. Read :func:`pool_need` first.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from zc_perception.camera import libcamera
from zc_perception.camera.camera import DrawnCamera, drawn_constraints
from zc_perception.camera.gstreamer import buffers as pipeline_buffers
from zc_perception.camera.kinds import CAMERAS, draws
from zc_perception.camera.v4l2.checks import video
from zc_perception.camera.v4l2.choice import (
    FormatChoice,
    aligned_format,
    choose_formats,
    reserve_of,
)
from zc_perception.camera.v4l2.controls import V4l2Controls
from zc_perception.camera.v4l2.device import V4l2Device
from zc_perception.camera.v4l2.formats import JPEGS, FormatOffer, driver_layout
from zc_perception.camera.v4l2.memory import EXPORTED
from zc_perception.doctor.needs import uses_own_heap
from zc_perception.errors import (
    AllocationError,
    ConfigError,
    FormatError,
    NegotiationError,
    ZcError,
)
from zc_perception.machine.heaps import auto_heaps
from zc_perception.machine.needs import Needs, NodeNeed
from zc_perception.machine.system import System
from zc_perception.memory.heaps import HeapUse, OfferedHeaps, is_contiguous
from zc_perception.negotiation.agreement import slots_of
from zc_perception.negotiation.constraints import NO_CPU, BufferConstraints, Size
from zc_perception.negotiation.session import BufferSession, Consumer
from zc_perception.negotiation.settings import BufferSettings, violations
from zc_perception.negotiation.stand_in import parse_stand_ins
from zc_perception.npu.accelerator import Accelerator
from zc_perception.npu.kinds import ACCELERATORS
from zc_perception.npu.selection import candidates
from zc_perception.pixel.format_names import from_v4l2
from zc_perception.pixel.fourcc import NV12
from zc_perception.pixel.modifier import LINEAR


def _namespace(node: str) -> str:
    return node.rpartition('/')[0]


def _beside(needs: Needs, camera: NodeNeed) -> list[NodeNeed]:
    """The inference nodes of the camera's namespace. One that is in no camera's stands for those that each camera is going to have."""
    own = [
        inference
        for inference in needs.inferences
        if _namespace(inference.node) == _namespace(camera.node)
    ]
    spaces = {_namespace(one.node) for one in needs.cameras}
    return own or [
        inference for inference in needs.inferences if _namespace(inference.node) not in spaces
    ]


def _of_accelerator(system: System, inference: NodeNeed) -> BufferConstraints:
    for name in candidates(inference.kind):
        with suppress(ConfigError):  # a broken package, which check model.load tells
            kind: type[Accelerator] = ACCELERATORS.load(name)
            foreseen = kind.foreseen(kind.own(inference.values), system)
            if foreseen is not None:
                return foreseen
    return BufferConstraints(inference.kind, slots=inference['in_flight'] + 1)


def counting_only(constraints: BufferConstraints) -> BufferConstraints:
    """What is left where formats and memory aren't known: slots, alignments and sizes."""
    return replace(
        constraints, formats=None, costs=None, placement=None, heaps=None, contiguous=False, devices=(), cpu_access=NO_CPU,
    )  # fmt: skip


def anywhere(constraints: BufferConstraints) -> BufferConstraints:
    """Without its wishes for memory, where it isn't known which there will be."""
    return replace(constraints, heaps=None, contiguous=False, devices=())


_NOBODY_KNOWS = (0, 0)
_PAGE = os.sysconf('SC_PAGE_SIZE')


@dataclass(frozen=True)
class PoolNeed:
    """One camera's pool.

    :param memory: the heap's name, or whose memory it is.
    :param contiguous: whether that is the contiguous pool; ``None``: the driver's choice, which isn't known.
    :param buffers: bytes of each memory buffer of a slot, rounded up to pages; empty where the size isn't known.
    :param problem: why it isn't.
    :param refusal: why there can't be such a pool, in the negotiation's words; empty: there can.
    """

    camera: NodeNeed
    memory: str
    contiguous: bool | None
    size: Size = _NOBODY_KNOWS
    slots: int = 0
    buffers: tuple[int, ...] = ()
    problem: str = ''
    refusal: str = ''

    @property
    def slot_bytes(self) -> int:
        """Of each slot; 0 where the size isn't known."""
        return sum(self.buffers)

    @property
    def total(self) -> int:
        """Bytes of the whole pool."""
        return self.slots * self.slot_bytes

    def in_heap(self, name: str) -> PoolNeed:
        """With its buffers in that heap."""
        return replace(self, memory=name, contiguous=is_contiguous(name))

    def of(self, slots: int, buffers: Sequence[int]) -> PoolNeed:
        """With so many slots of such buffers."""
        return replace(
            self, slots=slots, buffers=tuple(-(-size // _PAGE) * _PAGE for size in buffers)
        )


@dataclass(frozen=True)
class _Consumers:
    """Everybody who takes part in the negotiation, but the camera.

    :param heaps: the heaps that the buffers may be from; ``None``: not known beforehand.
    :param wanted: slots in all, if they don't need more.
    """

    accelerators: list[BufferConstraints]
    stand_ins: list[BufferConstraints]
    heaps: OfferedHeaps | None
    wanted: int

    def plan(self, camera: BufferConstraints, size: Size) -> BufferSettings:
        """What the capture node's own session will ask the camera for. An accelerator that doesn't fit holds no slot.

        :raises NegotiationError: nothing suits the camera and all stand-ins; or an accelerator holds more frames, or wants other sizes,
            than there can be. Which formats and memory it takes other checks try for real.
        """
        accelerators, stand_ins = self.accelerators, self.stand_ins
        if self.heaps is None:
            accelerators, stand_ins = (
                list(map(anywhere, accelerators)),
                list(map(anywhere, stand_ins)),
            )
        session = BufferSession(camera, size, wanted_slots=self.wanted, stand_ins=stand_ins)
        request, refused = session.plan([Consumer(one) for one in accelerators])
        _, impossible = session.plan([Consumer(counting_only(one.constraints)) for one in refused])
        if impossible:
            raise NegotiationError(
                '; '.join(
                    f'{one.constraints.participant}: {outcome.reason}'
                    for one, outcome in impossible.items()
                )
            )
        return request.settings()

    def slots(self, held: int) -> int:
        """How many there are going to be, whatever the frames look like.

        :param held: by the camera.
        """
        return slots_of(
            [BufferConstraints('camera', slots=held), *self.accelerators, *self.stand_ins],
            self.wanted,
        )


def _drawing(kind: str) -> type[DrawnCamera] | None:
    """The class of a camera that draws its frames out of nothing, so that it knows their size and format before it is opened; ``None``:
    another kind of camera."""
    found = CAMERAS.load(kind) if draws(kind) else None
    return (
        found if found is not None and issubclass(found, DrawnCamera) and all(found.SIZE) else None
    )


def picture_size(system: System, camera: NodeNeed) -> Size:
    """What the parameters say, or the camera's own; (0, 0) where nobody knows before it streams."""
    if camera['width'] and camera['height']:
        return camera['width'], camera['height']
    if (drawing := _drawing(camera.kind)) is not None:
        return camera['width'] or drawing.SIZE[0], camera['height'] or drawing.SIZE[1]
    if camera.kind != 'v4l2':
        return _NOBODY_KNOWS
    with suppress(ZcError, OSError), video(system, camera['device']) as file:
        return V4l2Device(file).get_format().size
    return _NOBODY_KNOWS


def _offered(system: System, camera: NodeNeed, use: HeapUse) -> OfferedHeaps:
    """The heaps that parameter ``heap`` allows.

    :raises AllocationError: none that could be used.
    """
    if camera['heap'] == 'auto':
        return auto_heaps(system, use)
    return OfferedHeaps((camera['heap'],), (f"parameter 'heap' is '{camera['heap']}'",))


def _memory(camera: NodeNeed) -> str:
    """Whose memory it is, where the package doesn't allocate it."""
    return {
        'argus': 'NvBufSurface',
        'v4l2': "the driver's buffers",
        'gstreamer': "the pipeline's buffers",
        'libcamera': "libcamera's buffers",
    }.get(camera.kind, 'unknown buffers')


def pool_need(system: System, needs: Needs, camera: NodeNeed) -> PoolNeed:
    """What one camera's pool takes."""
    own = camera.kind == 'v4l2' or draws(camera.kind)
    wanted = camera['slots'] if own else max(camera['slots'], camera['pipeline_buffers'])
    need = PoolNeed(camera, _memory(camera), None)
    try:
        heaps = None
        if uses_own_heap(camera):
            heaps = _offered(
                system,
                camera,
                HeapUse.CAMERA_IMPORT if camera.kind == 'v4l2' else HeapUse.CAMERA,
            )
            need = need.in_heap(heaps.name)
        accelerators = [_of_accelerator(system, inference) for inference in _beside(needs, camera)]
        consumers = _Consumers(
            accelerators, parse_stand_ins(camera['participants']), heaps, wanted
        )
    except AllocationError as error:  # who looks for heaps complains
        return replace(
            need,
            memory='a heap that is not there',
            contiguous=False,
            slots=max(wanted, 0),
            problem=str(error),
        )
    except (ConfigError, NegotiationError) as error:
        return replace(
            need,
            slots=max(wanted, 0),
            problem='its participants are not known',
            refusal=str(error),
        )
    found = _asked(system, need, consumers) if camera.kind == 'v4l2' else None
    return found or _computed(system, need, consumers)


def _asked(system: System, need: PoolNeed, consumers: _Consumers) -> PoolNeed | None:
    """The pool of a V4L2 camera, by its driver's own answers; ``None``: it gives none that could be used, which other checks tell."""
    camera = need.camera
    try:
        with video(system, camera['device']) as file:
            device = V4l2Device(file)
            own_buffers = OfferedHeaps((f'v4l2/{device.driver}',), (EXPORTED,))
            if camera['memory'] == 'export':
                consumers = replace(consumers, heaps=own_buffers)
            choice = choose_formats(
                device,
                camera['width'],
                camera['height'],
                camera['pixel_format'],
                camera['framerate'],
            )
            heaps = consumers.heaps or own_buffers
            decoded = () if choice.jpeg is None else _offered(system, camera, HeapUse.CAMERA).names
            own = choice.constraints(
                heaps.names,
                reserve_of(V4l2Controls(device).minimum_buffers()),
                '; '.join(heaps.reasons),
                decoded,
            )
            return _of_driver(device, choice, replace(need, size=choice.size), own, consumers)
    except (ZcError, OSError):
        return None


def _of_driver(
    device: V4l2Device,
    choice: FormatChoice,
    need: PoolNeed,
    own: BufferConstraints,
    consumers: _Consumers,
) -> PoolNeed:
    try:
        settings = consumers.plan(own, choice.size)
    except NegotiationError as error:
        return replace(
            need,
            slots=consumers.slots(own.slots),
            problem='its participants do not agree',
            refusal=str(error),
        )
    code = choice.code(settings.format, settings.placement)
    assert code is not None, 'the camera agreed on it'
    if code in JPEGS:
        heap = '' if settings.heap is None else settings.heap.name
        return need.in_heap(heap).of(settings.slots, settings.sizes())
    driver = aligned_format(device.try_format, code, choice.size, settings.limits.stride_align)
    sizes = tuple(plane.size for plane in driver.planes)
    given = replace(settings, layout=driver_layout(driver))
    stand_ins = (
        consumers.stand_ins if consumers.heaps else list(map(anywhere, consumers.stand_ins))
    )
    need = _placed(need, settings)
    broken = [
        f'{one.participant}: {"; ".join(found)}'
        for one in stand_ins
        if (found := violations(one, given))
    ]
    refusal = f"the driver's frames do not suit {'; '.join(broken)}" if broken else ''
    return replace(need.of(settings.slots, sizes), refusal=refusal)


def _placed(need: PoolNeed, settings: BufferSettings) -> PoolNeed:
    """In the heap that was agreed on, where it is the package's to choose."""
    return (
        need
        if settings.heap is None or not uses_own_heap(need.camera)
        else need.in_heap(settings.heap.name)
    )


def _named_format(pixel_format: str, size: Size) -> FormatChoice:
    """What a V4L2 camera would have that can't be asked: the format that is named, or NV12, as which anything else is counted."""
    fourcc = NV12
    with suppress(FormatError):  # 'auto', JPEGs, and names that check cameras.configured refuses
        fourcc = from_v4l2(pixel_format).fourcc
    return FormatChoice((FormatOffer(fourcc, LINEAR, fourcc),), None, size)


def _computed(system: System, need: PoolNeed, consumers: _Consumers) -> PoolNeed:
    """The pool that a camera needs. Exact for a camera that draws. An estimate for one whose driver or pipeline can't be asked before it
    streams: its memory isn't known, and mostly not the format of its frames, so only the number of its consumers counts."""
    camera, size = need.camera, picture_size(system, need.camera)
    drawing = _drawing(camera.kind)
    if drawing is None:
        consumers = replace(consumers, stand_ins=list(map(counting_only, consumers.stand_ins)))
    if not draws(camera.kind):
        consumers = replace(
            consumers, accelerators=list(map(counting_only, consumers.accelerators))
        )
    held = (
        reserve_of(0)
        if camera.kind == 'v4l2'
        else libcamera.RESERVE
        if camera.kind == 'libcamera'
        else pipeline_buffers.RESERVE
    )
    if not all(size):
        return replace(
            need,
            slots=consumers.slots(held),
            problem='its picture size is not known before it streams; set width and height',
        )
    fourcc, need = NV12 if drawing is None else drawing.fourcc, replace(need, size=size)
    try:
        if draws(camera.kind):
            assert consumers.heaps is not None, 'it draws into a heap'
            own = drawn_constraints(fourcc, size, consumers.heaps)
        elif camera.kind == 'v4l2':
            own = _named_format(camera['pixel_format'], size).constraints((need.memory,), held)
        else:
            own = BufferConstraints(
                'camera',
                formats=((fourcc, LINEAR),),
                heaps=(need.memory,),
                slots=held,
                min_size=size,
                max_size=size,
            )
        settings = consumers.plan(own, size)
    except NegotiationError as error:  # or the size is one that nothing can have
        return replace(
            need,
            slots=consumers.slots(held),
            problem='its participants do not agree',
            refusal=str(error),
        )
    return _placed(need, settings).of(settings.slots, settings.sizes())
