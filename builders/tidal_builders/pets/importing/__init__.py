"""Makes tasks from folders of peft and AdapterHub, and from fully fine-tuned checkpoints.

Imported by `tidal tasks add` and tests; imports the builders' `foreign` and `pets` parts.
"""
