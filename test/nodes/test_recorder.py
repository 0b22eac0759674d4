"""``zc_record`` beside a camera of another process: the frames arrive as shared memory, and are on disk bit by bit."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path

import pytest
from nodes.programs import Program, parameters

from zc_perception.camera.recording import RecordingSource
from zc_perception.camera.scene import RoadScene


def record(domain: int, *, cold: bool = False, **values: object) -> Program:
    return Program('zc_record', *parameters(**values), domain=domain, cold=cold)


def ended(recorder: Program) -> tuple[int, str]:
    """Its exit code, and all that it has said."""
    code = recorder.process.wait(60)
    recorder._reader.join(30)
    return code, recorder.output


def test_frames_of_another_process_are_recorded_bit_by_bit(
    tmp_path: Path, free_domain: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv('ZC_RUNTIME_DIR', str(tmp_path / 'run'))
    (tmp_path / 'run').mkdir(mode=0o700)
    path = tmp_path / 'a.zcr'
    camera = parameters(width=320, height=240, framerate=30.0, seed=7, heap='memfd')
    with (
        Program('capture_node', *camera, domain=free_domain).start('[capture]: ready'),
        record(
            free_domain, cold=True, path=path, max_frames=20, copy_free='required'
        ).start() as recorder,
    ):
        code, output = ended(recorder)
    assert code == 0, output
    assert f'20 frames in {path}, 0 left out because the disk was too slow, 0 refused' in output
    scene = RoadScene(320, 240, 7)
    with closing(RecordingSource(path)) as reader:
        assert len(reader) == 20 and reader.complete
        for number in range(20):
            frame, planes = reader.frame(number), reader.read_planes(number)
            assert (
                frame is not None
                and planes is not None
                and frame.header.frame_id == 'camera_optical_frame'
            )
            luma, chroma = planes[0] * 0, planes[1] * 0
            scene.draw(frame.sequence, luma, chroma)
            assert (planes[0] == luma).all() and (planes[1] == chroma).all()


@pytest.mark.parametrize(
    ('values', 'said'), [({}, '0 frames in no file'), ({'autostart': False}, '')]
)
def test_a_signal_ends_it_with_what_there_is(
    values: dict[str, bool], said: str, tmp_path: Path, free_domain: int
) -> None:
    with record(free_domain, path=tmp_path / 'a.zcr', **values).start(
        '[recorder]: ready'
    ) as recorder:
        assert recorder.interrupt() == 0
    assert said in recorder.output and 'Traceback' not in recorder.output, recorder.output


def test_a_signal_ends_it_although_the_disk_is_stuck(tmp_path: Path, free_domain: int) -> None:
    """A pipe that nobody reads takes nothing, for ever."""
    path = tmp_path / 'a.zcr'
    os.mkfifo(path)
    camera = parameters(width=640, height=480, framerate=30.0, heap='memfd')
    with (
        Program('capture_node', *camera, domain=free_domain).start('[capture]: ready'),
        record(free_domain, path=path, overwrite=True, buffer=1).start(
            'the disk is too slow'
        ) as recorder,
    ):
        assert recorder.interrupt() == 1, recorder.output  # it had frames by then
    assert (
        f"'{path}': its disk has taken nothing for 1 s; " in recorder.output
        and 'frames could not be written' in recorder.output
    )
    assert 'Traceback' not in recorder.output


@pytest.mark.parametrize(
    ('values', 'message'),
    [
        ({}, "parameter 'path' is empty"),
        ({'path': 'a.mp4'}, "recording 'a.mp4' must end in .zcr or .nv12"),
        ({'path': '{tmp}/file/a.zcr'}, "can't be made"),
        ({'pat': 'a.zcr'}, "'path' is empty"),
        (
            {'path': '{tmp}/a.zcr', 'max_frame': 5},
            "parameter 'max_frame' is unknown; did you mean 'max_frames'?",
        ),
    ],
)
def test_wrong_parameters_end_with_one_clear_line(
    values: dict[str, str], message: str, tmp_path: Path, free_domain: int
) -> None:
    values = {name: str(value).replace('{tmp}', str(tmp_path)) for name, value in values.items()}
    (tmp_path / 'file').touch()
    with record(free_domain, **values).start() as recorder:
        code, output = ended(recorder)
    assert code == 2 and message in output and 'Traceback' not in output, output
