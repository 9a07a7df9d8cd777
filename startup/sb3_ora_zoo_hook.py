"""
Start-up hook that makes ``python -m rl_zoo3.train --algo ora_iqn`` work.

rl_zoo3 has no plugin mechanism and checks ``--algo`` before it imports any user package.
``sb3_ora_zoo.pth`` (``sb3_ora_zoo.start`` from Python 3.15 on) therefore calls ``install()`` when the interpreter starts.
It adds one finder to ``sys.meta_path``, which waits for the three modules of rl_zoo3 that hold the lists of algorithms;
right after one of them has run, ``sb3_ora`` adds its own entries to it. Nothing else is ever touched, and nothing heavy
is imported before. Set the environment variable ``SB3_ORA_NO_HOOK`` to any non-empty value to switch the hook off.
"""

import os
import sys

MODULES = ("rl_zoo3.utils", "rl_zoo3.hyperparams_opt", "rl_zoo3.exp_manager")


def register(module):
    """
    Let ``sb3_ora`` add itself to a module of rl_zoo3. Never raises: rl_zoo3 must work as if the hook was not there.

    :param module: one of ``MODULES``, loaded.
    """
    try:
        from sb3_ora.zoo import patch

        patch(module)
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and error.name == "sb3_ora":
            return  # an editable checkout that was deleted
        import contextlib
        import warnings

        with contextlib.suppress(Warning):  # warnings may be set to raise
            warnings.warn(f"sb3_ora could not register its algorithms with rl_zoo3: {error!r}", RuntimeWarning, stacklevel=2)


class RegisteringLoader:
    """
    Run a module with its own loader, give the module that loader back, then register.

    :param loader: the loader that was found for the module.
    """

    def __init__(self, loader):
        self.loader = loader

    def __getattr__(self, name):
        return getattr(object.__getattribute__(self, "loader"), name)

    def exec_module(self, module):
        module.__spec__.loader = module.__loader__ = self.loader
        self.loader.exec_module(module)
        register(module)


class ZooFinder:
    """Find the modules named in ``MODULES`` with the other finders and wrap their loader."""

    def find_spec(self, name, path=None, target=None):
        if name not in MODULES:
            return None
        for finder in sys.meta_path:
            find_spec = None if isinstance(finder, ZooFinder) else getattr(finder, "find_spec", None)
            spec = find_spec and find_spec(name, path, target)
            if spec:
                if hasattr(spec.loader, "exec_module"):
                    spec.loader = RegisteringLoader(spec.loader)
                return spec
        return None


def install():
    """Add the finder to ``sys.meta_path``, once."""
    if not os.environ.get("SB3_ORA_NO_HOOK") and not any(type(finder).__name__ == "ZooFinder" for finder in sys.meta_path):
        sys.meta_path.insert(0, ZooFinder())
