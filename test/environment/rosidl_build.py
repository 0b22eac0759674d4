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
Builds ROS interface packages for rclpy with rosidl's generators and gcc, without CMake.

PyPI has wheels with the generators, but none of vision_msgs and composition_interfaces. The input
is a package directory (``package.xml``, ``msg/*.msg``, ``srv/*.srv``). The running interpreter's
prefix gets the same files as by ``colcon build``: Python package, libraries, share folder and
ament index entries.

    .venv/bin/python test/environment/rosidl_build.py --build build/interfaces
    test/interfaces/vision_msgs

Two type supports are built: Fast DDS's own, which serializes, and introspection, without which
rmw_fastrtps can't create a publisher ("failed to register type object"). At run time
`rosidl_typesupport_c` opens both libraries by name, on ``LD_LIBRARY_PATH``, which the wheels set.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
import functools
import json
import os
from pathlib import Path
import shutil
import subprocess
import sys
import sysconfig
import xml.etree.ElementTree as ElementTree

PREFIX = Path(sys.prefix)
SITE_PACKAGES = Path(sysconfig.get_path('platlib'))
INDEX = PREFIX / 'share/ament_index/resource_index'

# The libraries of one package; each is linked against the ones before.
GENERATOR_C = 'rosidl_generator_c'
FASTRTPS_C = 'rosidl_typesupport_fastrtps_c'
INTROSPECTION_C = 'rosidl_typesupport_introspection_c'
TYPESUPPORT_C = 'rosidl_typesupport_c'
GENERATOR_PY = 'rosidl_generator_py'
EXTENSION_MODULE = 'extension_module'
LIBRARIES = (GENERATOR_C, FASTRTPS_C, INTROSPECTION_C, TYPESUPPORT_C, GENERATOR_PY)

RUNTIME_LIBRARIES = (
    'rosidl_runtime_c',
    'rosidl_typesupport_c',
    'rosidl_typesupport_introspection_c',
    'rosidl_typesupport_fastrtps_c',
    'rosidl_typesupport_fastrtps_cpp',
    'rosidl_dynamic_typesupport',
    'rmw',
    'rcutils',
    'fastcdr',
)


class BuildError(RuntimeError):
    """An interface package cannot be built; the message gives package, cause and remedy."""


@dataclass(frozen=True)
class InterfacePackage:
    name: str
    source: Path
    dependencies: tuple[str, ...]
    definitions: tuple[Path, ...]
    """Relative to ``source``: ``msg/Point2D.msg``."""

    @classmethod
    def read(cls, source: Path) -> InterfacePackage:
        root = ElementTree.parse(source / 'package.xml').getroot()
        definitions = tuple(
            path.relative_to(source)
            for kind in ('msg', 'srv')
            for path in sorted((source / kind).glob(f'*.{kind}'))
        )
        return cls(
            name=root.findtext('name', '').strip(),
            source=source.resolve(),
            dependencies=tuple(
                sorted((element.text or '').strip() for element in root.findall('depend'))
            ),
            definitions=definitions,
        )

    @property
    def idl_files(self) -> tuple[str, ...]:
        """The definitions as IDL files, relative to the generated package folder."""
        return tuple(path.with_suffix('.idl').as_posix() for path in self.definitions)


@dataclass(frozen=True)
class Workspace:
    package: InterfacePackage
    root: Path

    @property
    def generated(self) -> Path:
        """The folder of IDL, type hashes, C and C++ sources; its parent is an include folder."""
        return self.root / 'generated' / self.package.name

    @property
    def introspection(self) -> Path:
        """The introspection type support; its file names clash with ``generated``."""
        return self.root / 'introspection' / self.package.name

    @property
    def python(self) -> Path:
        """The Python package and its C sources; the parent is an include folder."""
        return self.root / 'python' / self.package.name

    def renew(self) -> None:
        """Empty the folders, so that a renamed message leaves no old sources behind."""
        shutil.rmtree(self.root, ignore_errors=True)
        self.generated.mkdir(parents=True)
        for definition in self.package.definitions:
            (self.python / definition.parent).mkdir(parents=True, exist_ok=True)


def installed_interface_packages() -> dict[str, Path]:
    names = sorted(entry.name for entry in (INDEX / 'rosidl_interfaces').glob('*'))
    return {name: PREFIX / 'share' / name for name in names}


def generate(workspace: Workspace) -> dict[str, list[Path]]:
    """Run the generators; return the sources of each library and of the extension module."""
    from rosidl_generator_c import generate_c
    from rosidl_generator_py import generate_py
    from rosidl_generator_type_description import generate_type_hash
    from rosidl_typesupport_c import generate_c as generate_typesupport_c
    from rosidl_typesupport_fastrtps_c import generate_typesupport_fastrtps_c
    from rosidl_typesupport_introspection_c import generate_c as generate_introspection_c

    package = workspace.package
    installed = installed_interface_packages()
    installed.pop(package.name, None)
    # The generators would raise a bare KeyError.
    if missing := sorted(set(package.dependencies) - set(installed)):
        raise BuildError(f'{package.name} depends on {missing}, not found in {PREFIX}')
    write_idl(workspace)
    arguments = functools.partial(write_arguments, workspace, installed)
    generate_type_hash(
        arguments(
            'rosidl_generator_type_description',
            include_paths=[f'{n}:{path}' for n, path in installed.items()],
        )
    )
    for generator in (GENERATOR_C, FASTRTPS_C, INTROSPECTION_C):
        write_visibility_header(workspace, generator)
    c_arguments = arguments(
        GENERATOR_C,
        ros_interface_files=[str(package.source / path) for path in package.definitions],
        type_description_tuples=[
            f'{idl}:{(workspace.generated / idl).with_suffix(".json")}'
            for idl in package.idl_files
        ],
    )
    sources = {
        GENERATOR_C: generate_c(c_arguments),
        FASTRTPS_C: generate_typesupport_fastrtps_c(arguments(FASTRTPS_C)),
        INTROSPECTION_C: generate_introspection_c(
            arguments(INTROSPECTION_C, output_dir=str(workspace.introspection))
        ),
        TYPESUPPORT_C: generate_typesupport_c(
            arguments(TYPESUPPORT_C), [FASTRTPS_C, INTROSPECTION_C]
        ),
    }
    python_files = generate_py(
        arguments(GENERATOR_PY, output_dir=str(workspace.python)), [TYPESUPPORT_C]
    )
    sources[GENERATOR_PY] = [name for name in python_files if name.endswith('_s.c')]
    sources[EXTENSION_MODULE] = [name for name in python_files if '.ep.' in name]
    return {
        library: sorted(Path(name) for name in names if name.endswith(('.c', '.cpp')))
        for library, names in sources.items()
    }


def write_idl(workspace: Workspace) -> None:
    """Convert the .msg and .srv files to IDL, which all generators read."""
    from rosidl_adapter.msg import convert_msg_to_idl
    from rosidl_adapter.srv import convert_srv_to_idl

    package = workspace.package
    for path in package.definitions:
        convert = convert_msg_to_idl if path.suffix == '.msg' else convert_srv_to_idl
        convert(package.source, package.name, path, workspace.generated / path.parent)


def write_arguments(
    workspace: Workspace, installed: dict[str, Path], generator: str, **special: object
) -> str:
    """Write the JSON file with which CMake would call ``generator``; return its name."""
    interfaces = [
        f'{name}:{idl}'
        for name, share in installed.items()
        for idl in sorted(share.glob('*/*.idl'))
    ]
    values: dict[str, object] = {
        'package_name': workspace.package.name,
        'output_dir': str(workspace.generated),
        'template_dir': str(PREFIX / 'share' / generator / 'resource'),
        'idl_tuples': [f'{workspace.generated}:{idl}' for idl in workspace.package.idl_files],
        'ros_interface_dependencies': interfaces,
        'target_dependencies': [],
    }
    path = workspace.root / f'{generator}.json'
    path.write_text(json.dumps(values | special, indent=1))
    return str(path)


def write_visibility_header(workspace: Workspace, generator: str) -> None:
    """Write the header with the export macros, whose template only CMake uses."""
    from rosidl_cli.command.helpers import generate_visibility_control_file

    header = f'{generator}__visibility_control.h'
    generate_visibility_control_file(
        package_name=workspace.package.name,
        template_path=PREFIX / 'share' / generator / 'resource' / f'{header}.in',
        output_path=workspace.generated / 'msg' / header,
    )


@dataclass(frozen=True)
class Unit:
    library: str
    name: str
    sources: tuple[Path, ...]


def translation_units(sources: dict[str, list[Path]]) -> list[Unit]:
    """
    Group the sources: one unit per library and language, in the order of starting them.

    The generated files are short and include the same few thousand header lines, so compiling them
    together takes a third of the time. The type descriptions stay apart, because their static
    names clash.
    """
    units: list[Unit] = []
    for library, paths in sources.items():
        alone = [path for path in paths if path.name.endswith('__description.c')]
        units += [
            Unit(library, f'{library}.{path.parts[-3]}.{path.name}', (path,)) for path in alone
        ]
        for suffix in ('.c', '.cpp'):
            together = tuple(path for path in paths if path.suffix == suffix and path not in alone)
            if together:
                units.append(Unit(library, f'{library}.all{suffix}', together))
    # Start the slowest first, so that none runs alone at the end.
    return sorted(units, key=lambda unit: (not unit.name.endswith('.cpp'), -len(unit.sources)))


def compile_unit(workspace: Workspace, unit: Unit) -> Path:
    source = workspace.root / 'units' / unit.name
    source.write_text(''.join(f'#include "{path}"\n' for path in unit.sources))
    target = source.with_name(source.name + '.o')
    compiler = ['g++', '-std=c++17'] if source.suffix == '.cpp' else ['gcc', '-std=gnu11']
    define = f'-DROSIDL_GENERATOR_C_BUILDING_DLL_{workspace.package.name}'
    flags = ['-O1', '-DNDEBUG', '-fPIC', '-w', define, *include_flags(workspace)]
    call([*compiler, *flags, '-c', str(source), '-o', str(target)])
    return target


def include_flags(workspace: Workspace) -> list[str]:
    """Return flags for generated headers, CPython, numpy and all packages."""
    import numpy

    own = (workspace.generated, workspace.introspection, workspace.python)
    # ROS packages are included as include/PACKAGE/PACKAGE/...; vendored ones (fastcdr) as
    # include/PACKAGE/...
    include = PREFIX / 'include'
    packages = sorted(path for path in include.iterdir() if path.is_dir())
    system = (sysconfig.get_path('include'), numpy.get_include(), include, *packages)
    return [f'-I{path.parent}' for path in own] + [f'-isystem{path}' for path in system]


def link(target: Path, objects: Sequence[Path], own: Sequence[str], rpath: str) -> None:
    """Link a shared object with the package's ``own`` libraries and all installed ones."""
    target.parent.mkdir(parents=True, exist_ok=True)
    library_dir = PREFIX / 'lib'
    foreign = sorted(
        path.name.removeprefix('lib').removesuffix('.so')
        for name in installed_interface_packages()
        for path in library_dir.glob(f'lib{name}__rosidl_*.so')
        if path.stem.endswith(LIBRARIES)
    )
    libraries = [*own, *(name for name in foreign if name not in own), *RUNTIME_LIBRARIES]
    # Link to a new file and rename it: a process that has mapped the old library keeps its inode.
    unfinished = target.with_name(target.name + '.new')
    search = [f'-L{library_dir}', f'-Wl,-rpath-link,{library_dir}', f'-Wl,-rpath,{rpath}']
    named = [f'-l{name}' for name in libraries]
    output = ['-shared', '-o', str(unfinished), *map(str, objects)]
    call(['g++', *output, *search, '-Wl,--as-needed', *named])
    os.replace(unfinished, target)


def call(command: Sequence[str]) -> None:
    result = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if result.returncode:
        raise BuildError(
            f'{command[0]} failed ({result.returncode}) on {command[-1]}:\n{result.stdout}'
        )


def compile_and_link(workspace: Workspace, sources: dict[str, list[Path]]) -> None:
    (workspace.root / 'units').mkdir()
    units = translation_units(sources)
    objects: dict[str, list[Path]] = {}
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        targets = pool.map(functools.partial(compile_unit, workspace), units)
        for unit, target in zip(units, targets, strict=True):
            objects.setdefault(unit.library, []).append(target)

    name = workspace.package.name
    linked: list[str] = []
    for library in LIBRARIES:
        link(PREFIX / 'lib' / f'lib{name}__{library}.so', objects[library], linked, '$ORIGIN')
        linked.append(f'{name}__{library}')
    module = f'{name}_s__{TYPESUPPORT_C}{sysconfig.get_config_var("EXT_SUFFIX")}'
    link(SITE_PACKAGES / name / module, objects[EXTENSION_MODULE], linked, '$ORIGIN/../../..')


def install_python(workspace: Workspace) -> None:
    target = SITE_PACKAGES / workspace.package.name
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(workspace.python, target, ignore=shutil.ignore_patterns('*.c'))
    (target / '__init__.py').touch()


def install_share(workspace: Workspace) -> None:
    """Install definitions, type hashes and manifest, and register in the ament index."""
    package = workspace.package
    share = PREFIX / 'share' / package.name
    shutil.rmtree(share, ignore_errors=True)
    for definition in package.definitions:
        target = share / definition
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(package.source / definition, target)
        for suffix in ('.idl', '.json'):
            shutil.copy(
                (workspace.generated / definition).with_suffix(suffix), target.with_suffix(suffix)
            )
    shutil.copy(package.source / 'package.xml', share)
    interfaces = sorted([*package.idl_files, *(path.as_posix() for path in package.definitions)])
    for resource, content in (('packages', ''), ('rosidl_interfaces', '\n'.join(interfaces))):
        (INDEX / resource).mkdir(parents=True, exist_ok=True)
        (INDEX / resource / package.name).write_text(content)


def build(source: Path, build_root: Path) -> InterfacePackage:
    package = InterfacePackage.read(source)
    workspace = Workspace(package, (build_root / package.name).resolve())
    workspace.renew()
    sources = generate(workspace)
    install_python(workspace)
    compile_and_link(workspace, sources)
    install_share(workspace)
    return package


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('packages', nargs='+', type=Path, metavar='PACKAGE_DIR')
    parser.add_argument(
        '--build', type=Path, required=True, help='folder for generated sources and objects'
    )
    options = parser.parse_args()
    # The generators find their own templates through the ament index.
    os.environ['AMENT_PREFIX_PATH'] = str(PREFIX)
    try:
        for source in options.packages:
            package = build(source, options.build)
            print(f'{package.name}: {len(package.definitions)} interfaces in {PREFIX}')
    except BuildError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == '__main__':
    sys.exit(main())
