# Copyright 2026 The zc_perception authors
# SPDX-License-Identifier: Apache-2.0
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.

"""
Where calibrations are kept.

URLs, files that are there or not, and writing that leaves a file whole.
"""

from __future__ import annotations

from dataclasses import replace
import os
from pathlib import Path
import re
import stat

import pytest

from zc_perception.camera import calibration
from zc_perception.camera.calibration import (
    Calibration,
    calibration_path,
    camera_name_of,
    CameraInfoStore,
    format_calibration,
    load_calibration,
    ros_home,
    save_calibration,
    uncalibrated,
)
from zc_perception.errors import ConfigError

pytestmark = pytest.mark.usefixtures('no_fd_leak')
IDENTITY = (1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0)
GOOD = Calibration(
    640, 360, 'front', 'plumb_bob', (0.1, 0.01, 0.0, 0.0, 0.0),
    (400.0, 0.0, 320.0, 0.0, 400.0, 180.0, 0.0, 0.0, 1.0), IDENTITY,
    (400.0, 0.0, 320.0, 0.0, 0.0, 400.0, 180.0, 0.0, 0.0, 0.0, 1.0, 0.0),
)  # fmt: skip
HOME = {'HOME': '/h'}


def package_folder(name: str) -> str:
    """As ament_index_python answers."""
    if name != 'robot':
        raise LookupError(name)
    return '/opt/share/robot'


@pytest.mark.parametrize(
    ('url', 'environment', 'expected'),
    [
        ('', HOME, '/h/.ros/camera_info/front_left.yaml'),
        ('', {'HOME': '/h', 'ROS_HOME': '/r'}, '/r/camera_info/front_left.yaml'),
        ('file:///etc/cam.yaml', HOME, '/etc/cam.yaml'),
        ('/etc/cam.yaml', HOME, '/etc/cam.yaml'),
        ('file://${ROS_HOME}/x/${NAME}-${NAME}.yml', HOME, '/h/.ros/x/front_left-front_left.yml'),
        ('${ROS_HOME}/a.yaml', HOME, '/h/.ros/a.yaml'),
        (
            'package://robot/calibration/${NAME}.yaml',
            HOME,
            '/opt/share/robot/calibration/front_left.yaml',
        ),
        ('FILE:///x.yaml', HOME, '/x.yaml'),
    ],
)
def test_urls(url: str, environment: dict[str, str], expected: str) -> None:
    assert calibration_path(
        url, 'front/left', package_folder=package_folder, environment=environment
    ) == Path(expected)


@pytest.mark.parametrize(
    ('url', 'message'),
    [
        ('http://x/y.yaml', 'it must begin with file:// or package://'),
        ('flash:///', 'it must begin with file:// or package://'),
        ('file://relative.yaml', 'a file URL has an absolute path'),
        ('relative.yaml', 'a file URL has an absolute path'),
        (
            'file:///x/${HOME}.yaml',
            r"variable '\$\{HOME\}' is unknown; known are \$\{NAME\}, \$\{ROS_HOME\}",
        ),
        ('package://robot', 'a package URL is package://PACKAGE/path'),
        ('package:///x.yaml', 'a package URL is package://PACKAGE/path'),
        ('package://rowboat/x.yaml', "there is no ROS package 'rowboat' in this environment"),
        ('package://robot/../../etc/passwd', "without '..'"),
    ],
)
def test_urls_that_can_not_be_are_refused(url: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        calibration_path(url, 'front', package_folder=package_folder, environment=HOME)


def test_names_and_home(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (
        camera_name_of('Integrated Camera: v1 (usb-0000:00:14.0)')
        == 'Integrated_Camera_v1_usb_0000_00_14_0'
    )
    assert camera_name_of('') == camera_name_of('//') == 'camera'
    assert ros_home({'HOME': '/h', 'ROS_HOME': ''}) == Path('/h/.ros')


def test_written_and_read_again(tmp_path: Path) -> None:
    path = tmp_path / 'new' / 'folders' / 'front.yaml'
    save_calibration(path, GOOD)
    assert load_calibration(path) == GOOD
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert os.listdir(path.parent) == ['front.yaml']


@pytest.mark.parametrize('name', ['0815', '1e5', 'y', 'no', 'true', '1.5'])
def test_a_name_that_looks_like_something_else_is_quoted(tmp_path: Path, name: str) -> None:
    path = tmp_path / 'front.yaml'
    save_calibration(path, replace(GOOD, camera_name=name))
    assert re.search(rf'^camera_name: (["\']){name}\1$', path.read_text(), re.MULTILINE)
    assert load_calibration(path).camera_name == name


def test_a_file_keeps_its_mode_and_a_link_stays_a_link(tmp_path: Path) -> None:
    real, link = tmp_path / 'real.yaml', tmp_path / 'link.yaml'
    save_calibration(real, uncalibrated(640, 360))
    real.chmod(0o664)
    link.symlink_to('real.yaml')
    save_calibration(link, GOOD)
    assert link.is_symlink() and load_calibration(real) == GOOD
    assert stat.S_IMODE(real.stat().st_mode) == 0o664


def test_a_failed_write_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / 'front.yaml'
    save_calibration(path, GOOD)

    def full(fd: int) -> None:
        raise OSError(28, 'No space left on device')

    monkeypatch.setattr(calibration.os, 'fsync', full)
    with pytest.raises(
        ConfigError, match=r"calibration '.*front.yaml' can't be written: No space left on device"
    ):
        save_calibration(path, uncalibrated(640, 360))
    assert load_calibration(path) == GOOD and os.listdir(tmp_path) == ['front.yaml']


def test_a_place_that_can_not_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / 'file').write_text('')
    with pytest.raises(
        ConfigError, match=r"can't be written: .*; set 'camera_info_url' to another place"
    ):
        save_calibration(tmp_path / 'file' / 'x.yaml', GOOD)


def test_files_that_can_not_be_read(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        load_calibration(tmp_path / 'none.yaml')
    os.mkfifo(tmp_path / 'pipe')
    for path in (tmp_path, tmp_path / 'pipe', Path('/dev/zero')):
        with pytest.raises(
            ConfigError, match=f"calibration '{path}' is no file; set 'camera_info_url' to one"
        ):
            load_calibration(path)
    (tmp_path / 'binary').write_bytes(b'\xff\xfe\x00')
    with pytest.raises(ConfigError, match='is no text in UTF-8'):
        load_calibration(tmp_path / 'binary')
    with (tmp_path / 'endless').open('wb') as file:
        file.truncate(1 << 32)
    with pytest.raises(ConfigError, match='characters; a calibration file has at most'):
        load_calibration(tmp_path / 'endless')


def test_a_camera_without_a_file_is_uncalibrated_and_says_so(tmp_path: Path) -> None:
    store = CameraInfoStore('', 'front', (640, 360), environment={'HOME': str(tmp_path)})
    assert store.current == uncalibrated(640, 360)
    path = f'{tmp_path}/.ros/camera_info/front.yaml'
    assert store.notices == (
        (
            f"the camera is not calibrated: there is no '{path}'; run camera_calibration, or set "
            "'camera_info_url'"
        ),
    )
    assert not store.wrong, 'many use none'
    store.replace(GOOD)
    assert store.current == GOOD and store.notices == () and not store.wrong
    assert (
        CameraInfoStore('', 'front', (640, 360), environment={'HOME': str(tmp_path)}).current
        == GOOD
    )


def test_another_size_and_another_name_are_told_and_nobody_computes_with_them(
    tmp_path: Path,
) -> None:
    path = tmp_path / 'c.yaml'
    path.write_text(format_calibration(GOOD))
    store = CameraInfoStore(f'file://{path}', 'rear', (1280, 720))
    assert store.current == uncalibrated(1280, 720)
    size, name = store.notices
    assert str(path) in size and '640x360' in size and '1280x720' in size
    assert "named 'front', this one is 'rear'" in name
    assert (
        size.count('calibrate at this size') == 1 and "set 'camera_name'" in name and store.wrong
    )
    assert store.notices == tuple('; '.join(trouble) for trouble in store.troubles)
    store.resize(640, 360)
    assert store.current == GOOD and len(store.notices) == 1
    store.resize(800, 600)
    assert store.current == uncalibrated(800, 600)


def test_before_the_camera_is_open_a_calibration_is_of_no_other_size(tmp_path: Path) -> None:
    path = tmp_path / 'c.yaml'
    path.write_text(format_calibration(GOOD))
    store = CameraInfoStore(f'file://{path}', 'front', (0, 0))
    assert store.troubles == () and not store.wrong
    store.resize(800, 600)
    assert store.wrong


def test_a_file_of_zeros_counts_as_none(tmp_path: Path) -> None:
    path = tmp_path / 'c.yaml'
    save_calibration(path, uncalibrated(640, 360))
    store = CameraInfoStore(str(path), 'front', (640, 360))
    assert store.current == uncalibrated(640, 360)
    assert 'has a camera matrix of zeros' in store.notices[0]


@pytest.mark.parametrize('named', [True, False])
@pytest.mark.parametrize(
    ('content', 'message'),
    [
        (b'', 'is no calibration: it has no keys'),  # the power was cut
        (b'\0' * 512, 'is no YAML'),  # likewise, on some file systems
        (b'image_width: 5\n', "key 'image_height' is missing"),
        (b'%YAML:1.0\n---\ncamera_matrix: !!opencv-matrix\n', "key 'image_width' is missing"),
        (b'\xff\xd8\xff\xe0\0\x10JFIF', 'is no text in UTF-8'),
    ],
)
def test_a_bad_file_costs_the_calibration_and_a_good_one_can_be_written_over_it(
    content: bytes, message: str, named: bool, tmp_path: Path
) -> None:
    path = tmp_path / '.ros' / 'camera_info' / 'front.yaml'
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    url, home = str(path) if named else '', {'HOME': str(tmp_path)}
    store = CameraInfoStore(url, 'front', (640, 360), environment=home)
    assert store.current == uncalibrated(640, 360)
    assert message in store.failure and str(path) in store.failure
    (notice,) = store.notices
    assert notice.startswith('the camera counts as not calibrated: ') and store.failure in notice
    assert notice.endswith('; correct the file, or run camera_calibration')
    store.resize(1280, 720)
    assert store.current == uncalibrated(1280, 720) and message in store.failure
    store.resize(640, 360)
    store.replace(GOOD)
    assert (store.current, store.failure, store.notices) == (GOOD, '', ())
    assert load_calibration(path) == GOOD


@pytest.mark.parametrize('kind', ['folder', 'pipe', 'closed'])
def test_what_is_no_file_is_neither_read_nor_written(kind: str, tmp_path: Path) -> None:
    path = tmp_path / 'c.yaml'
    if kind == 'pipe':
        os.mkfifo(path)
    elif kind == 'folder':
        path.mkdir()
    else:
        (tmp_path / 'file').write_text('')
        path = tmp_path / 'file' / 'c.yaml'
    store = CameraInfoStore(str(path), 'front', (640, 360))
    assert store.current == uncalibrated(640, 360) and str(path) in store.failure
    with pytest.raises(ConfigError, match=r"is no file; set|can't be written: "):
        store.replace(GOOD)
    assert store.current == uncalibrated(640, 360) and store.failure


def test_a_package_that_is_not_there_costs_the_calibration(tmp_path: Path) -> None:
    url = 'package://rowboat/c.yaml'
    store = CameraInfoStore(url, 'front', (640, 360), package_folder=package_folder)
    assert store.current == uncalibrated(640, 360) and store.place == url
    (notice,) = store.notices
    assert "there is no ROS package 'rowboat' in this environment" in notice
    assert notice.endswith("; correct 'camera_info_url'")
    with pytest.raises(ConfigError, match="there is no ROS package 'rowboat'"):
        store.replace(GOOD)


def test_a_calibration_of_another_size_is_scaled_where_that_was_asked_for(tmp_path: Path) -> None:
    path = tmp_path / 'c.yaml'
    save_calibration(path, GOOD)
    store = CameraInfoStore(str(path), 'front', (320, 180), rescale=True)
    assert store.current == GOOD.scaled(320, 180) and store.notices == () and not store.wrong
    assert CameraInfoStore(str(path), 'front', (320, 180)).notices == (
        f"calibration '{path}' is for 640x360 pictures, the camera gives 320x180: camera_info is "
        'published without it; calibrate at this size, run the camera at that one, set '
        "'rescale_camera_info' if both show the same, or set 'camera_info_url' to one that fits",
    )
    store.resize(640, 480)
    (notice,) = store.notices
    assert store.current == uncalibrated(640, 480) and store.wrong
    assert (
        "without it, for it can't be scaled: 640x360 and 640x480 are no pictures of the same shape"
        in notice
    )
    assert 'rescale_camera_info' not in notice
    store.replace(replace(GOOD, width=640, height=480))
    assert (store.current.width, store.current.k, store.notices) == (640, GOOD.k, ())


def test_a_camera_without_a_lens_needs_no_calibration(tmp_path: Path) -> None:
    home = {'HOME': str(tmp_path)}
    store = CameraInfoStore('', 'front', (0, 0), environment=home)
    store.resize(640, 360, has_lens=False)
    assert store.notices == () and store.current == uncalibrated(640, 360)
    named = CameraInfoStore('/nowhere/c.yaml', 'front', (0, 0))
    named.resize(640, 360, has_lens=False)
    assert named.wrong and "there is no '/nowhere/c.yaml'" in named.notices[0]


def test_a_file_with_a_byte_order_mark_is_read(tmp_path: Path) -> None:
    path = tmp_path / 'c.yaml'
    path.write_bytes(b'\xef\xbb\xbf%YAML:1.0\r\n---\r\n' + format_calibration(GOOD).encode())
    assert load_calibration(path) == GOOD
