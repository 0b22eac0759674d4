"""64-bit format modifiers: how a plane's samples lie in memory.

Source: ``drm_fourcc.h`` (vendor in the top 8 bits, value in the low 56) and the kernel's *Exchanging pixel buffers*.
Zero is LINEAR, an explicit promise. INVALID is no layout at all: it says that nobody told us.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from zc_perception.errors import FormatError
from zc_perception.pixel.fourcc import FORMATS, fourcc_code, fourcc_name, pixel_format
from zc_perception.pixel.modifier_vendors import (
    AMD,
    AMD_GFX12,
    FAMILIES,
    KNOWN,
    MAX_16BX2_HEIGHT_LOG2,
    NVIDIA_BLOCK_LINEAR_2D,
    VALUE_MASK,
    VIVANTE_TILINGS,
    Family,
    Vendor,
)
from zc_perception.pixel.modifier_vendors import KnownModifier as Known

LINEAR = 0
INVALID = (1 << 56) - 1

# Codes with an order of components but no LINEAR layout at all; one plane each.
NON_LINEAR_ONLY = frozenset(fourcc_code(name) for name in ('YU08', 'YU10', 'VU30'))
_VENDORS = {int(v): v.name for v in Vendor}


def check_modifier(modifier: int) -> int:
    """*modifier* itself, if it is a 64-bit unsigned number.

    :raises FormatError: it isn't.
    """
    if not 0 <= modifier < 1 << 64:
        raise FormatError(f'modifier {modifier:#x} is outside 0 .. 2^64-1')
    return modifier


@dataclass(frozen=True)
class ModifierDescription:
    """What a modifier says. *name* is ``None`` for a layout that isn't in our tables; *value* are the vendor's 56 bits.

    *parameters* are the bit fields by name, as ``drm_fourcc.h`` defines them; *meanings* says what some of their values stand for.
    """

    vendor: str
    name: str | None
    value: int
    parameters: Mapping[str, int] = field(default_factory=dict, hash=False)
    meanings: Mapping[str, str] = field(default_factory=dict, hash=False)

    def __str__(self) -> str:
        if self.name is None:
            return f'{self.vendor} 0x{self.value:014x} (not known)'
        head = self.name if self.vendor == 'NONE' else f'{self.vendor} {self.name}'
        if not self.parameters:
            return head
        shown = (f'{k}={v}' + (f' [{self.meanings[k]}]' if k in self.meanings else '') for k, v in self.parameters.items())
        return f'{head}({", ".join(shown)})'


def describe_modifier(modifier: int) -> ModifierDescription:
    """Vendor, name and parameters of *modifier*; an unknown one still has its vendor and value.

    :raises FormatError: not a 64-bit number.
    """
    check_modifier(modifier)
    number, value = modifier >> 56, modifier & VALUE_MASK
    vendor = _VENDORS.get(number, f'vendor 0x{number:02x}')
    if modifier in (LINEAR, INVALID):
        return ModifierDescription(vendor, 'LINEAR' if modifier == LINEAR else 'INVALID', value)
    if modifier in KNOWN:
        return ModifierDescription(vendor, KNOWN[modifier].name.partition('_')[2], value)
    for family in FAMILIES:
        parameters = family.decode(modifier)
        if parameters is not None and _is_defined(family, parameters):
            return _describe_family(family, value, parameters)
    return ModifierDescription(vendor, None, value)


def _is_defined(family: Family, parameters: Mapping[str, int]) -> bool:
    # Compression reinterprets the tile status bits, so there is none without them.
    return family not in VIVANTE_TILINGS or not parameters['compression'] or bool(parameters['ts'])


def _describe_family(family: Family, value: int, parameters: Mapping[str, int]) -> ModifierDescription:
    others = any(value for name, value in parameters.items() if name != 'height_log2')
    if family is NVIDIA_BLOCK_LINEAR_2D and not others and parameters['height_log2'] <= MAX_16BX2_HEIGHT_LOG2:
        return ModifierDescription(family.vendor.name, '16BX2_BLOCK', value, {'height_log2': parameters['height_log2']})
    meanings = {f.name: f.meanings[parameters[f.name]] for f in family.fields if f.meanings}
    return ModifierDescription(family.vendor.name, family.name, value, parameters, meanings)


def modifier_name(modifier: int) -> str:
    """A short name for lists: ``LINEAR``, ``INVALID``, ``INTEL:X_TILED``, else vendor and digits as in ``NVIDIA:0x00000000000010``.

    :func:`describe_modifier` also spells out the parameters.
    """
    description = describe_modifier(modifier)
    if description.vendor == 'NONE' and description.name:
        return description.name
    known = modifier in KNOWN and description.name
    return f'{description.vendor}:{known}' if known else f'{description.vendor}:0x{description.value:014x}'


# Intel's compression with its state, and a colour to clear to, in planes of their own. The header numbers the planes of formats of
# one plane; media compression is the kind that also has planar video.
_INTEL_ONE_PLANE_FORMATS = {
    Known.INTEL_Y_TILED_CCS: 2,
    Known.INTEL_Yf_TILED_CCS: 2,
    Known.INTEL_Y_TILED_GEN12_RC_CCS: 2,
    Known.INTEL_Y_TILED_GEN12_RC_CCS_CC: 3,
    Known.INTEL_4_TILED_DG2_RC_CCS_CC: 2,  # the state is outside of the buffer
    Known.INTEL_4_TILED_MTL_RC_CCS: 2,
    Known.INTEL_4_TILED_MTL_RC_CCS_CC: 3,
}
_MAX_PLANES = 4  # of any DRM framebuffer
_INTEL_STATE_PER_PLANE = {Known.INTEL_Y_TILED_GEN12_MC_CCS, Known.INTEL_4_TILED_MTL_MC_CCS}


def plane_count(fourcc: int, modifier: int) -> int | None:
    """How many planes a buffer of that format and modifier has, aux planes (compression state, clear colour) included.

    :returns: ``None`` where nobody told us: INVALID, or a modifier that isn't in our tables.
    :raises FormatError: an unknown fourcc, or a pair that the header rules out, such as a LINEAR ``YU08`` or CCS render
        compression of a format of several planes.
    """
    check_modifier(modifier)
    planes = 1 if fourcc in NON_LINEAR_ONLY else len(pixel_format(fourcc).planes)
    if modifier == LINEAR:
        if fourcc not in FORMATS:
            raise FormatError(f"'{fourcc_name(fourcc)}' has no LINEAR layout; name the vendor's modifier")
        return planes
    if modifier == INVALID or describe_modifier(modifier).name is None:
        return None
    vendor = modifier >> 56
    if vendor == Vendor.INTEL:
        return _intel_planes(fourcc, KNOWN[modifier], planes)
    if vendor == Vendor.AMD:
        return _amd_planes(modifier, planes)
    if vendor == Vendor.VIVANTE and modifier not in KNOWN:
        # Tile status is a buffer of its own; the header doesn't say where it goes beside several colour planes.
        return 2 if planes == 1 else None
    return planes


def _intel_planes(fourcc: int, modifier: Known, planes: int) -> int:
    if modifier in _INTEL_STATE_PER_PLANE:
        if 2 * planes > _MAX_PLANES:
            raise FormatError(f'{fourcc_name(fourcc)} has {planes} planes; with the state of each they were more than {_MAX_PLANES}')
        return 2 * planes
    if modifier not in _INTEL_ONE_PLANE_FORMATS:
        return planes
    if planes != 1:
        raise FormatError(
            f'{fourcc_name(fourcc)} has {planes} planes, and {modifier_name(modifier)} is for formats of one; '
            f'for video use {modifier_name(Known.INTEL_Y_TILED_GEN12_MC_CCS)} or {modifier_name(Known.INTEL_Y_TILED)}'
        )
    return _INTEL_ONE_PLANE_FORMATS[modifier]


def _amd_planes(modifier: int, planes: int) -> int:
    parameters = AMD.decode(modifier) or {}
    # With several planes each takes its DCC in. GFX12 has no DCC surface that a user of the buffer would see.
    if planes != 1 or not parameters.get('dcc') or parameters.get('tile_version') == AMD_GFX12:
        return planes
    return 3 if parameters['dcc_retile'] else 2
