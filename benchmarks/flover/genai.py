"""Install OpenVINO GenAI into a separate folder, in the version of the installed OpenVINO."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from benchmarks.report import progress
from tidal.device import library_version

_TOKENIZERS = ("openvino_tokenizer.xml", "openvino_detokenizer.xml")
_FAILED = "failed.txt"


def install(folder: Path) -> None:
    """Install it unless it is installed; the reason for a failure is stored in the folder."""
    if (folder / "openvino_genai").exists():
        return
    progress("installing OpenVINO GenAI into a separate folder")
    version = library_version("openvino")
    packages = [f"{name}=={version}.*" for name in ("openvino-genai", "openvino-tokenizers")]
    # Without dependencies: the installed OpenVINO is used.
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder), *packages]
    done = subprocess.run(command, check=False, stdout=sys.stderr, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        folder.mkdir(parents=True, exist_ok=True)
        last = (done.stderr.strip().splitlines() or ["pip failed"])[-1]
        (folder / _FAILED).write_text(f"{' and '.join(packages)} could not be installed: {last}")
    else:
        (folder / _FAILED).unlink(missing_ok=True)


def why_not(folder: Path) -> str:
    """Return why it cannot run; "" if it is installed."""
    if (folder / "openvino_genai").exists():
        return ""
    return (folder / _FAILED).read_text() if (folder / _FAILED).exists() else "it was not installed"


def write_tokenizers(folder: Path, source: Path, graph: Path) -> None:
    """Convert a source's tokenizer, which GenAI's pipelines read beside the model, in a separate process.

    Args:
        folder: Folder of the installation.
        source: Folder of the source model, in Hugging Face format.
        graph: Folder to write to.
    """
    if all((graph / name).exists() for name in _TOKENIZERS):
        return
    progress("converting the tokenizer")
    code = (
        "import sys; from pathlib import Path; sys.path.append(sys.argv[1])\n"
        "import openvino, openvino_tokenizers; from transformers import AutoTokenizer\n"
        "tokenizer = AutoTokenizer.from_pretrained(sys.argv[2])\n"
        "graphs = openvino_tokenizers.convert_tokenizer(tokenizer, with_detokenizer=True)\n"
        "for graph, name in zip(graphs, sys.argv[4:], strict=True):\n"
        "    openvino.save_model(graph, Path(sys.argv[3]) / name)\n"
    )
    arguments = [str(folder), str(source), str(graph), *_TOKENIZERS]
    subprocess.run([sys.executable, "-c", code, *arguments], check=True, stdout=sys.stderr)
