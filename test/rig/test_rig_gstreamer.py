"""The GStreamer camera over v4l2src on a real kernel's vivid: one boot runs ``guest/gstreamer_checks.py``, each check is a test here."""

from __future__ import annotations

import pytest

from . import Rig
from .checked_boot import Boot, boot_checks, compile_for_guest, gstreamer_for_guest
from .guest import camera_kit, gstreamer_checks, gstreamer_streams

pytestmark = pytest.mark.rig


@pytest.fixture(scope='module')
def gstreamer_boot(rig: Rig, tmp_path_factory: pytest.TempPathFactory) -> Boot:
    """Run all checks in one boot."""
    compile_for_guest()
    out, environment = tmp_path_factory.mktemp('gstreamer'), gstreamer_for_guest()
    return boot_checks(rig, out, gstreamer_checks.RESULTS, 'gstreamer_checks.py', vivid=camera_kit.VIVID, env=environment)


@pytest.mark.parametrize('name', gstreamer_streams.CHECKS)
def test_in_the_guest(name: str, gstreamer_boot: Boot) -> None:
    gstreamer_boot.must_hold(name)


def test_the_kernel_is_content(gstreamer_boot: Boot) -> None:
    gstreamer_boot.kernel_must_be_content()
