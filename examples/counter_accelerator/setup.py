from setuptools import setup

setup(
    name='counter_accelerator',
    version='0.0.1',
    py_modules=['counter_accelerator'],
    data_files=[
        ('share/ament_index/resource_index/packages', ['resource/counter_accelerator']),
        ('share/counter_accelerator', ['package.xml', 'bright.yaml']),
    ],
    install_requires=['setuptools'],
    maintainer='you',
    maintainer_email='you@example.com',
    description=(
        'An accelerator for the inference node of zc_perception: it counts bright objects.'
    ),
    license='Apache-2.0',
    # The inference node finds accelerators by this group: name = module:Class
    entry_points={
        'zc_perception.accelerators': ['counter = counter_accelerator:CounterAccelerator']
    },
)
