"""V4L2 cameras on a real kernel's vivid, the doctor, and faults of the whole graph, in one boot."""

from __future__ import annotations

import pytest

from . import Rig
from .checked_boot import Boot, boot_suite, checks_of
from .guest import camera_kit

pytestmark = pytest.mark.rig


@pytest.fixture(scope='module')
def camera_boot(rig: Rig, tmp_path_factory: pytest.TempPathFactory) -> Boot:
    """Run all checks in one boot."""
    return boot_suite(rig, tmp_path_factory.mktemp('camera'), 'camera', vivid=camera_kit.VIVID)


@pytest.mark.parametrize('name', checks_of('camera'))
def test_in_the_guest(name: str, camera_boot: Boot) -> None:
    camera_boot.must_hold(name)


def test_the_kernel_is_content(camera_boot: Boot) -> None:
    camera_boot.kernel_must_be_content()
