"""What an allocator can say of a heap before anything is allocated.

Source: Fuchsia's *Sysmem overview*, Heaps: some are usable by a subset of the devices only, some not by the CPU; and the names that
the kernel's dma-heaps have.
"""

from __future__ import annotations

from dataclasses import dataclass

from zc_perception.negotiation.constraints import BufferConstraints, Caching

# CMA heaps by their names: the generic one, that of a device-tree reserved region, and that of kernels from 6.16.
_CONTIGUOUS = ('dma_heap/linux,cma', 'dma_heap/reserved', 'dma_heap/default_cma_region')


@dataclass(frozen=True)
class HeapOffer:
    """One heap that the allocator can use.

    :param name: ``dma_heap/system``, ``udmabuf``, ``memfd``, ``v4l2/DRIVER`` …
    :param cost: what its use costs, lower is better.
    :param contiguous: whether its buffers are physically contiguous; ``None``: unknown, which is no promise.
    :param cpu_access: whether its buffers can be mapped for the CPU.
    :param caching: how the CPU sees them; ``None``: unknown.
    :param devices: names of the devices that can attach, or prefixes ending in ``/``; ``None``: any.
    """

    name: str
    cost: float = 0.0
    contiguous: bool | None = None
    cpu_access: bool = True
    caching: Caching | None = None
    devices: tuple[str, ...] | None = None

    def reaches(self, device: str) -> bool:
        """Whether *device* can attach to its buffers."""
        return self.devices is None or any(device == d or (d.endswith('/') and device.startswith(d)) for d in self.devices)

    def objections(self, participant: BufferConstraints) -> list[str]:
        """Why *participant* can't use buffers of this heap; empty if it can."""
        name, found = participant.participant, []
        if not participant.accepts_heap(self.name):
            wanted = ', '.join(participant.heaps or ()) or 'none'
            found.append(f"{name} can't use buffers of heap '{self.name}', only of {wanted}")
        if participant.contiguous and self.contiguous is not True:
            state = 'is not' if self.contiguous is False else 'does not say that it is'
            found.append(f"{name} needs contiguous memory, which heap '{self.name}' {state}")
        if participant.uses_cpu and not self.cpu_access:
            found.append(f"{name} needs CPU access, which buffers of heap '{self.name}' don't have")
        away = [device for device in participant.devices if not self.reaches(device)]
        if away:
            found.append(f"{', '.join(away)} of {name} can't attach to buffers of heap '{self.name}'")
        return found

    def cost_for(self, participant: BufferConstraints) -> float:
        """What its buffers cost *participant*, an unfulfilled caching wish included."""
        wish = participant.caching is not None and self.caching is not None and participant.caching is not self.caching
        return participant.heap_cost(self.name) + (participant.caching_cost if wish else 0.0)


def heap_offer(name: str) -> HeapOffer:
    """The offer of a heap by its name, with what the name alone tells."""
    if name in _CONTIGUOUS:
        return HeapOffer(name, contiguous=True, caching=Caching.CACHED)
    if name in ('dma_heap/system', 'udmabuf'):
        return HeapOffer(name, contiguous=False, caching=Caching.CACHED)
    if name == 'memfd':  # ordinary memory, no dma-buf
        return HeapOffer(name, contiguous=False, caching=Caching.CACHED, devices=())
    return HeapOffer(name)
