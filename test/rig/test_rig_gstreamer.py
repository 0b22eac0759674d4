"""The GStreamer camera over v4l2src on a real kernel's vivid: one boot runs ``guest/gstreamer_checks.py``, each check is a test here."""

from __future__ import annotations

import compileall
import json
import subprocess
import sys
from pathlib import Path

import pytest
from camera.gstreamer_process import gstreamer
from environment.gstreamer_root import with_environment

from . import Rig
from .checked_boot import TIMEOUT_S, Boot
from .guest import gstreamer_checks, gstreamer_streams

pytestmark = pytest.mark.rig

HERE = Path(__file__).parent
PACKAGE = HERE.parents[1] / 'zc_perception'


@pytest.fixture(scope='module')
def gstreamer_boot(rig: Rig, tmp_path_factory: pytest.TempPathFactory) -> Boot:
    """Run all checks in one boot. What the guest can't keep is from here: byte code, and GStreamer's register of its plugins."""
    environment = gstreamer().environment()
    for folder in (HERE, PACKAGE):
        compileall.compile_dir(folder, quiet=2)
    register = 'from zc_perception.camera.gstreamer.abi import load_gstreamer; assert load_gstreamer().has_element("v4l2src")'
    subprocess.run([sys.executable, '-c', register], env=with_environment(environment), cwd=PACKAGE.parent, check=True)
    out = tmp_path_factory.mktemp('gstreamer')
    command = [sys.executable, str(HERE / 'guest' / 'gstreamer_checks.py')]
    result = rig.run(command, timeout=TIMEOUT_S, out_dir=out, vivid=gstreamer_streams.VIVID, env=environment)
    try:
        outcome: dict[str, str] = json.loads((out / gstreamer_checks.RESULTS).read_text(encoding='utf-8'))
    except FileNotFoundError:
        pytest.fail(result.report(), pytrace=False)
    return Boot(result, outcome)


@pytest.mark.parametrize('name', gstreamer_streams.CHECKS)
def test_in_the_guest(name: str, gstreamer_boot: Boot) -> None:
    if name not in gstreamer_boot.outcome:
        pytest.fail(f'the guest did not get to this check\n{gstreamer_boot.result.report()}', pytrace=False)
    if gstreamer_boot.outcome[name]:
        pytest.fail(gstreamer_boot.outcome[name], pytrace=False)


def test_the_kernel_is_content(gstreamer_boot: Boot) -> None:
    assert not gstreamer_boot.result.complaints, gstreamer_boot.result.report()
    assert gstreamer_boot.result.rc in (0, 1), gstreamer_boot.result.report()
