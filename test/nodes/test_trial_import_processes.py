"""An accelerator whose trial import fails in another process than the camera's, although its constraints suit."""

from __future__ import annotations

import sys
from pathlib import Path

from nodes.programs import Program, parameters
from nodes.ros_kit import until

HERE = Path(__file__).parent
MODEL = HERE.parent / 'rig' / 'models' / 'virtual_metis.yaml'
CAMERA = {
    'camera': 'synthetic',
    'width': 128,
    'height': 72,
    'framerate': 10.0,
    'heap': 'memfd',
    'participants': '["wide: NV12; stride_align=512"]',
}
CARD = {'accelerator': 'axl', 'accelerator_device': '/dev/metis-0:1:0', 'model': MODEL}
WHY = 'trial import of slot 0 failed: ', 'imports only tight LINEAR images in one buffer, not NV12 LINEAR 128x72 ([0] +0 stride 512'


def _until_line(program: Program, *words: str) -> None:
    def said() -> bool:
        return any(all(word in line for word in words) for line in list(program.lines))

    until(said, lambda: f'a line with {words} in:\n{program.output}')


def test_it_falls_to_messages_by_name_at_both_ends_and_works(free_domain: int) -> None:
    capture = parameters(**{f'capture__{name}': value for name, value in CAMERA.items()})
    inference = parameters(**{f'inference__{name}': value for name, value in CARD.items()})
    with (
        Program('capture_node', *capture, domain=free_domain) as camera,
        Program(Path(sys.executable).name, str(HERE / 'tight_card.py'), *inference, domain=free_domain) as reader,
    ):
        camera.start('ready')
        reader.start('ready')
        _until_line(camera, 'WARN', "can't use the buffers: ", *WHY, 'it gets messages')
        _until_line(reader, 'WARN', 'link is ros_message: publisher ', "this node can't use the publisher's buffers: ", *WHY)
        # Messages become tight images in memory that suits.
        _until_line(reader, 'job 3')
        for program in (reader, camera):
            assert program.interrupt() == 0 and 'Traceback' not in program.output, program.output
