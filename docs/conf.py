"""How the documentation is built: ``make docs``."""

from peakfold import __version__

project = "peakfold"
author = "the peakfold authors"
copyright = author
release = __version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.doctest",
    "sphinx.ext.viewcode",
]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = "peakfold"
myst_enable_extensions = ["deflist"]
myst_heading_anchors = 3
autodoc_typehints = "description"
autodoc_member_order = "bysource"
# docstrings are tested by pytest, in the namespace of their module; here only the examples of the pages
doctest_test_doctest_blocks = ""
doctest_global_setup = """
import os, tempfile
folder = tempfile.TemporaryDirectory()
os.environ["PEAKFOLD_CACHE"] = folder.name
back = os.getcwd()
os.chdir(folder.name)
"""
doctest_global_cleanup = """
os.chdir(back)
folder.cleanup()
"""
