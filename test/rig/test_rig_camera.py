"""V4L2 cameras on a real kernel's vivid, and faults of the whole graph: one boot, each check of ``camera_checks.py`` is a test here."""

from __future__ import annotations

import pytest

from . import Rig
from .checked_boot import Boot, boot_checks, compile_for_guest
from .guest import camera_checks, camera_kit
from .guest.long_checks import marked

pytestmark = pytest.mark.rig


@pytest.fixture(scope='module')
def camera_boot(rig: Rig, tmp_path_factory: pytest.TempPathFactory) -> Boot:
    """Run all checks in one boot."""
    compile_for_guest()
    return boot_checks(rig, tmp_path_factory.mktemp('camera'), camera_checks.RESULTS, 'camera_checks.py', vivid=camera_kit.VIVID)


@pytest.mark.parametrize('name', marked(camera_kit.CHECKS))
def test_in_the_guest(name: str, camera_boot: Boot) -> None:
    camera_boot.must_hold(name)


def test_the_kernel_is_content(camera_boot: Boot) -> None:
    camera_boot.kernel_must_be_content()
