"""64-bit format modifiers: how a plane's samples lie in memory.

Source: ``drm_fourcc.h`` (vendor in the top 8 bits, value in the low 56) and the kernel's *Exchanging pixel buffers*.
Zero is LINEAR, an explicit promise. INVALID is no layout at all: it says that nobody told us.

This package writes and reads LINEAR pixels only. It passes other layouts on, from a camera to a device that takes them. So it knows their
names, for messages, and how many planes a buffer has, but not what the bits of a vendor's parameters mean.
"""

from __future__ import annotations

from enum import IntEnum

from zc_perception.errors import FormatError
from zc_perception.pixel.fourcc import FORMATS, fourcc_code, fourcc_name, pixel_format

LINEAR = 0
INVALID = (1 << 56) - 1

# Codes with an order of components but no LINEAR layout at all; one plane each.
NON_LINEAR_ONLY = frozenset(fourcc_code(name) for name in ('YU08', 'YU10', 'VU30'))
_VALUE_BITS = 56
_VALUE_MASK = (1 << _VALUE_BITS) - 1


class Vendor(IntEnum):
    """The top eight bits. MTK and APPLE are younger than many installed headers (Linux 6.14 and 6.15)."""

    NONE = 0x00
    INTEL = 0x01
    AMD = 0x02
    NVIDIA = 0x03
    SAMSUNG = 0x04
    QCOM = 0x05
    VIVANTE = 0x06
    BROADCOM = 0x07
    ARM = 0x08
    ALLWINNER = 0x09
    AMLOGIC = 0x0A
    MTK = 0x0B
    APPLE = 0x0C


class KnownModifier(IntEnum):
    """Modifiers without parameters. Named as in the header, after ``DRM_FORMAT_MOD_``, or ``I915_FORMAT_MOD_`` for Intel's."""

    INTEL_X_TILED = 0x01 << 56 | 1
    INTEL_Y_TILED = 0x01 << 56 | 2
    INTEL_Yf_TILED = 0x01 << 56 | 3
    INTEL_Y_TILED_CCS = 0x01 << 56 | 4
    INTEL_Yf_TILED_CCS = 0x01 << 56 | 5
    INTEL_Y_TILED_GEN12_RC_CCS = 0x01 << 56 | 6
    INTEL_Y_TILED_GEN12_MC_CCS = 0x01 << 56 | 7
    INTEL_Y_TILED_GEN12_RC_CCS_CC = 0x01 << 56 | 8
    INTEL_4_TILED = 0x01 << 56 | 9
    INTEL_4_TILED_DG2_RC_CCS = 0x01 << 56 | 10
    INTEL_4_TILED_DG2_MC_CCS = 0x01 << 56 | 11
    INTEL_4_TILED_DG2_RC_CCS_CC = 0x01 << 56 | 12
    INTEL_4_TILED_MTL_RC_CCS = 0x01 << 56 | 13
    INTEL_4_TILED_MTL_MC_CCS = 0x01 << 56 | 14
    INTEL_4_TILED_MTL_RC_CCS_CC = 0x01 << 56 | 15
    INTEL_4_TILED_LNL_CCS = 0x01 << 56 | 16
    INTEL_4_TILED_BMG_CCS = 0x01 << 56 | 17
    NVIDIA_TEGRA_TILED = 0x03 << 56 | 1
    SAMSUNG_64_32_TILE = 0x04 << 56 | 1
    SAMSUNG_16_16_TILE = 0x04 << 56 | 2
    QCOM_COMPRESSED = 0x05 << 56 | 1
    QCOM_TILED2 = 0x05 << 56 | 2
    QCOM_TILED3 = 0x05 << 56 | 3
    VIVANTE_TILED = 0x06 << 56 | 1
    VIVANTE_SUPER_TILED = 0x06 << 56 | 2
    VIVANTE_SPLIT_TILED = 0x06 << 56 | 3
    VIVANTE_SPLIT_SUPER_TILED = 0x06 << 56 | 4
    BROADCOM_VC4_T_TILED = 0x07 << 56 | 1
    BROADCOM_UIF = 0x07 << 56 | 6
    ARM_16X16_BLOCK_U_INTERLEAVED = 0x08 << 56 | 1 << 52 | 1
    ALLWINNER_TILED = 0x09 << 56 | 1
    MTK_16L_32S_TILE = 0x0B << 56 | 1
    APPLE_GPU_TILED = 0x0C << 56 | 1
    APPLE_GPU_TILED_COMPRESSED = 0x0C << 56 | 2


_VENDORS = {int(vendor): vendor for vendor in Vendor}
_KNOWN = {int(modifier): modifier for modifier in KnownModifier}
# Their parameters can add planes with the state of a compression.
_VENDORS_WITH_MORE_PLANES = (Vendor.NONE, Vendor.INTEL, Vendor.AMD, Vendor.VIVANTE)
# Intel's compression with its state, and a colour to clear to, in planes of their own. The header numbers the planes of formats of
# one plane; media compression is the kind that also has planar video.
_INTEL_ONE_PLANE_FORMATS = {
    KnownModifier.INTEL_Y_TILED_CCS: 2,
    KnownModifier.INTEL_Yf_TILED_CCS: 2,
    KnownModifier.INTEL_Y_TILED_GEN12_RC_CCS: 2,
    KnownModifier.INTEL_Y_TILED_GEN12_RC_CCS_CC: 3,
    KnownModifier.INTEL_4_TILED_DG2_RC_CCS_CC: 2,  # the state is outside of the buffer
    KnownModifier.INTEL_4_TILED_MTL_RC_CCS: 2,
    KnownModifier.INTEL_4_TILED_MTL_RC_CCS_CC: 3,
}
_MAX_PLANES = 4  # of any DRM framebuffer
_INTEL_STATE_PER_PLANE = {KnownModifier.INTEL_Y_TILED_GEN12_MC_CCS, KnownModifier.INTEL_4_TILED_MTL_MC_CCS}


def check_modifier(modifier: int) -> int:
    """*modifier* itself, if it is a 64-bit unsigned number.

    :raises FormatError: it isn't.
    """
    if not 0 <= modifier < 1 << 64:
        raise FormatError(f'modifier {modifier:#x} is outside 0 .. 2^64-1')
    return modifier


def modifier_name(modifier: int) -> str:
    """A short name for lists: ``LINEAR``, ``INVALID``, ``INTEL:X_TILED``, else vendor and digits as in ``NVIDIA:0x00000000000010``.

    :raises FormatError: not a 64-bit number.
    """
    if check_modifier(modifier) in (LINEAR, INVALID):
        return 'LINEAR' if modifier == LINEAR else 'INVALID'
    number, value = modifier >> _VALUE_BITS, modifier & _VALUE_MASK
    vendor = _VENDORS[number].name if number in _VENDORS else f'vendor 0x{number:02x}'
    return f'{vendor}:{_KNOWN[modifier].name.partition("_")[2] if modifier in _KNOWN else f"0x{value:014x}"}'


def plane_count(fourcc: int, modifier: int) -> int | None:
    """How many planes a buffer of that format and modifier has, aux planes (compression state, clear colour) included.

    :returns: ``None`` where nobody told us: INVALID, an unknown vendor, or parameters of a vendor that can add planes.
    :raises FormatError: an unknown fourcc, or a pair that the header rules out, such as a LINEAR ``YU08`` or CCS render
        compression of a format of several planes.
    """
    check_modifier(modifier)
    planes = 1 if fourcc in NON_LINEAR_ONLY else len(pixel_format(fourcc).planes)
    if modifier == LINEAR:
        if fourcc not in FORMATS:
            raise FormatError(f"'{fourcc_name(fourcc)}' has no LINEAR layout; name the vendor's modifier")
        return planes
    if modifier in _KNOWN:
        return _planes_of(fourcc, _KNOWN[modifier], planes)
    vendor = _VENDORS.get(modifier >> _VALUE_BITS, Vendor.NONE)
    return None if vendor in _VENDORS_WITH_MORE_PLANES else planes


def _planes_of(fourcc: int, modifier: KnownModifier, planes: int) -> int:
    if modifier in _INTEL_STATE_PER_PLANE:
        if 2 * planes > _MAX_PLANES:
            raise FormatError(f'{fourcc_name(fourcc)} has {planes} planes; with the state of each they were more than {_MAX_PLANES}')
        return 2 * planes
    if modifier not in _INTEL_ONE_PLANE_FORMATS:
        return planes
    if planes != 1:
        raise FormatError(
            f'{fourcc_name(fourcc)} has {planes} planes, and {modifier_name(modifier)} is for formats of one; '
            f'for video use {modifier_name(KnownModifier.INTEL_Y_TILED_GEN12_MC_CCS)} or {modifier_name(KnownModifier.INTEL_Y_TILED)}'
        )
    return _INTEL_ONE_PLANE_FORMATS[modifier]
