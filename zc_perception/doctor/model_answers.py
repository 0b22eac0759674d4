"""The question whether the model loads, and on which accelerator: the same calls as the inference node makes, in a process of its own."""

from __future__ import annotations

import json
from typing import Any

from zc_perception.errors import ZcError
from zc_perception.memory.ledger import CopyLedger
from zc_perception.npu.manifest import load_manifest
from zc_perception.npu.selection import AcceleratorOptions, open_accelerator, parse_ioctl_numbers


def try_model(text: str) -> dict[str, Any]:
    """Read the manifest, open the accelerator, load the engine, and give everything back.

    :param text: JSON: the values of :class:`~zc_perception.doctor.needs.InferenceNeed`.
    """
    wanted = json.loads(text)
    try:
        manifest = load_manifest(wanted['model'])
    except ZcError as error:
        return {'error': str(error), 'stage': 'manifest'}
    engines = {variant.engine: variant.missing or str(variant.file or '') for variant in manifest.variants}
    answer: dict[str, Any] = {
        'name': manifest.name,
        'manifest': str(manifest.path),
        'engines': engines,
        'classes': len(manifest.classes),
        'input': [manifest.input.width, manifest.input.height],
    }
    try:
        options = AcceleratorOptions(
            device=wanted['accelerator_device'],
            ioctl_numbers=parse_ioctl_numbers(wanted['axl_ioctls']),
            library=wanted['axruntime_library'],
            aipu_cores=wanted['aipu_cores'],
        )
        selection = open_accelerator(wanted['accelerator'], manifest, options, CopyLedger())
    except ZcError as error:
        return {**answer, 'error': str(error), 'stage': 'accelerator'}
    try:
        capabilities = selection.accelerator.capabilities()
        return {
            **answer,
            'accelerator': capabilities.name,
            'device': capabilities.device,
            'copy_free': capabilities.copy_free,
            'engine': selection.manifest.engine,
            'reasons': list(selection.reasons),
        }
    finally:
        selection.accelerator.close()
