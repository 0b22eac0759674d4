from setuptools import setup

setup(
    name='counter_camera',
    version='0.0.1',
    py_modules=['counter_camera'],
    data_files=[
        ('share/ament_index/resource_index/packages', ['resource/counter_camera']),
        ('share/counter_camera', ['package.xml']),
    ],
    install_requires=['setuptools'],
    maintainer='you',
    maintainer_email='you@example.com',
    description='A camera for the capture node of zc_perception: it counts its frames.',
    license='Apache-2.0',
    # The capture node finds cameras by this group: kind = module:Class
    entry_points={'zc_perception.cameras': ['counter = counter_camera:CounterCamera']},
)
