"""A webcam on USB, as the kernel's ``uvcvideo`` drives it: one boot, each check of ``usb_checks.py`` is a test here."""

from __future__ import annotations

import pytest
from camera.jpeg_kit import need_decoder

from . import Rig
from .checked_boot import Boot, boot_checks, compile_for_guest
from .guest import usb_checks

# The short form has the same faults of the V4L2 camera with vivid, and JPEGs with a double of the driver.
pytestmark = [pytest.mark.rig, pytest.mark.long]


@pytest.fixture(scope='module')
def usb_boot(rig: Rig, tmp_path_factory: pytest.TempPathFactory) -> Boot:
    """Run all checks in one boot."""
    need_decoder()
    compile_for_guest()
    return boot_checks(rig, tmp_path_factory.mktemp('usb'), usb_checks.RESULTS, 'usb_run.py', usb=True)


@pytest.mark.parametrize('name', usb_checks.CHECKS)
def test_in_the_guest(name: str, usb_boot: Boot) -> None:
    usb_boot.must_hold(name)


def test_the_kernel_is_content(usb_boot: Boot) -> None:
    usb_boot.kernel_must_be_content()
