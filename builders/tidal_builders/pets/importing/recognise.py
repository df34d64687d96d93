"""Selects the importer for a folder."""

from __future__ import annotations

from pathlib import Path

from tidal.errors import InvalidArgument
from tidal_builders.foreign.files import read_json
from tidal_builders.foreign.peft import CONFIG_FILE
from tidal_builders.pets.importing import adapterhub, peft_lora
from tidal_builders.pets.importing.imported import ImportBase, Imported, ImportOptions


def import_task(source: Path, base: ImportBase, options: ImportOptions) -> Imported:
    """Make a task from a folder of peft or AdapterHub, or of a fine-tuned checkpoint, distinguished by their files.

    Args:
        source: Folder to import.
        base: Base that the task is made for.
        options: Options of the import.

    Raises:
        InvalidArgument: The folder is of none of these formats, or one of its files is wrong.
        Unsupported: It changes something that a task cannot store.
    """
    if not source.is_dir():
        raise InvalidArgument(
            f"{source} is not a folder; accepted are those of a task, peft, AdapterHub or a checkpoint"
        )
    if (source / CONFIG_FILE).is_file():
        config = read_json(source / CONFIG_FILE)
        found = peft_lora.import_peft if "peft_type" in config else adapterhub.import_adapterhub
        return found(source, base, options)
    if (source / "config.json").is_file():
        from tidal_builders.pets.importing.checkpoint import import_checkpoint  # transformers: slow to load

        return import_checkpoint(source, base, options)
    raise InvalidArgument(
        f"{source} cannot be imported as a task; accepted are folders with task.json (a stored task), "
        "adapter_config.json (peft, AdapterHub) or config.json (a fine-tuned checkpoint)"
    )
