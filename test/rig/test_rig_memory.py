"""The package's memory, negotiation and rung 2 on real dma-bufs: one boot runs ``guest/memory_checks.py``, each check is a test."""

from __future__ import annotations

import pytest
from long_form import LONG

from . import Rig
from .checked_boot import CAMERAS, STRICT, Boot, boot_checks, compile_for_guest
from .guest import memory_checks, package_link_kit
from .guest.long_checks import marked

pytestmark = pytest.mark.rig

#: With one, threads take turns wherever the kernel is interrupted (``preempt=full``), and the guest costs a third less.
CPUS = 2 if LONG else 1


@pytest.fixture(scope='module')
def memory_boot(rig: Rig, tmp_path_factory: pytest.TempPathFactory) -> Boot:
    """Run all checks in one boot. The C consumer is from here."""
    compile_for_guest()
    environment = {package_link_kit.PROGRAM: str(package_link_kit.build_consumer(tmp_path_factory.mktemp('wire')))}
    out = tmp_path_factory.mktemp('memory')
    return boot_checks(rig, out, memory_checks.RESULTS, 'memory_checks.py', vivid=CAMERAS, append=STRICT, cpus=CPUS, env=environment)


@pytest.mark.parametrize('name', marked(memory_checks.CHECKS))
def test_in_the_guest(name: str, memory_boot: Boot) -> None:
    memory_boot.must_hold(name)


def test_the_kernel_is_content(memory_boot: Boot) -> None:
    memory_boot.kernel_must_be_content()
