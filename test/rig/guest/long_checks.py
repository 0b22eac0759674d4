"""Which checks in the guest only the long form runs, and what checks the same in the short one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from long_form import LONG

from .harness import Check

_CAMERA_FAULT = 'the camera alone has this fault in camera_faults.py, the graph has others of its camera'
_OTHER_HEAP = 'nothing in it depends on the heap, and the short form has it with dma_heap/system'
#: By name, why the short form does without.
LONG_CHECKS = {
    'sigkill of the whole graph leaves nothing behind': 'package_link_deaths.py kills processes with jobs in flight',
    'nodes whose trial imports fail fall a rung by name in this process and in another':
        'package_negotiation.py and package_link_layouts.py let such imports fail below ROS, test_trial_import_processes.py has the nodes',
    'the graph survives a consumer that is killed with its imports': 'package_link_deaths.py kills consumers with imports',
    'the graph survives a card that is [unbound from its driver]': 'it is pulled in the short form, which ends with the same loss',
    'the graph survives buffers that the driver drops': _CAMERA_FAULT,
    'yuyv frames of the driver reach the stock nodes and become boxes and pictures': 'camera_streams.py has YUYV of the driver, '
    'test_format_journeys.py the nodes',
    **{
        f'the graph survives of its camera [{fault}]': _CAMERA_FAULT
        for fault in (
            'single: a bad frame', 'single: a buffer that is not queued', 'single: a stream that breaks off and does not start at once',
            'multi: a stream that breaks off', 'multi: unplugging',
        )
    },
    **{
        f'{check} [udmabuf]': _OTHER_HEAP
        for check in (
            'a frame is not read before the device has written it', 'a killed consumers frame is not written before its device is done',
            'a release fence that fails frees the slot and is counted',
            'a slot is not filled again before the consumers device has read it',
            'a slot with a hung job is replaced and never used again', 'another process reads the very memory that the device wrote',
            'frames of a killed producer stay readable and its successors are found', 'the import cache forgets what the pool has given up',
            'thousands of forgotten things are taken back', 'without any quarantine the device would read another frame',
            'without a quarantine the device would read the next frame', 'without reservation fences the longest job is waited for',
        )
    },
}  # fmt: skip


def is_long(name: str) -> bool:
    """Whether the short form leaves this check out."""
    return name in LONG_CHECKS


def chosen(checks: dict[str, Check], parts: Sequence[str]) -> dict[str, Check]:
    """Those whose names contain one of *parts*; without any, what this form runs."""
    if not parts:
        return {name: function for name, function in checks.items() if LONG or not is_long(name)}
    return {name: function for name, function in checks.items() if any(part in name for part in parts)}


def marked(names: Iterable[str]) -> list[object]:
    """Parameters of a test, marked where only the long form runs them."""
    import pytest  # the guest needs none

    return [pytest.param(name, marks=[pytest.mark.long] if is_long(name) else []) for name in names]
