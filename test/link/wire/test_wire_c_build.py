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
client/ as another project uses it: installed, found by CMake and pkg-config.

It is built from C and C++17; its table of formats is tested, too.
"""

from __future__ import annotations

import os
from pathlib import Path
import re
import shutil
import subprocess

import pytest
from wire_process import CLIENT

from zc_perception.pixel.fourcc import FORMATS
from zc_perception.pixel.layout import sample_bytes

PROGRAM = """
#include <cstdio>
#include <zc_client/zc_client.hpp>
int main() {
    zc_client_options options{};
    options.socket = "/nowhere";
    zc::Client client(options);
    const auto frame = client.next(std::chrono::milliseconds(200));
    std::puts(frame ? "a frame" : client.status().text);
    try {
        zc_publisher_options wrong{};
        zc::Publisher publisher(wrong);
    } catch (const std::system_error &error) {
        std::puts(error.what());
    }
}
"""
STRICT = ('-std=c++17', '-Wall', '-Wextra', '-Wpedantic', '-Werror')


def run(*command: str | Path, **environment: str) -> str:
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, **environment}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope='module')
def prefix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which('cmake') is None:
        pytest.skip('cmake is not installed: sudo apt install cmake')
    built, target = tmp_path_factory.mktemp('built'), tmp_path_factory.mktemp('prefix')
    run('cmake', '-S', CLIENT, '-B', built, '-DCMAKE_C_FLAGS=-Werror')
    run('cmake', '--build', built)
    run('cmake', '--install', built, '--prefix', target)
    return target


def test_a_program_in_cpp_finds_it_by_pkg_config(prefix: Path, tmp_path: Path) -> None:
    if shutil.which('pkg-config') is None:
        pytest.skip('pkg-config is not installed: sudo apt install pkg-config')
    (tmp_path / 'program.cpp').write_text(PROGRAM, encoding='utf-8')
    found = run(
        'pkg-config', '--cflags', '--libs', 'zc_client', PKG_CONFIG_PATH=f'{prefix}/lib/pkgconfig'
    )
    run('c++', *STRICT, tmp_path / 'program.cpp', '-o', tmp_path / 'program', *found.split())
    said = run(tmp_path / 'program', LD_LIBRARY_PATH=f'{prefix}/lib').splitlines()
    assert said[0] == "no connection to '/nowhere': No such file or directory"
    assert said[1].startswith("topic is ''; it must be in full")


def test_a_project_finds_it_by_cmake(prefix: Path, tmp_path: Path) -> None:
    (tmp_path / 'program.cpp').write_text(PROGRAM, encoding='utf-8')
    (tmp_path / 'CMakeLists.txt').write_text(
        'cmake_minimum_required(VERSION 3.16)\nproject(user LANGUAGES CXX)\n'
        'set(CMAKE_CXX_STANDARD 17)\nfind_package(zc_client REQUIRED)\n'
        'add_executable(program program.cpp)\n'
        'target_link_libraries(program zc_client::zc_client)\n',
        encoding='utf-8',
    )
    run('cmake', '-S', tmp_path, '-B', tmp_path / 'b', f'-DCMAKE_PREFIX_PATH={prefix}')
    run('cmake', '--build', tmp_path / 'b')
    assert 'No such file' in run(tmp_path / 'b' / 'program')


def test_the_examples_find_the_library_where_it_is_installed(prefix: Path) -> None:
    for name in ('frame_printer', 'moving_bar'):
        (program,) = prefix.glob(f'lib/zc_client/{name}')
        done = subprocess.run([program], capture_output=True, text=True, check=False)
        assert 'usage' in (done.stdout + done.stderr).lower(), done.stderr


def test_its_formats_are_the_packages() -> None:
    text = (CLIENT / 'src' / 'wire.c').read_text(encoding='utf-8')
    table = {}
    for name, sample, planes in re.findall(r'\{"(....)", (\d), \d, \{(\{.*?\})\}\}', text):
        blocks = tuple(
            tuple(map(int, block)) for block in re.findall(r'\{(\d), (\d), (\d)\}', planes)
        )
        table[name] = int(sample), blocks
    ours = {
        found.name.ljust(4): (
            sample_bytes(found, 0),
            tuple((p.element_bytes, p.horizontal, p.vertical) for p in found.planes),
        )
        for found in FORMATS.values()
    }
    assert table == ours
