"""A recording is opened by the doctor as the capture node opens it, in a process of its own: the same verdict, in the same words."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from camera.replay_kit import IMAGE, replay, write_bag
from camera.test_replay_bag import nv12_entries

from zc_perception.doctor.asking import NoAnswerError
from zc_perception.doctor.camera_checks import configured_cameras
from zc_perception.doctor.finding import Finding, Status
from zc_perception.doctor.needs import CameraNeed, Needs
from zc_perception.doctor.system import System
from zc_perception.errors import ZcError

pytestmark = pytest.mark.usefixtures('no_fd_leak')
Make = Callable[[Path], Path]


def holding(name: str, content: bytes) -> Make:
    def make(folder: Path) -> Path:
        (folder / name).write_bytes(content)
        return folder / name

    return make


def folder_with(*names: str) -> Make:
    def make(folder: Path) -> Path:
        (folder / 'drive').mkdir()
        for name in names:
            (folder / 'drive' / name).write_bytes(b'what is this')
        return folder / 'drive'

    return make


def bag(folder: Path) -> Path:
    return write_bag(folder / 'bag', nv12_entries(), msgtype=IMAGE)


def damaged_bag(folder: Path) -> Path:
    path = bag(folder)
    (path / 'metadata.yaml').write_text('rosbag2_bagfile_information: [')
    return path


def picture(folder: Path) -> Path:
    assert cv2.imwrite(str(folder / 'one.png'), np.zeros((48, 64, 3), np.uint8))
    return folder / 'one.png'


def configured(path: Path | str, **values: Any) -> Finding:
    (found,) = configured_cameras(System(), Needs('vehicle.yaml', (CameraNeed(camera='replay', video=str(path), **values),)))
    return found


BAD: dict[str, tuple[Make, dict[str, Any]]] = {
    'random bytes': (holding('drive.mp4', os.urandom(5000)), {}),
    'nothing in it': (holding('drive.mp4', b''), {}),
    'not there': (lambda folder: folder / 'nowhere.mp4', {}),
    'an empty folder': (folder_with(), {}),
    'a folder of something else': (folder_with('readme.txt', 'data.bin'), {}),
    'a bag that is none': (folder_with('metadata.yaml', 'drive_0.db3'), {}),
    'a damaged bag': (damaged_bag, {}),
    'a topic that is not in the bag': (bag, {'replay_topic': '/rear/image_raw'}),
    'a topic of something else': (picture, {'replay_topic': '/image_raw'}),
    'a recording that is none': (holding('drive.zcr', b'\0' * 300), {}),
    'a raw file of unknown size': (holding('drive.nv12', b'\0' * 4608), {}),
    'half a picture': (holding('one.png', b'\x89PNG\r\n\x1a\n\0\0'), {}),
}


@pytest.mark.parametrize('case', BAD)
def test_a_recording_that_can_not_be_played_is_the_nodes_own_sentence(case: str, tmp_path: Path) -> None:
    make, values = BAD[case]
    path = make(tmp_path)
    with pytest.raises(ZcError) as refused:
        replay(path, **{name.removeprefix('replay_'): value for name, value in values.items()}).close()
    found = configured(path, **values)
    assert (found.status, found.found, found.subject) == (Status.FAIL, str(refused.value), '/capture') and found.advice


@pytest.mark.parametrize(
    ('make', 'values'),
    [(bag, {'replay_topic': '/camera/image_raw'}), (picture, {}), (holding('a.nv12', b'\0' * 4608), {'width': 64, 'height': 48})],
)
def test_one_that_can_is_ok_with_its_size(make: Make, values: dict[str, Any], tmp_path: Path) -> None:
    found = configured(make(tmp_path), **values)
    assert found.status is Status.OK and found.figures.keys() == {'width', 'height'} and min(found.figures.values()) > 0


def test_a_decoder_that_crashes_or_hangs_is_no_end_of_the_doctor(tmp_path: Path) -> None:
    def ask(question: str, *arguments: str) -> dict[str, Any]:
        raise NoAnswerError(f'the process that looked at {question} was ended by SIGSEGV')

    needs = Needs('vehicle.yaml', (CameraNeed(camera='replay', video=str(tmp_path)),))
    (found,) = configured_cameras(System(ask=ask), needs)
    assert found.status is Status.FAIL and found.found == 'the process that looked at recording was ended by SIGSEGV'
