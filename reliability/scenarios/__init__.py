"""One module for each thing that happens to a server: `run(bench)` lets it happen and gives the rows of the table."""
