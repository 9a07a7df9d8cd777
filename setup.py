"""Metadata lives in setup.cfg. This file only lists the packages and puts the start-up hook at the root of site-packages."""

from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

STARTUP = Path("startup")
STARTUP_FILES = ("sb3_ora_zoo_hook.py", "sb3_ora_zoo.pth", "sb3_ora_zoo.start")


class BuildPyWithStartupHook(build_py):
    """
    Also installs the files of ``startup/``, which belong to no package. They are copied in an editable install too,
    so that a deleted checkout leaves a hook that does nothing rather than one that fails.
    """

    def startup_folder(self):
        # An editable install packs the install folder and never looks at the build folder
        return Path(self.get_finalized_command("install").install_lib if self.editable_mode else self.build_lib)

    def run(self):
        super().run()
        folder = self.startup_folder()
        folder.mkdir(parents=True, exist_ok=True)
        for name in STARTUP_FILES:
            self.copy_file(str(STARTUP / name), str(folder / name), preserve_mode=False)

    def get_outputs(self, *args, **kwargs):
        return super().get_outputs(*args, **kwargs) + [str(self.startup_folder() / name) for name in STARTUP_FILES]

    def get_source_files(self):
        return super().get_source_files() + [str(STARTUP / name) for name in STARTUP_FILES]


setup(
    packages=[*find_packages(include=["sb3_ora", "sb3_ora.*"]), "sb3_ora.hyperparams"],
    cmdclass={"build_py": BuildPyWithStartupHook},
)
