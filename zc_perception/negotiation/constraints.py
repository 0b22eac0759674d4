"""What one participant can use, and the setting that all of them can."""

from __future__ import annotations

from dataclasses import dataclass

from zc_perception.pixel.layout import ImageLayout

Format = tuple[int, int]
"""A format is always the pair (fourcc, modifier)."""


@dataclass(frozen=True)
class BufferConstraints:
    """One participant's constraints. ``None`` means that it doesn't care.

    :param participant: its name, for the message when nothing fits.
    :param formats: the (fourcc, modifier) pairs it can use, the best first.
    :param stride_align: strides must be a multiple of this many bytes.
    :param offset_align: plane offsets must be a multiple of this many bytes.
    :param heaps: names of heaps whose buffers it can use, or prefixes ending in ``/``.
    :param slots: buffers that it holds at the same time.
    """

    participant: str
    formats: tuple[Format, ...] | None = None
    stride_align: int = 1
    offset_align: int = 1
    heaps: tuple[str, ...] | None = None
    slots: int = 0

    def accepts_heap(self, heap: str) -> bool:
        """Whether it can use buffers of *heap*."""
        return self.heaps is None or any(heap == h or (h.endswith('/') and heap.startswith(h)) for h in self.heaps)


@dataclass(frozen=True)
class BufferSettings:
    """What was agreed on."""

    layout: ImageLayout
    slots: int
