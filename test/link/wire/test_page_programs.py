"""The consumer and the producer that were written from docs/wire.md alone, against each other."""

from __future__ import annotations

from pathlib import Path

import pytest
from page_process import PageProcess

pytestmark = pytest.mark.usefixtures('no_fd_leak')


def producer(folder: Path, *options: str) -> PageProcess:
    return PageProcess('producer', folder, 0, '--rate', '50', '--width', '64', '--height', '48', *options)


def consumer(folder: Path, *options: str) -> PageProcess:
    return PageProcess('consumer', folder, 0, *options)


@pytest.mark.parametrize('pixel_format', ['NV12', 'YUYV'])
def test_frames_arrive_with_their_pixels_and_nothing_is_left(folder: Path, pixel_format: str) -> None:
    with producer(folder, '--format', pixel_format) as camera, consumer(folder, '--frames', '50', '--hold', '2') as reader:
        assert reader.process.wait(60) == 0
        camera.wait_for('gone', name='page_consumer')
        camera.end()
    assert len(reader.pixels()) == 50
    assert reader.pixels() <= camera.pixels()
    assert not list(folder.iterdir())


def test_other_buffers_are_followed_within_the_connection(folder: Path) -> None:
    with producer(folder, '--reconfigure', '10') as camera, consumer(folder, '--hold', '2') as reader:
        reader.wait_for('frame', 55)
        camera.end()
    sizes = {tuple(each['size']) for each in reader.told('buffers')}
    assert sizes == {(64, 48), (32, 24)}
    assert len(reader.told('welcome')) == 1
    assert len(reader.told('retired')) >= 3
    assert reader.pixels() <= camera.pixels()


@pytest.mark.parametrize('orderly', [True, False], ids=['ended', 'killed'])
def test_a_camera_that_comes_back_is_found_again(folder: Path, orderly: bool) -> None:
    with consumer(folder) as reader:
        with producer(folder) as first:
            reader.wait_for('frame', 5)
            first.end() if orderly else first.kill()
        reader.wait_for('ended', why='eof')
        assert len(list(folder.iterdir())) == (0 if orderly else 2)
        with producer(folder) as second:
            reader.wait_for('welcome', 2)
            reader.wait_for_more('frame', 5)
            assert len(list(folder.iterdir())) == 2, 'the second removed what the first left'
            second.end()
    assert reader.pixels() <= first.pixels() | second.pixels()


def test_frames_of_a_killed_consumer_come_back(folder: Path) -> None:
    with producer(folder) as camera:
        for _ in range(5):
            with consumer(folder, '--hold', '2') as reader:
                reader.wait_for('frame', 5)
                reader.kill()
        assert [each['held'] >= 2 for each in camera.wait_for('gone', 5, name='page_consumer')] == 5 * [True]
        assert not camera.told('no free slot')


def test_a_consumer_that_holds_its_window_costs_others_nothing(folder: Path) -> None:
    with producer(folder) as camera, consumer(folder, '--hold', '4') as full:
        full.wait_for('frame', 4)
        with consumer(folder) as other:
            other.wait_for('frame', 50)
        assert len(full.told('frame')) == 4
        assert not camera.told('no free slot')
