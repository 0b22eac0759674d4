"""
Another project's package, with a component for rclpy's proposal of a Python container.

Nothing of zc_perception is in it.
"""

from setuptools import setup

setup(
    name='foreign_components',
    version='0.0.1',
    packages=['foreign_components'],
    data_files=[
        ('share/ament_index/resource_index/packages', ['resource/foreign_components']),
        ('share/foreign_components', ['package.xml']),
    ],
    install_requires=['setuptools'],
    zip_safe=True,
    maintainer='somebody',
    maintainer_email='somebody@example.com',
    description='A component for tests.',
    license='Apache-2.0',
    entry_points={
        'rclpy_components': ['foreign_components::Talker = foreign_components.talker:Talker']
    },
)
