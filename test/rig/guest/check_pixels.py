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
The result comes from the pixels that were imported.

A wrong layout or a missing SYNC is a wrong result.
"""

from __future__ import annotations

from .harness import check, equal
from .kernel_api import heap_buffer, shadow_buffer, SYNC_END, SYNC_READ, SYNC_WRITE, udmabuf_buffer
from .npu_client import Image, make_image, Npu, read_result, RESULT_SIZE
from ..virtual_result import FORMATS, fourcc, MAGIC, VERSION, VirtualResult


def _expect_right(npu: Npu, image: Image) -> VirtualResult:
    """Import, run, and expect what the CPU computes for the same bytes."""
    handle = npu.import_planes(image.argument()).handle
    result = npu.run(handle)
    npu.release(handle)
    equal(result.crcs(), image.crcs(), f'CRCs of {image.format_name}')
    return result


@check
def every_format_is_read_rightly() -> None:
    with Npu() as npu:
        for name in FORMATS:
            with make_image(name, 160, 96) as image:
                _expect_right(npu, image)
                handle = npu.import_fd(image.planes[0].buffer.fd, (160, 96), name).handle
                equal(npu.run(handle).crcs(), image.crcs(), f'CRCs of {name} by IMPORT_FD')
                npu.release(handle)


@check
def the_header_of_a_result_names_its_job() -> None:
    with Npu() as npu, make_image('NV12', 160, 96) as image, heap_buffer(RESULT_SIZE) as buffer:
        handle = npu.import_planes(image.argument()).handle
        for number in (1, 2):
            equal(npu.submit(handle, buffer.fd, model_id=7).wait().status, 1, 'status')
            result = read_result(buffer)
            got = (result.magic, result.version, result.seqno, result.width, result.height)
            equal(got, (MAGIC, VERSION, number, 160, 96), 'header')
            equal(
                (result.fourcc, result.num_planes, result.model_id),
                (fourcc('NV12'), 2, 7),
                'header',
            )
            equal(list(result.crc32[2:]), [0, 0], 'unused CRCs')


@check
def odd_sizes_offsets_and_strides() -> None:
    with Npu() as npu:
        for name in FORMATS:
            # Rows and blocks cross pages in every possible way.
            with make_image(name, 99, 53, padding=(5, 11, 3, 0), gaps=(4093, 13, 1, 0)) as image:
                _expect_right(npu, image)
        with make_image('NV12', 15, 15) as image:
            equal(_expect_right(npu, image).num_boxes, 0, 'boxes without a whole block')
        with make_image('NV12', 1, 1) as image:
            _expect_right(npu, image)
        with make_image('RG24', 4096, 17) as image:
            _expect_right(npu, image)


@check
def planes_in_buffers_of_their_own() -> None:
    with Npu() as npu:
        for name in ('NV12', 'YU12'):
            with make_image(
                name, 160, 96, separate=True, padding=(32, 16, 8, 0), gaps=(64, 128, 4096, 0)
            ) as image:
                _expect_right(npu, image)


@check
def every_exporter_is_read_rightly() -> None:
    with Npu() as npu:
        for allocate in (heap_buffer, udmabuf_buffer, shadow_buffer):
            with make_image('NV12', 320, 180, allocate=allocate, padding=(64, 64, 0, 0)) as image:
                _expect_right(npu, image)


@check
def a_refilled_buffer_is_read_anew() -> None:
    with Npu() as npu, make_image('NV12', 160, 96) as image:
        handle = npu.import_planes(image.argument()).handle
        seen = set()
        for seed in range(5):
            image.fill(seed)
            result = npu.run(handle)
            equal(result.crcs(), image.crcs(), f'CRCs of content {seed}')
            seen.add(tuple(result.crcs()))
        equal(len(seen), 5, 'distinct results')


@check
def a_wrong_layout_is_a_wrong_crc() -> None:
    with (
        Npu() as npu,
        make_image('NV12', 160, 96, padding=(32, 32, 0, 0), gaps=(64, 64, 0, 0)) as image,
    ):
        right = image.crcs()
        for index in range(2):
            for member, change in (('offset', 1), ('offset', -1), ('stride', 1), ('stride', -32)):
                argument = image.argument()
                setattr(
                    argument.planes[index],
                    member,
                    getattr(argument.planes[index], member) + change,
                )
                argument.planes[index].size -= 32 if change > 0 else 0
                if member == 'stride' and change > 0:
                    argument.planes[index].size = (
                        argument.planes[index].stride * 96 // (index + 1) - 1
                    )
                handle = npu.import_planes(argument).handle
                got = npu.run(handle).crcs()
                npu.release(handle)
                assert got[index] != right[index], (
                    f'plane {index} with {member} {change:+d} has the right CRC'
                )
                equal(got[1 - index], right[1 - index], 'CRC of the other plane')


@check
def swapped_planes_are_a_wrong_crc() -> None:
    with Npu() as npu, make_image('YU12', 160, 96, separate=True) as image:
        right = image.crcs()
        argument = image.argument()
        argument.planes[1], argument.planes[2] = (
            image.argument().planes[2],
            image.argument().planes[1],
        )
        handle = npu.import_planes(argument).handle
        equal(npu.run(handle).crcs(), [right[0], right[2], right[1]], 'CRCs of swapped planes')
        npu.release(handle)


@check
def a_missing_sync_shows_on_the_shadow_exporter() -> None:
    with Npu() as npu, make_image('NV12', 160, 96, allocate=shadow_buffer) as image:
        handle = npu.import_planes(image.argument()).handle
        old = image.crcs()
        buffer = image.planes[0].buffer
        before = buffer.read(buffer.size)
        changed = bytes(byte ^ 0xFF for byte in before)
        # Without START and END the device never sees it.
        buffer.memory()[:] = changed
        equal(npu.run(handle).crcs(), old, 'CRCs without SYNC')
        # END alone is what counts for the device.
        buffer.sync(SYNC_WRITE | SYNC_END)
        equal(npu.run(handle).crcs(), image.crcs(), 'CRCs after SYNC')
        assert image.crcs() != old, 'the content has not changed'
        # A bracket for reading only does not write back.
        buffer.sync(SYNC_READ)
        buffer.memory()[:] = before
        buffer.sync(SYNC_READ | SYNC_END)
        assert npu.run(handle).crcs() != old, 'a read bracket wrote to the device'
        npu.release(handle)


@check
def a_result_on_the_shadow_exporter_needs_a_sync() -> None:
    with Npu() as npu, make_image('NV12', 160, 96) as image, shadow_buffer(RESULT_SIZE) as buffer:
        handle = npu.import_planes(image.argument()).handle
        memory = buffer.memory()
        equal(npu.submit(handle, buffer.fd).wait().status, 1, 'status')
        equal(bytes(memory[:RESULT_SIZE]), bytes(RESULT_SIZE), 'what the CPU sees without SYNC')
        equal(read_result(buffer).crcs(), image.crcs(), 'CRCs after SYNC')
