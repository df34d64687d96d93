"""The `tidal` subcommands that require only the client: infer, generate, load. Imported by the command's root."""
