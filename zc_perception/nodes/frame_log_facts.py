"""What a node's frame log says besides its records: who it is, which buffers it has, and its counters."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from zc_perception.link.rungs import IN_PROCESS
from zc_perception.memory.ledger import CopyLedger
from zc_perception.nodes.startup import STARTUP
from zc_perception.pixel.fourcc import fourcc_name

if TYPE_CHECKING:
    from zc_perception.nodes.capture import CaptureNode
    from zc_perception.nodes.inference import InferenceNode


def capture_facts(node: CaptureNode, peers: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Camera, pool and consumers. Without a camera, what is known without one.

    :param peers: consumers in other processes.
    """
    camera = node.supervisor.camera
    link = node.publisher.statistics()
    here = [{'name': IN_PROCESS, 'pid': os.getpid(), 'rung': IN_PROCESS}] * link.in_process_subscriptions
    facts: dict[str, Any] = {
        'camera': node.parameters['camera'],
        'conversions': link.conversions,
        'published': link.published,
        'peers': [*here, *peers],
        'copies': _copies(node.ledger),
        'startup': STARTUP.facts(),
    }
    if camera is None:
        return facts
    statistics = camera.statistics()
    facts |= {'device': camera.device, 'heap': camera.heap_name, 'captured': statistics.captured, 'dropped': statistics.dropped}
    slots = camera.slots
    if slots:
        layout = slots[0].layout
        facts |= {
            'slots': len(slots),
            'pool': [[buffer.identity.device, buffer.identity.inode] for slot in slots for buffer in slot.buffers],
            'layout': layout.describe(),
            'fourcc': fourcc_name(layout.fourcc),
            'width': layout.width,
            'height': layout.height,
        }
    return facts


def inference_facts(node: InferenceNode) -> dict[str, Any]:
    """Accelerator, link and counters."""
    accelerator, statistics, link = node.accelerator, node.scheduler.statistics(), node.subscription.statistics()
    capabilities = accelerator.capabilities()
    known = accelerator.facts()
    return {
        'accelerator': capabilities.name,
        'device': capabilities.device,
        'pci_address': known.get('pci_address', ''),
        'copy_free': capabilities.copy_free,
        'import_cache': bool(node.parameters['import_cache']),
        'in_flight': statistics.in_flight,
        'imports': statistics.imports,
        'trial_imports': statistics.trial_imports,
        'submitted': statistics.submitted,
        'rung': link.rung,
        'reason': link.reason,
        'conversions': link.conversions,
        'processed': node.processed,
        'failed': node.failed,
        'copies': _copies(node.ledger),
        'startup': STARTUP.facts(),
    }


def _copies(ledger: CopyLedger) -> dict[str, dict[str, int]]:
    return {reason: {'count': entry.count, 'bytes': entry.bytes} for reason, entry in ledger.entries().items()}
