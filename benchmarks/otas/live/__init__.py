"""OTAS through the server: what token adaptation earns under a load that crosses the machine's capacity."""
