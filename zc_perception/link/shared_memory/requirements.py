"""What a consumer needs of the buffers, as its HELLO says it. Both ends check by this."""

from __future__ import annotations

from dataclasses import dataclass

from zc_perception.errors import ConfigError
from zc_perception.link.shared_memory.codes import MAX_FORMATS, MEMORY_DMABUF, MEMORY_MEMFD
from zc_perception.memory.dmabuf import BufferKind
from zc_perception.pixel.fourcc import fourcc_name
from zc_perception.pixel.layout import ImageLayout
from zc_perception.pixel.modifier import modifier_name

MEMORY_BITS = {BufferKind.DMABUF: MEMORY_DMABUF, BufferKind.MEMFD: MEMORY_MEMFD}
_U32 = 0xFFFFFFFF


@dataclass(frozen=True)
class Requirements:
    """One consumer's constraints.

    :param formats: (fourcc, modifier) pairs that it can use; empty: any.
    :param memory: bits of the kinds of memory that it takes; a device's consumer takes dma-bufs only.
    :param stride_align: strides must be a multiple of this many bytes.
    :param offset_align: plane offsets must be a multiple of this many bytes.
    :param max_width: in pixels; 0: any.
    :param max_height: in pixels; 0: any.
    :raises ConfigError: a value that can't be said in a HELLO.
    """

    formats: tuple[tuple[int, int], ...] = ()
    memory: int = MEMORY_DMABUF | MEMORY_MEMFD
    stride_align: int = 1
    offset_align: int = 1
    max_width: int = 0
    max_height: int = 0

    def __post_init__(self) -> None:
        if len(self.formats) > MAX_FORMATS:
            raise ConfigError(f'{len(self.formats)} formats: at most {MAX_FORMATS} can be named; leave them out to take any')
        if not 1 <= self.memory <= MEMORY_DMABUF | MEMORY_MEMFD:
            raise ConfigError(f'memory {self.memory}: name dma-bufs ({MEMORY_DMABUF}), memfds ({MEMORY_MEMFD}), or both (3)')
        for name, low in (('stride_align', 1), ('offset_align', 1), ('max_width', 0), ('max_height', 0)):
            if not low <= getattr(self, name) <= _U32:
                raise ConfigError(f'{name} {getattr(self, name)} is outside {low} .. {_U32}')

    def misfit(self, layout: ImageLayout, kind: BufferKind) -> str:
        """Why a slot of that layout and kind can't be used; empty if it can."""
        if not self.memory & MEMORY_BITS[kind]:
            return f'the buffers are {kind.value}s, which it does not take'
        if self.formats and (layout.fourcc, layout.modifier) not in self.formats:
            wanted = ', '.join(f'{fourcc_name(code)} {modifier_name(modifier)}' for code, modifier in self.formats)
            return f'the buffers are {fourcc_name(layout.fourcc)} {modifier_name(layout.modifier)}, it takes {wanted}'
        for name, value, most in (('width', layout.width, self.max_width), ('height', layout.height, self.max_height)):
            if most and value > most:
                return f'{name} {value} is above its {most}'
        for index, plane in enumerate(layout.planes):
            if plane.stride % self.stride_align:
                return f'stride {plane.stride} of plane {index} is no multiple of {self.stride_align}'
            if plane.offset % self.offset_align:
                return f'offset {plane.offset} of plane {index} is no multiple of {self.offset_align}'
        return ''


ANYTHING = Requirements()
"""Any format in any memory."""
