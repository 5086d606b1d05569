"""Sphinx's configuration for the web site; `make site` uses it, see build.py."""

import os

project = "Distributed training, from scratch"
html_title = project
author = "the authors of the distributed training course"
copyright = f"2026, {author}"
extensions = ["myst_nb", "sphinx.ext.autodoc", "numpydoc"]
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3
nb_execution_mode = "off"  # executed before, all on real ranks
nb_merge_streams = True
nb_render_error_lexer = "text"  # the course's messages are plain text
nb_mime_priority_overrides = [("html", "application/vnd.jupyter.widget-view+json", None)]  # widgets are static here: show the still figure
exclude_patterns = ["**/.*", "downloads"]
suppress_warnings = ["mystnb.unknown_mime_type"]

autodoc_typehints = "none"
numpydoc_show_class_members = False
add_module_names = False

html_theme = "sphinx_book_theme"
html_static_path = [os.path.join(os.path.dirname(__file__), "static")]
html_css_files = ["site.css"]
html_theme_options = {
    "use_download_button": False,  # each part has its own link to the students' notebook
    "use_fullscreen_button": False,
    "show_navbar_depth": 1,
    "home_page_in_toc": True,
    "navbar_persistent": [],  # the search field is in the sidebar already
    "footer_content_items": ["copyright.html"],
}
mathjax_path = "mathjax/tex-svg.js"  # put there by build.py, so that formulas need no network
html_copy_source = False
