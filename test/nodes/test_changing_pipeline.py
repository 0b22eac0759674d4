"""A pipeline whose caps change while ``capture_node`` runs it. Real GStreamer."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from camera.gstreamer_process import build_plugin, gstreamer
from nodes.programs import PlainSubscriber, Program, parameters

PICTURE = 'video/x-raw,format={},width={},height=48,framerate=30/1'


@pytest.mark.parametrize('live', [0, 1])
def test_frames_of_the_new_kind_follow_those_of_the_old(
    live: int, free_domain: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = gstreamer()
    build_plugin(root, 'gst_frames.c', tmp_path)
    found = root.environment(tmp_path)
    libraries = ':'.join(filter(None, (found['LD_LIBRARY_PATH'], os.environ.get('LD_LIBRARY_PATH'))))
    monkeypatch.setenv('ROS_HOME', str(tmp_path))
    pipeline = (
        f'zcframes live={live} rate=30 change-at=20 frame-size=4608 caps-text={PICTURE.format("NV12", 64)} '
        f'caps-later={PICTURE.format("NV21", 32)} strides=64,64 offsets=0,3072'
    )
    options = parameters(capture__camera='gstreamer', capture__pipeline=f'"{pipeline}"')
    with monkeypatch.context() as patch:
        for name, value in {**found, 'LD_LIBRARY_PATH': libraries}.items():
            patch.setenv(name, value)
        camera = Program('capture_node', *options, domain=free_domain, cold=True)
    with camera:
        camera.start('NV12 LINEAR 64x48', "now gives 'video/x-raw", 'NV21 LINEAR 32x48', 'the camera is back')
        viewer = PlainSubscriber(['120', '--image', '--until-images', '3'], domain=free_domain)
        assert viewer.result()['image']['size'] == [32, 48]
        assert camera.output.count('now gives') == 1 and camera.interrupt() == 0
