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

"""ament_python package: installs the Python package, the share files and the console scripts."""

from glob import glob
import os
import re
from xml.etree import ElementTree

from setuptools import Extension, find_packages, setup
from setuptools.command.build_ext import build_ext

# Read what package.xml states, such as name and version, from there instead of repeating it here.
MANIFEST = ElementTree.parse('package.xml')


def said(what: str) -> str:
    """Return the text of element *what* of package.xml, with single spaces."""
    return ' '.join(MANIFEST.findtext(what, '').split())


NAME = said('name')


def tree(folder: str) -> list[tuple[str, list[str]]]:
    """Return the data files of a folder and of its subfolders, without the output of builds."""
    found = []
    for path, _, names in os.walk(folder):
        if not re.search(r'__pycache__|\.egg-info|/(build|install|log)(/|$)', path):
            found.append((f'share/{NAME}/{path}', [os.path.join(path, name) for name in names]))
    return found


class WhereThereIsACompiler(build_ext):
    """
    Compiles the extension; without a working C compiler, the package is built without it.

    For an editable install, setuptools copies the extension into the sources; this class then
    leaves out an extension that wasn't compiled.
    """

    def copy_extensions_to_source(self):
        """Copy into the sources each extension that was compiled."""
        built = [
            self.get_ext_filename(self.get_ext_fullname(each.name)) for each in self.extensions
        ]
        self.extensions = [
            each
            for each, name in zip(self.extensions, built, strict=True)
            if os.path.exists(os.path.join(self.build_lib, name))
        ]
        super().copy_extensions_to_source()

    def copy_file(self, source, target, *arguments, **options):
        """
        Copy to a temporary name beside *target*, then rename, so that *target* is always complete.

        While one install from these sources writes the extension, another may write it, and
        programs may load it.
        """
        partial = f'{target}.{os.getpid()}'
        _, copied = super().copy_file(source, partial, *arguments, **options)
        os.replace(partial, target)
        return target, copied


setup(
    name=NAME,
    version=said('version'),
    packages=find_packages(include=[NAME, NAME + '.*']),
    package_data={
        NAME: [
            'py.typed',
            'models/*/*',
            'models/*.json',
            'models/*.txt',
            'verify/*.json',
            'doctor/*.json',
        ]
    },
    # Without this extension, the package runs in plain Python.
    ext_modules=[
        Extension(
            NAME + '.native.compiled',
            # The extension shares these two sources with the C client, so that both read the
            # messages of docs/wire.md by the same code.
            [*sorted(glob(NAME + '/native/*.c')), 'client/src/transport.c', 'client/src/wire.c'],
            include_dirs=['client/include', 'client/src'],
            depends=[*glob(NAME + '/native/*.h'), *glob('client/**/*.h', recursive=True)],
            # The results must have the same bits as those of the Python code, so the compiler may
            # not fuse a multiplication and an addition, which would round once instead of twice.
            extra_compile_args=['-O3', '-ffp-contract=off', '-fvisibility=hidden'],
            optional=True,
        )
    ],
    cmdclass={'build_ext': WhereThereIsACompiler},
    data_files=[
        ('share/ament_index/resource_index/packages', ['resource/' + NAME]),
        ('share/' + NAME, ['package.xml']),
        ('share/' + NAME + '/launch', glob('launch/*.launch.*')),
        *tree('config'),
        # The programs' messages name files of these folders; shipped_files.py finds them.
        *tree('docs'),
        *tree('examples'),
    ],
    install_requires=['setuptools', 'numpy', 'PyYAML'],
    # "colcon test" runs pytest only if the extra "test" names it.
    extras_require={
        'test': ['pytest', 'hypothesis'],
        'onnx': ['onnxruntime'],
        'opencv': ['opencv-python-headless>=4.5,<5'],
        # apsw 3.54.0.0, the newest for Python 3.10, leaves a file descriptor open for each SQLite
        # recording that rosbags opens.
        'bags': ['rosbags>=0.11', 'apsw!=3.54.0.0'],
        # PyAV before 12, such as Ubuntu 22.04's and Debian 12's, is refused: its FFmpeg doesn't
        # report a picture's rotation (docs/videos.md).
        'video': ['av>=12,<20'],
        # Build the web site from docs/.
        'docs': ['mkdocs>=1.6,<2', 'mkdocs-material>=9.5,<10'],
        # Other libraries with which bench/ compares this package's links, and one for its plots.
        'bench': [
            'eclipse-zenoh==1.10.2',
            'iceoryx2==0.10.0',
            'cyclonedds==11.0.1',
            'matplotlib>=3.8,<4',
        ],
    },
    python_requires='>=3.10',
    zip_safe=False,
    maintainer=said('maintainer'),
    maintainer_email=MANIFEST.find('maintainer').get('email'),
    description=said('description'),
    license=said('license'),
    entry_points={
        'rclpy_components': [
            'zc_perception::CaptureNode = zc_perception.nodes.components:CaptureNode',
            'zc_perception::InferenceNode = zc_perception.nodes.components:InferenceNode',
            'zc_perception::OverlayNode = zc_perception.nodes.components:OverlayNode',
            'zc_perception::RecorderNode = zc_perception.nodes.components:RecorderNode',
            'zc_perception::GStreamerNode = zc_perception.nodes.components:GStreamerNode',
        ],
        'console_scripts': [
            'capture_node = zc_perception.nodes.main:capture_node',
            'component_container = zc_perception.nodes.main:component_container',
            'component_container_mt = zc_perception.nodes.main:component_container_mt',
            'gstreamer_node = zc_perception.nodes.main:gstreamer_node',
            'inference_node = zc_perception.nodes.main:inference_node',
            'overlay_node = zc_perception.nodes.main:overlay_node',
            'perception = zc_perception.nodes.main:perception',
            'zc_demo = zc_perception.nodes.demo:main',
            'zc_doctor = zc_perception.doctor.zc_doctor:main',
            'zc_model = zc_perception.npu.zc_model:main',
            'zc_record = zc_perception.nodes.main:zc_record',
            'zc_timeline = zc_perception.observe.zc_timeline:main',
            'zc_verify = zc_perception.verify.zc_verify:main',
        ],
    },
)
