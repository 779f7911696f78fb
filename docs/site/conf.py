"""The docs site: Sphinx with MyST-NB over the pages of docs/, whose cells run when it is built.

`scripts/docs` builds it. The front page is docs/index.md. Pages for the site alone lie in this
folder. The sidebar leaves out the records, which docs/lab/index.md lists. `generated.py`
makes pages that are lists before the build. Cells run offline, each page in an empty folder of its
own, with `cells.py`, `working.py` and `console.py` of this folder at hand. `mathematics.py` leaves
formulas to `set_formulas.mjs`. `prose.py`
reads the texts before, `held.py` and `seen.py` say what is wrong with what was built.
"""

import os
import sys
from pathlib import Path

from sphinx.util.parallel import make_chunks

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
from docstrings import as_fields  # noqa: E402  (found by the line above)
from links import to_repository  # noqa: E402  (found by the line above)
from mathematics import as_katex  # noqa: E402  (found by the line above)

# Kernels inherit these: the helpers of the cells, and JAX on the CPU.
os.environ["PYTHONPATH"] = str(HERE)
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["PYDEVD_DISABLE_FILE_VALIDATION"] = "1"

project = "shardwise"
author = "the shardwise contributors"
project_copyright = f"2026, {author}; Apache License 2.0"
html_title = "shardwise"
root_doc = "index"
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx_copybutton"]
exclude_patterns = ["_build"]
html_math_renderer = "katex"
html_theme = "furo"
html_show_sourcelink = False
html_static_path = ["static"]
html_css_files = ["site.css"]
html_search_scorer = str(HERE / "static" / "scorer.js")

nb_execution_mode = "force"
nb_execution_in_temp = True
nb_execution_timeout = 300
nb_execution_show_tb = True
nb_output_stderr = "remove-warn"
nb_merge_streams = True
nb_render_markdown_format = "myst"

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3
copybutton_prompt_text = "$ "
copybutton_only_copy_prompt_lines = True
copybutton_line_continuation_character = "\\"

autodoc_member_order = "bysource"
autodoc_typehints = "none"
autodoc_preserve_defaults = True


def setup(app):
    """Links to files that are no pages keep their paths; pages are dealt out evenly."""
    as_katex(app)
    app.connect("source-read", to_repository)
    app.connect("env-before-read-docs", dealt)
    app.connect("env-updated", unsearched)
    app.connect("autodoc-process-docstring", as_fields)


def unsearched(app, env) -> None:
    """Records are not what a reader searches for."""
    for name in env.found_docs:
        if name.startswith("lab/"):
            env.metadata[name]["nosearch"] = "yes"


def dealt(app, env, docnames: list[str]) -> None:
    """Sphinx gives each process pages that follow one another: put those that take long, which
    stand in one folder, into all of them."""
    chunks = len(make_chunks(docnames, app.parallel))
    docnames[:] = [name for first in range(chunks) for name in docnames[first::chunks]]
