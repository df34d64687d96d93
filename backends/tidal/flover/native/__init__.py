"""Products and attention of few rows, in C++ that is compiled where it is installed."""
