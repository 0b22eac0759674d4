"""GStreamer caps of dma-buf video: ``video/x-raw(memory:DMABuf), format=(string)DMA_DRM, drm-format=(string)…``.

Source: GStreamer's *DMA buffers* design. Inside the feature ``memory:DMABuf`` the format is always ``DMA_DRM`` and ``drm-format``
says what it is: one string, a list, or nothing for all that there are. Outside of it neither word may appear; a dma-buf whose
layout GStreamer knows by a format of its own, LINEAR above all, may flow there as plain ``video/x-raw``.

Negotiation is intersection. :meth:`DmaBufCaps.intersect` is a pure function of both, so a peer's later, narrower list (GStreamer's
*reconfigure*) is one more call of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from zc_perception.errors import FormatError
from zc_perception.pixel.caps_values import Choice, Range, Reader, Value, fixate_value, format_value, intersect_values, is_fixed
from zc_perception.pixel.drm_format import drm_format_string, parse_drm_format
from zc_perception.pixel.format_names import DMA_DRM, from_gstreamer, gstreamer_format
from zc_perception.pixel.fourcc import FORMATS, fourcc_name
from zc_perception.pixel.modifier import LINEAR

MEDIA_TYPE = 'video/x-raw'
DMABUF_FEATURE = 'memory:DMABuf'
_SYSTEM_MEMORY = 'memory:SystemMemory'
_FORMAT, _DRM_FORMAT = 'format', 'drm-format'
_FIELDS = ('width', 'height', 'framerate')
_NAME = re.compile('[A-Za-z][A-Za-z0-9_-]*', re.ASCII)


@dataclass(frozen=True)
class DmaBufCaps:
    """One caps structure.

    :param formats: (fourcc, modifier) pairs, the preferred first; ``None`` is any. The order matters to :meth:`fixate` alone.
    :param width: pixels: an integer, a :class:`Range` or a :class:`Choice`; ``None`` is any.
    :param height: likewise.
    :param framerate: a fraction, or a range or list of them.
    :param others: all further fields by name, which are only compared and passed on.
    :param meta: further caps features, such as ``meta:GstVideoOverlayComposition``.
    :param dmabuf: whether the feature ``memory:DMABuf`` is there; without it only formats that GStreamer has names for go.
    :raises FormatError: a value of the wrong kind, an empty list, an INVALID modifier, a format that can't be in caps of that form.
    """

    formats: tuple[tuple[int, int], ...] | None
    width: Value | None = None
    height: Value | None = None
    framerate: Value | None = None
    others: tuple[tuple[str, Value], ...] = ()
    meta: tuple[str, ...] = ()
    dmabuf: bool = True

    def __post_init__(self) -> None:
        if self.formats is not None:
            object.__setattr__(self, 'formats', tuple(dict.fromkeys(self.formats)))
        if self.formats == ():
            raise FormatError('caps without any format: leave the formats out for any, or say that there are no caps')
        for fourcc, modifier in self.formats or ():
            _format_text(fourcc, modifier, dmabuf=self.dmabuf)
        _check_kind('width', self.width, int)
        _check_kind('height', self.height, int)
        _check_kind('framerate', self.framerate, Fraction)
        names = [name for name, _ in self.others]
        reserved = {_FORMAT, _DRM_FORMAT, *_FIELDS}
        if wrong := [n for n in names if n in reserved or names.count(n) > 1 or not _NAME.fullmatch(n)]:
            raise FormatError(f"caps field '{wrong[0]}' is no field of its own: its name must be a word that appears once")
        object.__setattr__(self, 'others', tuple(sorted(self.others, key=lambda field: field[0])))
        object.__setattr__(self, 'meta', tuple(sorted(set(self.meta))))

    @classmethod
    def parse(cls, text: str) -> DmaBufCaps:
        """The caps that *text* describes.

        :raises FormatError: not caps, more than one structure, or another media type or memory than ours.
        """
        found = _read(text)
        if len(found) != 1:
            raise FormatError(f"caps '{text}' have {len(found)} structures; give one")
        return found[0].to_caps()

    def __str__(self) -> str:
        """The one way to write these caps, as ``gst_caps_to_string()`` writes values. Fields stand in a fixed order."""
        features = ([DMABUF_FEATURE] if self.dmabuf else []) + list(self.meta)
        parts = [f'{MEDIA_TYPE}({", ".join(features)})' if features else MEDIA_TYPE]
        if self.dmabuf:
            parts.append(f'{_FORMAT}={format_value(DMA_DRM)}')
        if self.formats is not None:
            names = [_format_text(*pair, dmabuf=self.dmabuf) for pair in self.formats]
            value = format_value(names[0] if len(names) == 1 else Choice(tuple(names)))
            parts.append(f'{_DRM_FORMAT if self.dmabuf else _FORMAT}={value}')
        fields = [(n, v) for n, v in zip(_FIELDS, (self.width, self.height, self.framerate), strict=True) if v is not None]
        return ', '.join([*parts, *(f'{name}={format_value(value)}' for name, value in (*fields, *self.others))])

    def intersect(self, other: DmaBufCaps) -> DmaBufCaps | None:
        """What both allow, in *self*'s order of preference; ``None`` when nothing is. What one leaves out, the other decides."""
        if (self.dmabuf, self.meta) != (other.dmabuf, other.meta):
            return None
        formats = _intersect_formats(self.formats, other.formats)
        if formats == ():
            return None
        ours, theirs = _all_fields(self), _all_fields(other)
        fields: dict[str, Value] = {}
        for name in ours | theirs:
            both = intersect_values(ours[name], theirs[name]) if name in ours and name in theirs else (ours | theirs)[name]
            if both is None:
                return None
            fields[name] = both
        return _from_fields(formats, fields, self.meta, self.dmabuf)

    def narrow(self, formats: Iterable[tuple[int, int]]) -> DmaBufCaps | None:
        """These caps with no formats but those in *formats*: a peer's answer, or its later reconfigure; ``None``: none is left."""
        left = _intersect_formats(self.formats, tuple(formats))
        return replace(self, formats=left) if left else None

    @property
    def is_fixed(self) -> bool:
        """Whether a stream is described in full: one format, one size, one value in every other field."""
        sizes = self.width is not None and self.height is not None
        return sizes and self.formats is not None and len(self.formats) == 1 and all(is_fixed(v) for v in _all_fields(self).values())

    def fixate(self, *, width: int | None = None, height: int | None = None, framerate: Fraction | None = None) -> DmaBufCaps:
        """One stream out of these caps: the first format, and the size and rate nearest to those given.

        Without a wish it is the least of a range and the first of a list, as ``gst_caps_fixate()`` does it.

        :raises FormatError: any format goes, or any size and none is given: ask the peer for its caps first.
        """
        if self.formats is None:
            raise FormatError(f'caps {self} allow any format: intersect them with what the peer can use before fixating')
        fields: dict[str, Value] = {name: fixate_value(value) for name, value in self.others}
        for name, allowed, wish in zip(_FIELDS, (self.width, self.height, self.framerate), (width, height, framerate), strict=True):
            if allowed is not None:
                fields[name] = fixate_value(allowed, wish)
            elif wish is not None:
                fields[name] = wish
            elif name != 'framerate':
                raise FormatError(f'caps {self} allow any {name}: give one')
        return _from_fields(self.formats[:1], fields, self.meta, self.dmabuf)

    @property
    def format(self) -> tuple[int, int]:
        """(fourcc, modifier) of fixed caps.

        :raises FormatError: there is more than one, or any.
        """
        if self.formats is None or len(self.formats) != 1:
            raise FormatError(f'caps {self} are not of one format; fixate them first')
        return self.formats[0]

    def check_image(self, fourcc: int, modifier: int, width: int, height: int) -> None:
        """Whether an image, as the metadata of its buffer describes it, is what these caps allow.

        That is all that a buffer must be: whose pool it comes from doesn't matter. Stride and offsets are the metadata's alone.

        :raises FormatError: the format isn't one of these, or the size is another than the caps'.
        """
        image = DmaBufCaps(((fourcc, modifier),), width, height, meta=self.meta, dmabuf=self.dmabuf)
        if replace(self, framerate=None, others=()).intersect(image) is None:
            raise FormatError(f'the image is {image}, and the caps are {self}')

    def plain(self) -> DmaBufCaps | None:
        """The same as ``video/x-raw`` without the feature: the formats that GStreamer has a name for; ``None``: there is none.

        That is the recommended way for LINEAR dma-bufs: elements without any notion of dma-buf can then map them.
        """
        if not self.dmabuf or self.formats is None:
            return replace(self, dmabuf=False)
        named = tuple(pair for pair in self.formats if _has_gstreamer_name(*pair))
        return replace(self, formats=named, dmabuf=False) if named else None

    def with_feature(self) -> DmaBufCaps:
        """The same with the feature ``memory:DMABuf``."""
        return replace(self, dmabuf=True)


def parse_caps(text: str) -> tuple[DmaBufCaps, ...]:
    """All structures of a caps string, the preferred first. Those of other media types and other memory are left out.

    :raises FormatError: not caps, or nothing in it is ours.
    """
    found = tuple(structure.to_caps() for structure in _read(text) if structure.is_ours)
    if not found:
        raise FormatError(f"caps '{text}' have neither {MEDIA_TYPE} nor {MEDIA_TYPE}({DMABUF_FEATURE})")
    return found


def format_caps(caps: Iterable[DmaBufCaps]) -> str:
    """A caps string of several structures."""
    return '; '.join(map(str, caps))


def intersect_caps(first: Sequence[DmaBufCaps], second: Sequence[DmaBufCaps]) -> tuple[DmaBufCaps, ...]:
    """What both sides allow, in the order of *first*; empty when nothing is."""
    both = (a.intersect(b) for a in first for b in second)
    return tuple(dict.fromkeys(caps for caps in both if caps is not None))


@dataclass(frozen=True)
class _Structure:
    """A caps structure as it stands in the text."""

    text: str
    media_type: str
    features: tuple[str, ...]
    fields: dict[str, Value]

    @property
    def is_ours(self) -> bool:
        memory = {f for f in self.features if not f.startswith('meta:')}
        return self.media_type == MEDIA_TYPE and memory <= {DMABUF_FEATURE}

    def to_caps(self) -> DmaBufCaps:
        if not self.is_ours:
            raise FormatError(f"caps '{self.text}' are neither {MEDIA_TYPE} nor {MEDIA_TYPE}({DMABUF_FEATURE})")
        dmabuf = DMABUF_FEATURE in self.features
        fields = dict(self.fields)
        formats = _dmabuf_formats(fields) if dmabuf else _plain_formats(fields)
        return _from_fields(formats, fields, tuple(f for f in self.features if f != DMABUF_FEATURE), dmabuf)


def _read(text: str) -> list[_Structure]:
    reader = Reader(text)
    found: list[_Structure] = []
    while not reader.at_end():
        found.append(_read_structure(reader))
        if not reader.take(';') and not reader.at_end():
            raise reader.fail("',' or ';' is expected")
    return found


def _read_structure(reader: Reader) -> _Structure:
    media_type = reader.word('a media type')
    features = reader.features()
    fields: dict[str, Value] = {}
    while reader.take(','):
        name = reader.word('a field name')
        if not _NAME.fullmatch(name) or name in fields:
            raise reader.fail(f"'{name}' is no field name, or comes twice")
        reader.expect('=')
        fields[name] = reader.value()
    return _Structure(reader.text, media_type, tuple(f for f in features if f != _SYSTEM_MEMORY), fields)


def _strings(name: str, value: Value) -> tuple[str, ...]:
    items = value.items if isinstance(value, Choice) else (value,)
    strings = tuple(item for item in items if isinstance(item, str))
    if len(strings) != len(items):
        raise FormatError(f'caps field {name}={format_value(value)} must be a string or a list of strings')
    return strings


def _dmabuf_formats(fields: dict[str, Value]) -> tuple[tuple[int, int], ...] | None:
    names = _strings(_FORMAT, fields.pop(_FORMAT)) if _FORMAT in fields else ()
    if names != (DMA_DRM,):
        shown = ', '.join(names) or 'missing'
        raise FormatError(f'inside {DMABUF_FEATURE} the format must be (string){DMA_DRM}, and is {shown}; put it into {_DRM_FORMAT}')
    if _DRM_FORMAT not in fields:
        return None
    return tuple(parse_drm_format(name) for name in _strings(_DRM_FORMAT, fields.pop(_DRM_FORMAT)))


def _plain_formats(fields: dict[str, Value]) -> tuple[tuple[int, int], ...] | None:
    if _DRM_FORMAT in fields:
        raise FormatError(f'{_DRM_FORMAT} may appear only inside the caps feature {DMABUF_FEATURE}')
    if _FORMAT not in fields:
        return None
    names = _strings(_FORMAT, fields.pop(_FORMAT))
    if DMA_DRM in names:
        raise FormatError(f'format {DMA_DRM} may appear only inside the caps feature {DMABUF_FEATURE}')
    known = [name for name in names if _is_known(name)]
    # A foreign list also has formats that no DRM fourcc describes: nothing that we could use. One alone is refused by its name.
    return tuple(from_gstreamer(name) for name in known or names)


def _is_known(name: str) -> bool:
    try:
        from_gstreamer(name)
    except FormatError:
        return False
    return True


def _has_gstreamer_name(fourcc: int, modifier: int) -> bool:
    if modifier == LINEAR:
        return fourcc in FORMATS and FORMATS[fourcc].gstreamer is not None
    return gstreamer_format(fourcc, modifier) != DMA_DRM


def _format_text(fourcc: int, modifier: int, *, dmabuf: bool) -> str:
    if dmabuf:
        return drm_format_string(fourcc, modifier)
    name = gstreamer_format(fourcc, modifier)
    if name == DMA_DRM:
        raise FormatError(f"'{fourcc_name(fourcc).strip()}' with modifier 0x{modifier:016x} may flow only inside {DMABUF_FEATURE}")
    return name


def _check_kind(name: str, value: Value | None, kind: type[int] | type[Fraction]) -> None:
    if value is None:
        return
    for item in value.items if isinstance(value, Choice) else (value,):
        ends: tuple[object, ...] = (item.low, item.high) if isinstance(item, Range) else (item,)
        for end in ends:
            if type(end) is not kind or end < 0 or (item is end and kind is int and end == 0):
                words = 'a positive integer' if kind is int else 'a fraction that is not negative'
                raise FormatError(f'caps field {name}={format_value(value)} must be {words}, or a range or list of them')


def _intersect_formats(
    first: tuple[tuple[int, int], ...] | None, second: tuple[tuple[int, int], ...] | None
) -> tuple[tuple[int, int], ...] | None:
    if first is None or second is None:
        return second if first is None else first
    return tuple(pair for pair in first if pair in second)


def _all_fields(caps: DmaBufCaps) -> dict[str, Value]:
    own = zip(_FIELDS, (caps.width, caps.height, caps.framerate), strict=True)
    return {name: value for name, value in own if value is not None} | dict(caps.others)


def _from_fields(formats: tuple[tuple[int, int], ...] | None, fields: dict[str, Value], meta: tuple[str, ...], dmabuf: bool) -> DmaBufCaps:
    others = tuple((name, value) for name, value in fields.items() if name not in _FIELDS)
    return DmaBufCaps(formats, fields.get('width'), fields.get('height'), fields.get('framerate'), others, meta, dmabuf)
