"""The native boundary tap; all else about the package is in pyproject.toml."""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "meshnet.engine.llamacpp._tap",
            sources=["native/tap/tap.c"],
            extra_compile_args=["-O2", "-std=c11", "-Wall", "-Wextra", "-Werror"],
        )
    ]
)
