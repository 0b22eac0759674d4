"""ament_python package: installs the Python package, the share files and the console scripts."""

from glob import glob

from setuptools import find_packages, setup

NAME = 'zc_perception'

setup(
    name=NAME,
    version='0.1.0',
    packages=find_packages(include=[NAME, NAME + '.*']),
    package_data={NAME: ['py.typed', 'models/*/*', 'models/*.json', 'link/WIRE.md', 'npu/axruntime/VOYAGER.md', 'verify/bench/*.json']},
    data_files=[
        ('share/ament_index/resource_index/packages', ['resource/' + NAME]),
        ('share/' + NAME, ['package.xml']),
        ('share/' + NAME + '/launch', glob('launch/*.launch.*')),
        ('share/' + NAME + '/config', glob('config/*.*')),
    ],
    install_requires=['setuptools', 'numpy', 'PyYAML'],
    # colcon test runs pytest only where this extra names it.
    extras_require={
        'test': ['pytest', 'hypothesis'],
        'cpu': ['onnxruntime'],
        'opencv': ['opencv-python-headless>=4.5,<5'],
        'bags': ['rosbags>=0.11'],
    },
    python_requires='>=3.10',
    zip_safe=False,
    maintainer='zc_perception maintainers',
    maintainer_email='maintainers@zc-perception.dev',
    description='Zero-copy camera-to-NPU perception for ROS 2.',
    license='Apache-2.0',
    entry_points={
        'console_scripts': [
            'capture_node = zc_perception.nodes.main:capture_node',
            'inference_node = zc_perception.nodes.main:inference_node',
            'overlay_node = zc_perception.nodes.main:overlay_node',
            'perception = zc_perception.nodes.main:perception',
            'zc_bench = zc_perception.verify.bench.main:main',
            'zc_demo = zc_perception.nodes.demo:main',
            'zc_record = zc_perception.nodes.recorder:zc_record',
        ],
    },
)
