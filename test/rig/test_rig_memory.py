"""The package's memory, negotiation and rung 2 on real dma-bufs: one boot runs ``guest/memory_contract.py``, each check is a test."""

from __future__ import annotations

import compileall
import json
import sys
from pathlib import Path

import pytest
from long_form import LONG

from . import Rig
from .checked_boot import CAMERAS, STRICT, TIMEOUT_S, Boot
from .guest import memory_checks, package_link_kit
from .guest.long_checks import marked

pytestmark = pytest.mark.rig

HERE = Path(__file__).parent
LINK = HERE.parent / 'link'
PACKAGE = HERE.parents[1] / 'zc_perception'
#: With one, threads take turns wherever the kernel is interrupted (``preempt=full``), and the guest costs a third less.
CPUS = 2 if LONG else 1


@pytest.fixture(scope='module')
def memory_boot(rig: Rig, tmp_path_factory: pytest.TempPathFactory) -> Boot:
    """Run all checks in one boot. The guest compiles a dozen times slower and can't keep it: byte code and the C consumer are from here."""
    for folder in (HERE, LINK, PACKAGE):
        compileall.compile_dir(folder, quiet=2)
    out = tmp_path_factory.mktemp('memory')
    environment = {package_link_kit.PROGRAM: str(package_link_kit.build_consumer(tmp_path_factory.mktemp('wire')))}
    command = [sys.executable, str(HERE / 'guest' / 'memory_contract.py')]
    result = rig.run(command, timeout=TIMEOUT_S, out_dir=out, vivid=CAMERAS, append=STRICT, cpus=CPUS, env=environment)
    try:
        outcome: dict[str, str] = json.loads((out / memory_checks.RESULTS).read_text(encoding='utf-8'))
    except FileNotFoundError:
        pytest.fail(result.report(), pytrace=False)
    return Boot(result, outcome)


@pytest.mark.parametrize('name', marked(memory_checks.CHECKS))
def test_in_the_guest(name: str, memory_boot: Boot) -> None:
    if name not in memory_boot.outcome:
        pytest.fail(f'the guest did not get to this check\n{memory_boot.result.report()}', pytrace=False)
    if memory_boot.outcome[name]:
        pytest.fail(memory_boot.outcome[name], pytrace=False)


def test_the_kernel_is_content(memory_boot: Boot) -> None:
    assert not memory_boot.result.complaints, memory_boot.result.report()
    assert memory_boot.result.rc in (0, 1), memory_boot.result.report()
