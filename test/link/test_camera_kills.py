"""A camera that is killed again and again: its consumers are linked to the one that lives, and nothing is left of the dead."""

from __future__ import annotations

from pathlib import Path

import pytest
from camera_kills import KilledCamera
from link_ros import Ros
from long_form import LONG


@pytest.mark.parametrize('life_s', [0.2, 1.0, pytest.param(10.0, marks=pytest.mark.long)])
@pytest.mark.timeout(3600 if LONG else 300)
def test_whoever_lives_is_linked_and_nothing_is_left_of_the_dead(here: Ros, free_domain: int, tmp_path: Path, life_s: float) -> None:
    camera = KilledCamera(here, free_domain, tmp_path)
    try:
        found = camera.run((200 if life_s < 10.0 else 30) if LONG else 6, life_s)
    finally:
        camera.close()
    assert found.wrong_rungs == {}, 'refused, or by message'
    assert (found.unmet, found.lost, found.converted, found.disorder) == (0, 0, 0, 0), found
    assert found.frames > 2 * found.kills
    assert all(found.after[kind] <= found.before[kind] for kind in found.before), found
