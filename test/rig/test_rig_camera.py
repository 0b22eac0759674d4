"""V4L2 cameras on a real kernel's vivid, and faults of the whole graph: one boot, each check of ``camera_checks.py`` is a test here."""

from __future__ import annotations

import compileall
import json
import sys
from pathlib import Path

import pytest

from . import Rig
from .checked_boot import TIMEOUT_S, Boot
from .guest import camera_checks, camera_kit
from .guest.long_checks import marked

pytestmark = pytest.mark.rig

HERE = Path(__file__).parent
PACKAGE = HERE.parents[1] / 'zc_perception'


@pytest.fixture(scope='module')
def camera_boot(rig: Rig, tmp_path_factory: pytest.TempPathFactory) -> Boot:
    """Run all checks in one boot. The guest compiles a dozen times slower and can't keep it: byte code is from here."""
    for folder in (HERE, PACKAGE):
        compileall.compile_dir(folder, quiet=2)
    out = tmp_path_factory.mktemp('camera')
    command = [sys.executable, str(HERE / 'guest' / 'camera_checks.py')]
    result = rig.run(command, timeout=TIMEOUT_S, out_dir=out, vivid=camera_kit.VIVID)
    try:
        outcome: dict[str, str] = json.loads((out / camera_checks.RESULTS).read_text(encoding='utf-8'))
    except FileNotFoundError:
        pytest.fail(result.report(), pytrace=False)
    return Boot(result, outcome)


@pytest.mark.parametrize('name', marked(camera_kit.CHECKS))
def test_in_the_guest(name: str, camera_boot: Boot) -> None:
    if name not in camera_boot.outcome:
        pytest.fail(f'the guest did not get to this check\n{camera_boot.result.report()}', pytrace=False)
    if camera_boot.outcome[name]:
        pytest.fail(camera_boot.outcome[name], pytrace=False)


def test_the_kernel_is_content(camera_boot: Boot) -> None:
    assert not camera_boot.result.complaints, camera_boot.result.report()
    assert camera_boot.result.rc in (0, 1), camera_boot.result.report()
