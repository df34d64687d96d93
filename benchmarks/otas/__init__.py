"""OTAS: how much utility token adaptation collects, and how near its plans are to the best."""
