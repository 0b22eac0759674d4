from setuptools import setup

setup(
    name='own_component',
    version='0.0.1',
    packages=['own_component'],
    data_files=[
        ('share/ament_index/resource_index/packages', ['resource/own_component']),
        ('share/own_component', ['package.xml']),
    ],
    install_requires=['setuptools'],
    maintainer='you',
    maintainer_email='you@example.com',
    description='Publishes the brightness of camera frames, from inside the perception container.',
    license='Apache-2.0',
    # The container finds components by this group: package::Plugin = module:Class
    entry_points={
        'rclpy_components': ['own_component::Brightness = own_component.brightness:Brightness']
    },
)
