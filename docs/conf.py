"""Sphinx configuration: ``make doc`` writes the pages to docs/_build."""

import sb3_ora

project = "sb3_ora"
author = "the sb3_ora authors"
copyright = f"2026, {author}"
version = release = sb3_ora.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.mathjax", "sphinx.ext.viewcode"]
exclude_patterns = ["_build"]
myst_enable_extensions = ["deflist", "dollarmath"]
myst_heading_anchors = 2
autodoc_typehints = "none"
html_theme = "sphinx_rtd_theme"
