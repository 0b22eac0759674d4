"""As ``gstreamer_cases.py``: what goes wrong, and what is said then."""

from __future__ import annotations

from typing import Any

import pytest
from camera.gstreamer_kit import CAPS, TIGHT, Opened, configure, next_frame, open_camera, shown, streaming, until

from zc_perception.camera.gstreamer.camera import GStreamerCamera
from zc_perception.camera.gstreamer.pipeline import check_description
from zc_perception.errors import CameraChangedError, CameraError, CameraLostError, ConfigError
from zc_perception.negotiation.constraints import BufferConstraints
from zc_perception.pixel.fourcc import NV12, fourcc_code
from zc_perception.pixel.modifier import LINEAR

NV21 = fourcc_code('NV21')
pytestmark = pytest.mark.usefixtures('no_fd_leak')


@pytest.fixture(scope='module', autouse=True)
def _gstreamer_is_up() -> None:
    """GStreamer opens descriptors of its own for the process, once, and one more for its V4L2 elements."""
    open_camera(f'zcframes {TIGHT}').camera.close()
    with pytest.raises(CameraError):
        open_camera('v4l2src device=/dev/video99')


def _sequence(camera: GStreamerCamera) -> int:
    with next_frame(camera) as frame:
        return frame.data.sequence


def capture_until_error(camera: GStreamerCamera) -> CameraError:
    def one() -> CameraError | None:
        try:
            frame = camera.capture()
        except CameraError as error:
            return error
        if frame is not None:
            frame.release()
        return None

    error: CameraError = until(one, 'an error')
    return error


def test_a_device_that_fails_while_streaming_is_lost() -> None:
    with streaming(f'zcframes live=1 error-at=100 {TIGHT}') as opened:
        error = capture_until_error(opened.camera)
        assert isinstance(error, CameraLostError) and 'The cable was pulled (poll said POLLERR)' in str(error)


def test_a_live_source_that_ends_is_lost() -> None:
    with streaming(f'zcframes live=1 eos-at=100 {TIGHT}') as opened:
        error = capture_until_error(opened.camera)
        assert isinstance(error, CameraLostError) and 'has ended although its source is live' in str(error)


def test_a_silent_source_is_lost() -> None:
    with streaming(f'zcframes live=1 silent-at=100 {TIGHT}', watchdog_s=0.3) as opened:
        error = capture_until_error(opened.camera)
        assert isinstance(error, CameraLostError) and 'gave no frame for' in str(error)


@pytest.mark.parametrize('later', ['format=NV12,width=32,height=48', 'format=NV21,width=64,height=48'])
def test_another_format_is_a_changed_camera(later: str) -> None:
    pipeline = f'zcframes live=1 change-at=100 caps-later=video/x-raw,{later},framerate=200/1 {TIGHT}'
    with streaming(pipeline) as opened:
        error = capture_until_error(opened.camera)
        assert isinstance(error, CameraChangedError) and 'now gives' in str(error)


@pytest.mark.parametrize(
    'later', ['video/x-raw,format=NV21,width=64,height=48', 'video/x-raw(memory:DMABuf),format=NV12,width=64,height=48']
)
def test_a_change_to_what_consumers_do_not_take_is_a_changed_camera(later: str) -> None:
    pipeline = f'zcframes live=1 change-at=100 caps-later="{later},framerate=200/1" {TIGHT}'
    with streaming(pipeline, consumers=[BufferConstraints('npu', formats=((NV12, LINEAR),))]) as opened:
        error = capture_until_error(opened.camera)
        assert isinstance(error, CameraChangedError) and 'it is opened again' in str(error)


def test_another_kind_of_memory_is_a_changed_camera() -> None:
    later = 'video/x-raw(memory:DMABuf),format=DMA_DRM,drm-format=NV12,width=64,height=48,framerate=200/1'
    with streaming(f'zcframes live=1 change-at=100 caps-later="{later}" {TIGHT}') as opened:
        assert isinstance(capture_until_error(opened.camera), CameraChangedError)


def changed(pipeline: str, **options: Any) -> Opened:
    """A camera that was closed after its caps had changed."""
    opened = open_camera(pipeline, resumable=True, **options)
    configure(opened.camera)
    assert isinstance(capture_until_error(opened.camera), CameraChangedError)
    opened.camera.close()
    return opened


@pytest.mark.parametrize('live', [0, 1])
def test_the_next_camera_goes_on_where_the_caps_changed(live: int) -> None:
    later = 'video/x-raw,format=NV21,width=64,height=48,framerate=200/1'
    before = changed(f'zcframes live={live} change-at=60 caps-later="{later}" {TIGHT}', keep_all=not live).camera
    resumed = before.continuation()
    assert before.continuation() is None
    camera = open_camera('the same', resumed=resumed, keep_all=not live).camera
    try:
        assert camera.constraints().formats == ((NV21, LINEAR),)
        before.close()
        configure(camera)
        with next_frame(camera) as frame:
            numbers = shown(frame)
            # A live source has gone on meanwhile; a file waits.
            assert numbers[0] == 60 if not live else numbers[0] >= 60
        for _ in range(10):
            next_frame(camera).release()
    finally:
        camera.close()
        camera.close()


def test_a_changed_pipeline_that_nobody_goes_on_with_is_ended() -> None:
    later = 'video/x-raw,format=NV21,width=64,height=48,framerate=200/1'
    pipeline = f'zcframes live=1 change-at=60 caps-later="{later}" {TIGHT}'
    resumed = changed(pipeline).camera.continuation()
    assert resumed is not None
    resumed.close()
    # Whoever gives up before the change: the pipeline ends with the camera.
    opened = open_camera(pipeline, resumable=True)
    configure(opened.camera)
    assert opened.camera.continuation() is None
    assert isinstance(capture_until_error(opened.camera), CameraChangedError)
    opened.camera.close()


def test_a_changed_pipeline_of_another_size_than_asked_for_is_retried() -> None:
    later = 'video/x-raw,format=NV12,width=32,height=48,framerate=200/1'
    resumed = changed(f'zcframes live=1 change-at=60 caps-later="{later}" {TIGHT}', width=64, height=48).camera.continuation()
    with pytest.raises(CameraError, match='gives 32x48, parameters width and height say 64x48'):
        open_camera('the same', resumed=resumed, width=64, height=48)


def test_another_rate_is_no_other_picture() -> None:
    with streaming(f'zcframes live=1 change-at=100 caps-later={CAPS.replace("200/1", "100/1")} {TIGHT}') as opened:
        until(lambda: _sequence(opened.camera) > 130, 'it goes on')


@pytest.mark.parametrize(
    ('pipeline', 'kind', 'words'),
    [
        ('', ConfigError, "parameter 'pipeline' is empty"),
        ('zcframes !', ConfigError, "ends with a '!'"),
        ('nosuchsrc ! videoconvert', ConfigError, 'nosuchsrc.*gst-inspect-1.0.*apt install'),
        ('videotestsrc nosuchproperty=1', ConfigError, 'nosuchproperty'),
        ('videotestsrc ! video/x-raw,format=NV12,width=64,height=48 ! appsink name=x ! fakesink', ConfigError, 'pipeline'),
        ('videotestsrc num-buffers=0 ! video/x-raw,format=NV12', CameraError, 'ended before its first frame'),
        ('videotestsrc ! video/x-raw,format=NV12 ! video/x-raw,format=I420', ConfigError, 'pipeline'),
        ('v4l2src device=/dev/video99', CameraError, '/dev/video99'),
        ('zcframes memory=system caps-text=audio/x-raw,rate=1,channels=1 frame-size=64', CameraError, 'no raw video'),
        ('zcframes frame-size=4608 caps-text="video/x-raw(memory:VASurface),format=NV12,width=64,height=48"', CameraError, 'VASurface'),
        ('zcframes frame-size=4608 caps-text="video/x-raw(memory:NVMM),format=NV12,width=64,height=48"', CameraError, 'camera: argus'),
        (f'zcframes frame-size=4608 caps-text={CAPS},interlace-mode=alternate', CameraError, 'deinterlace'),
        (f'zcframes frame-size=4600 caps-text={CAPS} strides=64,64 offsets=0,3072', CameraError, 'plane 1'),
        (f'zcframes frame-size=4608 caps-text={CAPS} strides=64,64 offsets=0,9999', CameraError, 'offset 9999'),
        ('zcframes frame-size=4608 caps-text="video/x-raw(memory:DMABuf),format=DMA_DRM,drm-format=NV12:0x0100000000000002,width=64,'
         'height=48" memory=system', CameraError, "can't be copied"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_said_in_one_sentence(pipeline: str, kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words) as caught:
        camera = open_camera(pipeline, start_timeout_s=5.0).camera
        try:
            configure(camera)
        finally:
            camera.close()
    assert '\n' not in str(caught.value)


def test_a_source_without_a_frame_is_given_up() -> None:
    with pytest.raises(CameraLostError, match=r'gave no frame within 0.3 s'):
        open_camera(f'zcframes live=1 {TIGHT} ! valve drop=true', start_timeout_s=0.3)


def test_a_description_is_checked_without_starting_it() -> None:
    # A source that can't run at all: its frames are too small.
    check_description(f'zcframes frame-size=1 caps-text={CAPS}')
    with pytest.raises(ConfigError, match='zcnothing'):
        check_description('zcnothing')


def test_waiting_for_the_first_frame_ends_with_the_node() -> None:
    asked: list[int] = []

    def stopping() -> bool:
        asked.append(0)
        return len(asked) > 1

    with pytest.raises(CameraLostError, match=r'was stopped before its first frame'):
        open_camera(f'zcframes live=1 {TIGHT} ! valve drop=true', start_timeout_s=600.0, stopping=stopping)


def test_too_few_buffers_are_refused() -> None:
    with (
        pytest.raises(CameraError, match='gives 1 buffers before it wants them back, 2 are needed'),
        streaming(f'zcframes buffers=1 {TIGHT}'),
    ):
        pass


def test_another_size_than_asked_for_is_refused() -> None:
    with pytest.raises(ConfigError, match='gives 64x48, parameters width and height say 640x0'):
        open_camera(f'zcframes {TIGHT}', width=640)


@pytest.mark.parametrize('sink', ['', '! appsink', '! appsink name=mine max-buffers=9', '! queue ! appsink sync=true'])
def test_a_pipeline_may_bring_its_own_sink(sink: str) -> None:
    with streaming(f'zcframes {TIGHT} {sink}') as opened:
        next_frame(opened.camera).release()
