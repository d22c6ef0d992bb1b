#!/usr/bin/env python3
"""Builds the site: the guide, the API reference and the figures as static pages, OUT/html/index.html.
SPDX-License-Identifier: Apache-2.0

usage: build_site.py ROOT OUT

Needs MkDocs with its theme Material, doxygen and doxygen-awesome-css. Fails at a link that leads nowhere."""
import importlib.util
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

sys.dont_write_bytecode = True
HERE = Path(__file__).parent.resolve()
sys.path.insert(0, str(HERE.parent / "reference"))
from build_reference import build  # noqa: E402

STYLE = Path("/usr/share/doxygen-awesome-css/doxygen-awesome.css")
FOLDERS = ["modules", "src", "bench", ".github"]
BRIEF = re.compile(r'(<div id="projectbrief">).*?(</div>)')  # below the project's name in doxygen's pages
LINK = re.compile(r"\[([^\]]*)\]\(([^)#:]+)\)")


def missing_tools():
    """The names of the tools that are not here."""
    return [*(["MkDocs"] if not importlib.util.find_spec("mkdocs") else []),
            *(["Material for MkDocs"] if not importlib.util.find_spec("material") else []),
            *(["doxygen"] if not shutil.which("doxygen") else []),
            *(["doxygen-awesome-css"] if not STYLE.exists() else [])]


def copy_page(source, target, sources):
    """Copies a page. The text alone remains of links to folders and sources, which the site lacks."""
    def shown(link):
        linked = (source.parent / link[2]).resolve()
        return link[1] if linked.exists() and linked not in sources else link[0]
    target.write_text(LINK.sub(shown, source.read_text()))


def copy_pages(root, pages):
    """Copies all Markdown pages and pictures to the same paths below `pages`, so that their links stay."""
    sources = [*root.glob("*.md"), root / "LICENSE"]
    sources += [path for folder in FOLDERS for kind in ("md", "svg") for path in (root / folder).rglob(f"*.{kind}")]
    for source in sources:
        target = pages / source.relative_to(root)
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.suffix == ".md":
            copy_page(source, target, sources)
        else:
            shutil.copyfile(source, target)
    shutil.copyfile(HERE / "site.css", pages / "site.css")


def link_back(reference):
    """Puts a link to the guide at the head of each page of the reference; doxygen has no option for one."""
    link = r'\1<a href="../modules/guide/index.html">The guide</a>\2'
    for page in reference.glob("*.html"):
        page.write_text(BRIEF.sub(link, page.read_text(), count=1))
    if "The guide</a>" not in (reference / "index.html").read_text():
        sys.exit(f"{reference}/index.html has no place for the link to the guide: doxygen writes another head")


def main(root, out):
    if missing := missing_tools():
        sys.exit(f"the site needs {', '.join(missing)}; `bash cmake/run.sh site` installs what is missing")
    pages = out / "pages"
    for made in ("pages", "reference", "html"):
        shutil.rmtree(out / made, ignore_errors=True)
    copy_pages(root, pages)
    version = re.search(r"VERSION (\d+\.\d+\.\d+)", (root / "CMakeLists.txt").read_text())[1]
    styles = f'HTML_EXTRA_STYLESHEET = "{STYLE}" "{HERE}/reference.css"'
    status, messages = build(root, out / "reference", version, more_options=[styles])
    if status:
        sys.exit(messages)
    shutil.move(out / "reference/html", pages / "reference")
    link_back(pages / "reference")
    configuration = out / "mkdocs.yml"
    # Any JSON is YAML.
    configuration.write_text(json.dumps({"INHERIT": str(HERE / "mkdocs.yml"), "docs_dir": str(pages),
                                         "site_dir": str(out / "html")}))
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", str(configuration)]
    if subprocess.run(command).returncode:
        sys.exit("the site was not built: MkDocs says why above")
    if not (out / "html/modules/guide/index.html").is_file():
        sys.exit(f"{out}/html has no modules/guide/index.html, to which the API reference leads")
    print(f"the site is {out}/html/index.html; its search works over a server: python3 -m http.server -d {out}/html")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve())
