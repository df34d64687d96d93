"""Live part: utility of OTAS on a server, under a load that exceeds the machine's capacity at times."""
