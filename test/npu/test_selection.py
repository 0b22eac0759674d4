"""Choosing an accelerator, on a machine that has no card."""

from __future__ import annotations

from pathlib import Path

import pytest

from zc_perception.errors import AcceleratorError, ConfigError
from zc_perception.memory.ledger import CopyLedger
from zc_perception.npu import axl_errors
from zc_perception.npu.axl_device import AxlDevice, find_devices
from zc_perception.npu.manifest import load_manifest
from zc_perception.npu.selection import AcceleratorOptions, open_accelerator

pytestmark = [
    pytest.mark.usefixtures('no_fd_leak'),
    pytest.mark.skipif(bool(find_devices()), reason='this machine has a Metis card; the rig covers that case'),
]
VIRTUAL = str(Path(__file__).parents[1] / 'rig' / 'models' / 'virtual_metis.yaml')


def test_auto_goes_on_to_the_cpu_and_says_why_not_axl() -> None:
    accelerator, reasons = open_accelerator('auto', load_manifest('hog'), AcceleratorOptions(), CopyLedger())
    assert accelerator.capabilities().name == 'cpu'
    assert len(reasons) == 1 and "'axl' doesn't fit: no Metis card" in reasons[0]
    accelerator.close()


def test_a_named_accelerator_is_not_replaced_by_another() -> None:
    with pytest.raises(AcceleratorError, match='no Metis card'):
        open_accelerator('axl', load_manifest('hog'), AcceleratorOptions(), CopyLedger())


def test_a_model_that_fits_nowhere_is_refused_with_every_reason() -> None:
    with pytest.raises(ConfigError, match=r'no Metis card.*cpu.*engine axl'):
        open_accelerator('auto', load_manifest(VIRTUAL), AcceleratorOptions(), CopyLedger())


def test_a_device_that_cannot_be_opened_is_named() -> None:
    with pytest.raises(AcceleratorError, match=r"'/dev/metis-9:9:9' can't be opened: No such file"):
        open_accelerator('axl', load_manifest(VIRTUAL), AcceleratorOptions(device='/dev/metis-9:9:9'), CopyLedger())


def test_a_driver_without_any_of_the_ioctls_is_level_zero() -> None:
    device = AxlDevice('/dev/null')  # answers ENOTTY to everything, as the shipped driver does to ours
    try:
        assert device.query().level == 0
        with pytest.raises(axl_errors.AxlUnsupportedError, match='axruntime'):
            device.release_import(1)
    finally:
        device.close()


@pytest.mark.parametrize('number', sorted(axl_errors._CLASSES))
def test_every_errno_has_its_exception_with_advice(number: int) -> None:
    error = axl_errors.axl_error('submit2', number, 'handle 3')
    assert type(error) is not axl_errors.AxlError and error.errno == number
    assert error.advice in str(error) and 'handle 3' in str(error)
