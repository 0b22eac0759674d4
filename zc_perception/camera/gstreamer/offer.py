"""What consumers accept, as caps for the end of a pipeline: its source then chooses a format that they can use.

The sink answers the CAPS query with them. Elements before it convert, or choose another mode of their device, as far as they can.

Source: GStreamer's *DMA buffers* design: in caps with the feature ``memory:DMABuf`` the format is ``DMA_DRM`` and ``drm-format`` names
the formats. Before GStreamer 1.24 the format stood there by GStreamer's name, and nobody said what the layout was.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence

from zc_perception.camera.gstreamer.image import DMABUF_FEATURE, NVMM_FEATURE
from zc_perception.errors import FormatError
from zc_perception.negotiation.constraints import BufferConstraints, Format
from zc_perception.pixel.drm_format import drm_format_string
from zc_perception.pixel.format_names import DMA_DRM, gstreamer_format
from zc_perception.pixel.fourcc import FORMATS
from zc_perception.pixel.modifier import INVALID, LINEAR

_LINEAR_FORMATS: tuple[Format, ...] = tuple((fourcc, LINEAR) for fourcc in FORMATS)


def accepted_formats(consumers: Iterable[BufferConstraints]) -> tuple[Format, ...]:
    """The formats that all consumers accept; empty: they accept any. The source chooses among them, by its own order.

    A consumer that accepts none of what those before it accept is left out. It is refused by name when the buffers are agreed on.
    """
    accepted: tuple[Format, ...] = ()
    for consumer in consumers:
        if consumer.formats is None and not consumer.uses_cpu:
            continue
        own = accepted or consumer.formats or _LINEAR_FORMATS
        accepted = tuple(fmt for fmt in own if consumer.accepts_format(fmt)) or accepted
    return accepted


def offered_caps(formats: Sequence[Format], *, assume_linear: bool) -> str:
    """Caps of a pipeline whose frames are dma-bufs or system memory; empty: GStreamer can't say any of *formats*.

    :param assume_linear: caps of the old style with the feature ``memory:DMABuf`` mean LINEAR; otherwise an implicit layout.
    """
    explicit, old_style, plain = [], [], []
    for fourcc, modifier in formats:
        if modifier != INVALID:
            with contextlib.suppress(FormatError):
                explicit.append(drm_format_string(fourcc, modifier))
            plain += _gstreamer_names(fourcc, modifier)
        if modifier == (LINEAR if assume_linear else INVALID):
            old_style += _gstreamer_names(fourcc, LINEAR)
    dmabuf = f'video/x-raw({DMABUF_FEATURE}), format=(string)'
    structures = [f'{dmabuf}{DMA_DRM}, drm-format=(string){_listed(explicit)}'] if explicit else []
    structures += [f'{dmabuf}{_listed(old_style)}'] if old_style else []
    structures += [f'video/x-raw, format=(string){_listed(plain)}'] if plain else []
    return '; '.join(structures)


def offered_nvmm_caps(formats: Sequence[Format]) -> str:
    """Caps of a pipeline whose frames are NvBufSurfaces, which have no word for the layout; empty: none of *formats* is one."""
    names = [name for fourcc, modifier in formats if modifier in (LINEAR, INVALID) for name in _gstreamer_names(fourcc, LINEAR)]
    return f'video/x-raw({NVMM_FEATURE}), format=(string){_listed(names)}' if names else ''


def _gstreamer_names(fourcc: int, modifier: int) -> list[str]:
    """GStreamer's own name of a format, if it has one."""
    try:
        name = gstreamer_format(fourcc, modifier)
    except FormatError:
        return []
    return [] if name == DMA_DRM else [name]


def _listed(names: Iterable[str]) -> str:
    return '{ ' + ', '.join(f'"{name}"' for name in dict.fromkeys(names)) + ' }'
